"""A headless Chromium for tests of pages: found on this machine, and watched for what a page may not do."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")

ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

PATIENCE = 60.0
"""Seconds until something that must happen is given up: many times what a busy machine needs."""

OUR_OWN = ("file:", "data:", "blob:")
"""Addresses that leave no trace outside the machine."""


def chromium() -> str:
    """The program. Where there is none the test fails, unless the environment has SMOOTHPLAN_NO_BROWSER=1."""
    found = os.environ.get("SMOOTHPLAN_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is not None:
        return found
    if os.environ.get("SMOOTHPLAN_NO_BROWSER") == "1":
        pytest.skip("no browser, and SMOOTHPLAN_NO_BROWSER=1")
    pytest.fail(
        f"tests of pages need a Chromium, and none of {', '.join(NAMES)} is on the path: install one (Debian: apt-get "
        "install chromium), name it in SMOOTHPLAN_CHROMIUM, or leave these tests out by SMOOTHPLAN_NO_BROWSER=1",
        pytrace=False,
    )


@contextmanager
def launched() -> Iterator[Browser]:
    """A browser, closed at the end."""
    program = chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


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
        if not address.startswith(OUR_OWN):
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
