"""Small runs of studies, for their tests."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from studies.base import Row, Study, run
from studies.findings import Claim, Evidence, Findings

Change = Callable[[Mapping[str, Any], dict[str, Any]], Mapping[str, Any]]
"""settings, result → fields of the result that are to be others."""


def small_run(study: Study[Any], settings: Any, folder: Path) -> tuple[list[Row], Findings]:
    """The rows and the findings of a study with small settings."""
    kept: list[Row] = []

    def evidence(given: Any, rows: Sequence[Row]) -> Evidence:
        kept.extend(rows)
        return study.evidence(given, rows)

    return kept, run(replace(study, quick=settings, evidence=evidence), "quick", folder)


def changed(rows: Sequence[Row], change: Change, **wanted: Any) -> list[Row]:
    """The rows; those whose settings are as wanted have other results."""
    found = []
    for row in rows:
        meant = wanted.items() <= row.settings.items()
        found.append(row._replace(result={**row.result, **change(row.settings, dict(row.result))}) if meant else row)
    return found


def verdict(evidence: Evidence, words: str) -> bool:
    """Whether the one claim holds whose quantity has these words."""
    return claim(evidence, words).holds


def claim(evidence: Evidence, words: str) -> Claim:
    """The one claim whose quantity has these words."""
    (found,) = [each for each in evidence.claims if words in each.quantity]
    return found
