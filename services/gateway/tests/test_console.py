"""The console's files as the gateway serves them, and their sources."""

from __future__ import annotations

import gzip
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import httpx
import pytest

from .conftest import Running

CONSOLE = Path(__file__).parents[3] / "libs" / "console"


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
    with httpx.Client(base_url=gateway.url, trust_env=False) as http:
        pages = [http.get(path) for path in ("/console", "/console/", "/console/jobs/a/decisions?x=1")]
        assert {page.status_code for page in pages} == {200}
        assert len({page.text for page in pages}) == 1
        for page in pages:
            assert page.headers["cache-control"] == "no-cache"
            policy = page.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
        assert not re.search(r"<script(?![^>]* src=)", pages[0].text), "inline scripts are not allowed to run"
        assert not re.search(r"(src|href)=\"(https?:)?//", pages[0].text), "nothing comes from elsewhere"


def test_assets_are_kept_for_good_and_compressed_for_whoever_takes_it(gateway: Running) -> None:
    with httpx.Client(base_url=gateway.url, trust_env=False) as http:
        assets = re.findall(r'(?:src|href)="(/console/assets/[^"]+)"', http.get("/console/").text)
        assert len(assets) == 2
        compressed = 0
        for asset in assets:
            plain = http.get(asset, headers={"Accept-Encoding": "identity"})
            assert "immutable" in plain.headers["cache-control"]
            with http.stream("GET", asset, headers={"Accept-Encoding": "gzip"}) as answer:
                assert answer.headers["content-encoding"] == "gzip"
                raw = b"".join(answer.iter_raw())
            assert gzip.decompress(raw) == plain.content
            compressed += len(raw)
        assert compressed <= 120_000
        assert http.get("/console/assets/none.js").status_code == 404
        assert http.get("/console/assets/..%2F..%2FPROBLEMS.md").headers["content-type"].startswith("text/html")
