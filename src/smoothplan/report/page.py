"""The page: every finding of a folder of experiments, interactive, in one HTML file that needs no network."""

from pathlib import Path


def write(folder: Path, file: Path | None = None) -> Path:
    """Writes the page for the findings in a folder, by default to `folder/report.html`."""
    raise NotImplementedError
