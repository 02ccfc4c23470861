"""Every page of the site in a real browser, under the gateway's policy: nothing is refused, or comes from outside."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from stretto_gateway.http import console

from tests.docs.site import module

browser_of = pytest.importorskip("playwright.sync_api", reason="needs playwright: `make console-test` installs it")
CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium, Debian's package chromium"),
    pytest.mark.slow,
    pytest.mark.night,
]
PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 900}


class Handler(SimpleHTTPRequestHandler):
    """Serves files with the headers of the gateway."""

    def end_headers(self) -> None:
        for name, value in console._HEADERS["docs"].items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Stay silent."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site") / "docs"
    module("build").build(target)
    return target


@pytest.fixture(scope="module")
def address(built: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(built)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser_of.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.mark.parametrize(("scheme", "size"), [("light", PHONE), ("dark", DESK)], ids=["phone", "desk"])
def test_no_page_is_refused_anything(
    scheme: str, size: dict[str, int], built: Path, address: str, chromium: Any
) -> None:
    faults: list[str] = []
    page = chromium.new_context(viewport=size, color_scheme=scheme).new_page()
    page.on("console", lambda told: faults.append(f"{page.url}: {told.text}") if told.type == "error" else None)
    page.on("pageerror", lambda error: faults.append(f"{page.url}: {error}"))
    page.on("request", lambda each: None if each.url.startswith((address, "data:")) else faults.append(each.url))
    for path in sorted(built.rglob("*.html")):
        page.goto(f"{address}/{path.relative_to(built)}")
        if page.evaluate("document.documentElement.scrollWidth - innerWidth") > 0:
            faults.append(f"{page.url}: scrolls sideways")
    assert faults == []


@pytest.mark.parametrize(
    ("words", "file"),
    [
        ("deadline", "how-to/limits-and-deadlines"),
        ("job stuck pending", "explanation/faq"),
        ("use my own data", "explanation/faq"),
        ("out of memory", "how-to/debug-a-job"),
        ("compare with torchrec", "explanation/compared-with"),
    ],
)
def test_a_search_finds_the_page_that_answers_first(address: str, chromium: Any, words: str, file: str) -> None:
    page = chromium.new_context(viewport=DESK).new_page()
    page.goto(f"{address}/index.html", wait_until="networkidle")  # a key before the scripts have run is lost
    page.keyboard.press("/")
    page.keyboard.type(words)
    page.locator(f"a[href*='h={words.replace(' ', '+')}']").first.click()
    page.wait_for_url(f"**/{file}.html*")
