"""What all tests share: a line at the end if tests of pages were skipped."""

import pytest

from tests.browser import NO_BROWSER


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says that there was no browser: a skipped test is easily overlooked."""
    reasons = [str(report.longrepr[2]) for report in terminalreporter.stats.get("skipped", ())]
    without = [reason.removeprefix("Skipped: ") for reason in reasons if NO_BROWSER in reason]
    if without:
        terminalreporter.write_line(f"{len(without)} tests of pages were SKIPPED: {without[0]}", yellow=True)
