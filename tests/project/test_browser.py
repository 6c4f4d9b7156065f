"""The built book in a browser without a network: its pages load, and what is on them can be read.

What `make book` left in book/_build/html is served from this machine and read with the system's
Chromium. Where there is no such book, no Chromium or no Playwright, the skip's reason says so.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import shutil
import threading
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

ROOT = Path(__file__).parents[2]
HTML = Path(os.environ.get("BOOK_HTML", ROOT / "book" / "_build" / "html"))
TOC = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
PAGES = [TOC["root"]] + [entry["file"] for part in TOC["parts"] for entry in part["chapters"]]
NOTEBOOKS = [page for page in PAGES if (ROOT / "book" / f"{page}.ipynb").is_file()]
SOURCES = [path for path in (ROOT / "book").glob("*.*") if path.suffix in (".ipynb", ".md", ".yml")]

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
# No sandbox: containers have no user namespaces. The rest keeps the browser off the network.
FLAGS = [
    *(
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
    ),
    *("--disable-component-update", "--disable-sync", "--no-first-run", "--disable-extensions"),
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]
PATIENCE = 600_000  # milliseconds; a busy machine is not a failure
PHONE_WIDTH = 390
LARGEST_PAGE = 1_500_000  # bytes, with its images


def reason_to_skip() -> str | None:
    """Return why there is nothing to look at, or nothing to look with."""
    if CHROMIUM is None:
        return f"no Chromium: none of {', '.join(NAMES)} is installed"
    index = HTML / "index.html"
    if not index.is_file():
        return "the book is not built: make book"
    if index.stat().st_mtime < max(path.stat().st_mtime for path in SOURCES):
        return "the built book is older than its sources: make book"
    return None


pytestmark = pytest.mark.skipif(reason_to_skip() is not None, reason=reason_to_skip() or "")
FACTS, CONTRAST = (
    (Path(__file__).parent / name).read_text(encoding="utf-8")
    for name in ("page_facts.js", "page_contrast.js")
)
TOO_WIDE = """() => [...document.querySelectorAll("article *")]
  .filter((e) => e.getBoundingClientRect().right > innerWidth + 1 && e.checkVisibility())
  .filter((e) => !e.parentElement.closest("pre, .pst-scrollable-table-container, mjx-container"))
  .filter((e) => e.closest("figcaption")
    || !e.parentElement.closest("figure")
    || getComputedStyle(e.parentElement.closest("figure")).overflowX !== "auto")
  .map((e) => `${e.tagName.toLowerCase()}.${e.className}: ${e.textContent.trim().slice(0, 40)}`)"""


@dataclass(frozen=True)
class Visit:
    """What was seen on a page.

    Attributes:
        errors: Errors on the console, requests that failed, and requests that left this machine.
        facts: What page_facts.js tells.
        width: Of the whole page on a phone, in pixels.
        too_wide: What sticks out there.
        faint: Texts with too little contrast, by theme.
        weight: Bytes of the page and its images.
    """

    errors: list[str]
    facts: dict[str, Any]
    width: int
    too_wide: list[str]
    faint: dict[str, list[str]]
    weight: int


class Quiet(SimpleHTTPRequestHandler):
    """Serves files and says nothing."""

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """Where the book is served."""
    handler = functools.partial(Quiet, directory=str(HTML))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with playwright.sync_playwright() as running:
        chromium = running.chromium.launch(
            executable_path=CHROMIUM, args=FLAGS, timeout=PATIENCE, headless=True
        )
        yield chromium
        chromium.close()


def open_context(browser: Browser, home: str, errors: list[str]) -> BrowserContext:
    """A fresh profile that notes every error, and every request that leaves this machine."""
    context = browser.new_context(color_scheme="light", reduced_motion="reduce")
    context.set_default_timeout(PATIENCE)

    def note(page: Page) -> None:
        page.on(
            "console",
            lambda message: errors.append(message.text) if message.type == "error" else None,
        )
        page.on("pageerror", lambda error: errors.append(str(error)))
        # What is still loading when a page is left is aborted, and is no fault.
        page.on(
            "requestfailed",
            lambda request: (
                errors.append(f"failed: {request.url}")
                if request.failure != "net::ERR_ABORTED"
                else None
            ),
        )
        page.on(
            "response",
            lambda response: (
                errors.append(f"{response.status}: {response.url}")
                if response.status >= 400
                else None
            ),
        )
        page.on(
            "request",
            lambda request: (
                None
                if request.url.startswith((home, "data:", "blob:"))
                else errors.append(f"leaves this machine: {request.url}")
            ),
        )

    context.on("page", note)
    return context


@pytest.fixture(scope="module")
def visit(browser: Browser, site: str) -> Callable[[str], Visit]:
    @functools.cache
    def look(name: str) -> Visit:
        errors: list[str] = []
        with open_context(browser, site, errors) as context:
            page = context.new_page()
            page.goto(f"{site}/{name}.html")
            facts = page.evaluate(FACTS)
            page.evaluate("document.querySelectorAll('details').forEach((d) => (d.open = true))")
            faint = {}
            for theme in ("light", "dark"):
                page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
                faint[theme] = page.evaluate(CONTRAST)
            page.set_viewport_size({"width": PHONE_WIDTH, "height": 844})
            width = page.evaluate("document.documentElement.scrollWidth")
            too_wide = page.evaluate(TOO_WIDE)
        images = {HTML / image["source"] for image in facts["images"]}
        weight = sum(path.stat().st_size for path in images | {HTML / f"{name}.html"})
        return Visit(errors, facts, width, too_wide, faint, weight)

    return look


every_page = pytest.mark.parametrize("name", PAGES)


@every_page
def test_page_loads_without_an_error_or_a_request_to_elsewhere(
    visit: Callable[[str], Visit], name: str
) -> None:
    seen = visit(name)
    assert seen.errors == []
    assert seen.facts["language"] == "en"
    assert seen.facts["title"]


@every_page
def test_mathematics_is_typeset(visit: Callable[[str], Visit], name: str) -> None:
    facts = visit(name).facts
    assert facts["mathErrors"] == []
    assert facts["rawMathematics"] == []
    assert facts["typeset"] == facts["mathematics"]


def test_there_is_mathematics_to_typeset(visit: Callable[[str], Visit]) -> None:
    assert visit("04-noising").facts["typeset"] > 20


@every_page
def test_figures_are_there_with_words_for_those_who_do_not_see(
    visit: Callable[[str], Visit], name: str
) -> None:
    images = visit(name).facts["images"]
    assert [image["source"] for image in images if image["width"] == 0 or not image["shown"]] == []
    assert [image["source"] for image in images if len(image["alt"]) < 20] == []
    assert images or not name[0].isdigit(), "a chapter without a figure"


@every_page
def test_headings_descend_one_by_one_and_everything_has_a_name(
    visit: Callable[[str], Visit], name: str
) -> None:
    facts = visit(name).facts
    levels = facts["headings"]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert facts["silent"] == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@every_page
def test_text_stands_out(visit: Callable[[str], Visit], name: str, theme: str) -> None:
    assert visit(name).faint[theme] == []


@every_page
def test_page_fits_a_phone(visit: Callable[[str], Visit], name: str) -> None:
    seen = visit(name)
    assert seen.width <= PHONE_WIDTH, seen.too_wide


@every_page
def test_page_is_light(visit: Callable[[str], Visit], name: str) -> None:
    assert visit(name).weight < LARGEST_PAGE


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebook_can_be_downloaded(visit: Callable[[str], Visit], site: str, name: str) -> None:
    links = visit(name).facts["downloads"]
    assert f"{site}/_sources/{name}.ipynb" in links
    with urllib.request.urlopen(links[0]) as response:
        assert response.status == 200
        assert json.load(response)["nbformat"] == 4


def test_search_by_keyboard_finds_task_masking(browser: Browser, site: str) -> None:
    errors: list[str] = []
    with open_context(browser, site, errors) as context:
        page = context.new_page()
        page.goto(f"{site}/index.html")
        page.keyboard.press("Control+k")
        page.keyboard.type("task masking")
        page.keyboard.press("Enter")
        page.wait_for_url("**/search.html?q=task+masking*")
        first = page.locator("#search-results li a").first
        first.wait_for()
        links = page.locator("#search-results li a").evaluate_all("(a) => a.map((e) => e.href)")
        assert any("06-task-masked-training.html" in link for link in links)
    assert errors == []


def test_theme_switch_works_and_is_remembered(browser: Browser, site: str) -> None:
    errors: list[str] = []
    read = (
        "[document.documentElement.dataset.theme, getComputedStyle(document.body).backgroundColor]"
    )
    with open_context(browser, site, errors) as context:
        page = context.new_page()
        page.goto(f"{site}/04-noising.html")
        theme, background = page.evaluate(read)
        assert theme == "light"
        page.locator("button.theme-switch-button:visible").first.click()
        theme, darker = page.evaluate(read)
        assert theme == "dark"
        assert darker != background
        page.goto(f"{site}/05-convgnp.html")
        assert page.evaluate(read)[0] == "dark"
    assert errors == []


def test_a_page_opened_as_a_file_shows_mathematics_and_figures(browser: Browser) -> None:
    errors: list[str] = []
    home = HTML.resolve().as_uri()
    with open_context(browser, home, errors) as context:
        page = context.new_page()
        page.goto(f"{home}/04-noising.html")
        facts = page.evaluate(FACTS)
    assert facts["typeset"] == facts["mathematics"] > 0
    assert all(image["width"] > 0 for image in facts["images"])
    assert [error for error in errors if error.startswith("leaves")] == []
