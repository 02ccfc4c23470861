"""The console's files as the gateway serves them, and their sources."""

from __future__ import annotations

import gzip
import importlib.util
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from urllib.parse import urljoin

import httpx
import pytest
import stretto_gateway
from fastapi import FastAPI
from stretto_gateway import problems
from stretto_gateway.http import console

from ..gateway_process import Running

HASH = re.compile(r"\.[0-9a-f]{8}\.")
CONSOLE = Path(__file__).parents[4] / "libs" / "console"


@pytest.fixture(scope="module")
def builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("console_build", CONSOLE / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_build_is_that_of_these_sources(builder: ModuleType) -> None:
    assert builder.DIGEST.read_text().strip() == builder.digest(), "the console has changed: run `make console`"


def test_the_same_sources_give_the_same_bytes(builder: ModuleType, tmp_path: Path) -> None:
    if not (builder.NODE.exists() and builder.MODULES.exists()):
        pytest.skip("Node and its packages are not installed: `make console` does it")
    builder.build(tmp_path)
    committed = builder.BUILD
    files = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {path.relative_to(committed) for path in committed.rglob("*") if path.is_file()} - {
        builder.DIGEST.relative_to(committed)
    }
    assert all((tmp_path / name).read_bytes() == (committed / name).read_bytes() for name in files)


def test_every_address_is_a_page_under_a_strict_policy(gateway: Running) -> None:
    with httpx.Client(base_url=gateway.url, trust_env=False, timeout=60) as http:
        pages = [http.get(path) for path in ("/console", "/console/", "/console/jobs/a/decisions?x=1", "/console/a/b/")]
        assert {page.status_code for page in pages} == {200}
        for page in pages:
            assets = [
                urljoin(str(page.url), path) for path in re.findall(r'(?:src|href)="([^"]+/assets/[^"]+)"', page.text)
            ]
            assert len(assets) == 2
            assert all(http.get(asset).headers["content-type"].startswith("text/") for asset in assets)
            assert not re.search(r'(src|href)="/', page.text), "a proxy may serve it below a path of its own"
        for page in pages:
            assert page.headers["cache-control"] == "no-cache"
            policy = page.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
        assert not re.search(r"<script(?![^>]* src=)", pages[0].text), "inline scripts are not allowed to run"
        assert not re.search(r"(src|href)=\"(https?:)?//", pages[0].text), "nothing comes from elsewhere"


def test_assets_are_kept_for_good_and_compressed_for_whoever_takes_it(gateway: Running) -> None:
    with httpx.Client(base_url=gateway.url, trust_env=False, timeout=60) as http:
        assets = re.findall(r'(?:src|href)="./(assets/[^"]+)"', http.get("/console/").text)
        assert len(assets) == 2
        compressed = 0
        for asset in assets:
            plain = http.get(f"/console/{asset}", headers={"Accept-Encoding": "identity"})
            assert "immutable" in plain.headers["cache-control"]
            with http.stream("GET", f"/console/{asset}", headers={"Accept-Encoding": "gzip"}) as answer:
                assert answer.headers["content-encoding"] == "gzip"
                raw = b"".join(answer.iter_raw())
            assert gzip.decompress(raw) == plain.content
            compressed += len(raw)
        assert compressed <= 120_000
        assert http.get("/console/assets/none.js").status_code == 404
        assert http.get("/console/assets/..%2F..%2FPROBLEMS.md").headers["content-type"].startswith("text/html")


@pytest.fixture
def documentation() -> Iterator[Path]:
    """The build of the documentation, or a page and an asset in its place, which go again."""
    folder = Path(stretto_gateway.__file__).parent / "docs"
    made = not folder.exists()
    if made:
        (folder / "assets").mkdir(parents=True)
        (folder / "index.html").write_text("<!doctype html><title>Stretto</title>")
        (folder / "assets" / "a.0123abcd.css").write_text("body{}")
    yield folder
    if made:
        shutil.rmtree(folder)


async def test_the_documentation_is_served_under_the_policy_of_the_console(documentation: Path) -> None:
    """Pages are found anew each time, assets whose names hold a hash are kept; a path that the build lacks is never
    opened."""
    asset = next(path for path in (documentation / "assets").rglob("*.css") if HASH.search(path.name))
    async with files_only() as http:
        page = await http.get("/console/docs/")
        kept = await http.get(f"/console/docs/{asset.relative_to(documentation)}")
        paths = ("none.html", "..%2FPROBLEMS.md", "assets/..%2F..%2Fapp.py")
        lost = [await http.get(f"/console/docs/{path}") for path in paths]
        moved = await http.get("/console/docs")
        bare = await http.get("/console/docs/index")
        policy_of_console = (await http.get("/console/")).headers["content-security-policy"]
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assert page.headers["cache-control"] == "no-cache"
    assert "immutable" in kept.headers["cache-control"]
    assert moved.headers["location"] == "docs/"
    assert bare.headers["location"] == "index.html"
    assert [each.status_code for each in lost] == [404, 404, 404]
    assert lost[0].json()["remedy"] == "begin at /console/docs/"
    ours, theirs = (set(each.split("; ")) for each in (page.headers["content-security-policy"], policy_of_console))
    assert {each.split()[0] for each in ours ^ theirs} == {"trusted-types"}


async def test_a_gateway_without_the_documentation_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "_DOCS", "none")
    async with files_only() as http:
        answer = await http.get("/console/docs/how-to/upgrade.html")
    assert answer.status_code == 404
    assert "run `make docs`" in answer.json()["remedy"]


def files_only() -> httpx.AsyncClient:
    """Only the routes of the module: no bus is needed for files."""
    console._names.cache_clear()
    console._read.cache_clear()
    made = FastAPI()
    problems.install(made)
    made.include_router(console.routes())
    return httpx.AsyncClient(transport=httpx.ASGITransport(made), base_url="http://gateway")
