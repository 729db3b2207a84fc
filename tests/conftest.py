"""What all tests share: a fixture for threads, and a line at the end if tests of pages were skipped."""

import pytest

from smoothplan.run.workers import ThreadPool, Workers
from tests.browser import NO_BROWSER


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several workers are threads, for simulators in Python too: they start at once, and tests can look inside."""
    monkeypatch.setattr(
        Workers, "_pool_for", lambda self, work: None if self._wanted == 1 else ThreadPool(self._wanted)
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says that there was no browser: a skipped test is easily overlooked."""
    reasons = [str(report.longrepr[2]) for report in terminalreporter.stats.get("skipped", ())]
    without = [reason.removeprefix("Skipped: ") for reason in reasons if NO_BROWSER in reason]
    if without:
        terminalreporter.write_line(f"{len(without)} tests of pages were SKIPPED: {without[0]}", yellow=True)
