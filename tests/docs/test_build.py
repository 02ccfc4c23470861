"""The built site: it loads nothing from outside, obeys the gateway's policy, and no address in it is dead."""

from __future__ import annotations

import re
import runpy
import shutil
from fnmatch import fnmatch
from html.parser import HTMLParser
from importlib.metadata import distribution
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin

import pytest
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.docs.site import DOCS, module
from tests.e2e.typed import ROOT
from tests.supply_chain import sbom

LOADS = {"src", "srcset", "poster", "data", "action", "formaction", "background", "manifest"}
LINKS_THAT_LOAD = {
    *("preload", "preconnect", "icon", "stylesheet", "prefetch", "dns-prefetch", "manifest", "modulepreload"),
}
AT = "http://site/"


class Page(HTMLParser):
    """Addresses that a page loads, addresses that it leads to, its anchors, and what the policy forbids."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: set[str] = set()
        self.leads: set[str] = set()
        self.anchors: set[str] = set()
        self.forbidden: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        self.loads |= {values[name] for name in LOADS & values.keys() if tag != "object" or name == "data"}
        if tag == "link" and set(values.get("rel", "").split()) & LINKS_THAT_LOAD:
            self.loads.add(values["href"])
        elif tag == "a" and "href" in values:
            self.leads.add(values["href"])
        inline = tag == "script" and "src" not in values and values.get("type") != "application/json"
        if inline or tag == "style" or any(name == "style" or name.startswith("on") for name in values):
            self.forbidden.append(self.get_starttag_text() or tag)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site") / "docs"
    assert module("build").build(target) == len(module("assemble").Site(ROOT).pages)
    return target


@pytest.fixture(scope="module")
def pages(built: Path) -> dict[str, Page]:
    return {urljoin(AT, str(path.relative_to(built))): Page(path.read_text()) for path in built.rglob("*.html")}


def test_nothing_is_loaded_from_outside(built: Path, pages: dict[str, Page]) -> None:
    for address, page in pages.items():
        for load in page.loads - {each for each in page.loads if each.startswith("data:")}:
            found = urldefrag(urljoin(address, load)).url
            assert found.startswith(AT), f"{address} loads {load}"
            assert (built / found.removeprefix(AT)).is_file(), f"{address} loads {load}"
    for style in built.rglob("*.css"):
        for load in re.findall(r"url\(\s*[\"']?([^)\"']+)|@import\s+[\"']([^\"']+)", style.read_text()):
            assert "".join(load).startswith(("data:", "#")), f"{style.name} loads {load}"
    drawings = [path.read_text() for path in built.rglob("*.svg")]
    assert len(drawings) == 2
    assert not any(re.search(r"href=|<script|<style|<image|url\((?!#)", text) for text in drawings)


def test_no_script_and_no_style_stands_in_a_page(pages: dict[str, Page]) -> None:
    assert {address: page.forbidden for address, page in pages.items() if page.forbidden} == {}


def test_no_address_is_dead(built: Path, pages: dict[str, Page]) -> None:
    dead: list[str] = []
    for address, page in pages.items():
        for lead in page.leads:
            found, anchor = urldefrag(urljoin(address, lead))
            if not found.startswith(AT):
                continue
            if (built / found.removeprefix(AT)).suffix == ".ipynb" and (built / found.removeprefix(AT)).is_file():
                continue
            target = pages.get(found + "index.html" if found.endswith("/") else found)
            if target is None or (anchor and unquote(anchor) not in target.anchors):
                dead.append(f"{address} -> {lead}")
    assert dead == []


def test_every_notebook_can_be_downloaded(built: Path, pages: dict[str, Page]) -> None:
    linked = {urljoin(address, lead) for address, page in pages.items() for lead in page.leads}
    notebooks = sorted((ROOT / "examples/notebooks").glob("*.ipynb"))
    assert notebooks
    for notebook in notebooks:
        assert f"{AT}notebooks/{notebook.name}" in linked
        assert (built / "notebooks" / notebook.name).read_bytes() == notebook.read_bytes()


def test_scripts_load_from_our_own_origin_only(built: Path, pages: dict[str, Page]) -> None:
    """The theme names hosts for what no page has (diagrams, formulas); the first script of every page closes them."""
    for path in built.rglob("*.html"):
        first = re.search(r'<script src="([^"]+)"', path.read_text())
        assert first is not None
        assert "createScriptURL: own" in (path.parent / first[1]).read_text()
        assert 'class="mermaid"' not in path.read_text()


def test_the_same_pages_give_the_same_bytes(built: Path, tmp_path: Path) -> None:
    module("build").build(tmp_path / "again")
    files = {path.relative_to(built): path.read_bytes() for path in built.rglob("*") if path.is_file()}
    again = {path.relative_to(tmp_path / "again"): path for path in (tmp_path / "again").rglob("*") if path.is_file()}
    assert files.keys() == again.keys()
    assert [str(name) for name, content in files.items() if again[name].read_bytes() != content] == []


def let_in(name: str, patterns: list[str]) -> bool:
    """Return whether .dockerignore lets a file in: the last pattern that fits it, or a folder above it, decides."""
    parts = Path(name).parts
    places = ["/".join(parts[: n + 1]) for n in range(len(parts))]
    found = True
    for pattern in patterns:
        plain = pattern.removeprefix("!").removeprefix("**/")
        tails = places if "**/" not in pattern else list(parts)
        if any(fnmatch(place, plain) if "/" not in place or "/" in plain else place == plain for place in tails):
            found = pattern.startswith("!")
    return found


def test_an_image_is_built_with_the_whole_site(built: Path, tmp_path: Path) -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    assert not let_in("tests/bench/rows.py", patterns)
    site = module("assemble").Site(ROOT)
    copied = {str(path) for path in site.copied}
    for file in site.files | copied | {str(path.relative_to(ROOT)) for path in DOCS.rglob("*.*")}:
        if let_in(file, patterns):
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, tmp_path / file)
    module("build").build(tmp_path / "site", tmp_path, partial=True)
    made, whole = ({path.relative_to(each) for path in each.rglob("*.*")} for each in (tmp_path / "site", built))
    assert made == whole


def test_what_builds_the_site_runs_on_the_oldest_python() -> None:
    tools = runpy.run_path(str(ROOT / "compose" / "requirements.py"))["DOCS_TOOLS"]
    bounds = {name: distribution(name).metadata["Requires-Python"] or "" for name in tools}
    assert {name: each for name, each in bounds.items() if not SpecifierSet(each).contains("3.11.0")} == {}
    needed = {canonicalize_name(each.name) for name in tools for each in sbom.needs_of(distribution(name))}
    assert needed <= {canonicalize_name(name) for name in tools}
