"""Fixtures that several test files share."""

import pytest

from smoothplan.running.workers import ThreadPool, Workers


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several workers are threads, for simulators in Python too: they start at once, and tests can look inside."""
    monkeypatch.setattr(
        Workers, "_pool_for", lambda self, work: None if self._wanted == 1 else ThreadPool(self._wanted)
    )
