"""A headless Chromium for tests of pages: found on this machine, and watched for what a page may not do.

`python -m tests.browser` tells whether there is one: exit status 0 if it can be started, or is not wanted.
"""

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Error, Page, Playwright, sync_playwright

NO_BROWSER = "tests of pages need a Chromium"
"""How the reason of a skipped test starts."""

PATIENCE = 60.0
"""Seconds until something that must happen is given up: many times what a busy machine needs."""


@contextmanager
def _launch(playwright: Playwright, program: str) -> Iterator[Browser]:
    quiet = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")
    browser = playwright.chromium.launch(
        executable_path=program, args=[*quiet, "--disable-component-update", "--disable-sync"]
    )
    try:
        yield browser
    finally:
        browser.close()


@cache
def chromium() -> tuple[str | None, str]:
    """The first Chromium that can be started, or None; and why there is none."""
    if os.environ.get("SMOOTHPLAN_NO_BROWSER") == "1":
        return None, f"{NO_BROWSER}, which SMOOTHPLAN_NO_BROWSER=1 forbids"
    wanted = os.environ.get("SMOOTHPLAN_CHROMIUM")
    with sync_playwright() as playwright:
        names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
        own = shutil.which(playwright.chromium.executable_path)  # Playwright's, if it is installed
        found = [wanted] if wanted else list(filter(None, [*map(shutil.which, names), own]))
        failures = []
        for program in found:
            try:
                with _launch(playwright, program):
                    return program, ""
            except Error as error:
                failures.append(f"{program} cannot be started: {str(error).splitlines()[0]}")
    if wanted:
        raise RuntimeError(f"SMOOTHPLAN_CHROMIUM: {failures[0]}")
    why = "; ".join(failures) or "none was found"
    return None, f"{NO_BROWSER}, and {why}: `playwright install chromium`, or on Debian apt-get, installs one"


@contextmanager
def launched() -> Iterator[Browser]:
    """A browser, closed at the end. Where there is none the test is skipped."""
    program, reason = chromium()
    if program is None:
        pytest.skip(reason)
    with sync_playwright() as playwright, _launch(playwright, program) as browser:
        yield browser


class Watched:
    """A page that is being looked at, with all that it did wrong so far.

    Args:
        browser: where it is opened.
        file: the page.
        options: of the context, such as `has_touch`.
    """

    def __init__(self, browser: Browser, file: Path, **options: Any) -> None:
        self.faults: list[str] = []
        context = browser.new_context(accept_downloads=True, **options)
        context.set_default_timeout(PATIENCE * 1e3)
        self.page: Page = context.new_page()
        self.page.on("console", lambda message: self.faults.append(f"console: {message.text}"))
        self.page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        self.page.on("request", lambda request: self._note_request(request.url))
        self.page.goto(file.as_uri())

    def _note_request(self, address: str) -> None:
        if not address.startswith(("file:", "data:", "blob:")):  # which leave no trace outside the machine
            self.faults.append(f"request: {address}")

    def ask(self, script: str, *arguments: Any) -> Any:
        """What a JavaScript function of the arguments, as an array, returns."""
        return self.page.evaluate(script, list(arguments))

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Waits until something is so."""
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, f"it did not happen that {what}; faults: {self.faults}"
            self.page.wait_for_timeout(20)


if __name__ == "__main__":
    found, why_not = chromium()
    if found is None and os.environ.get("SMOOTHPLAN_NO_BROWSER") != "1":
        sys.exit(why_not)
