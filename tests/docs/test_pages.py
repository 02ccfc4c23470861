"""The documentation as it is written: links, fences, commands, subjects and rules.

A fence of a tutorial or of a page of the site's own is run, or names the test that runs it elsewhere. Those of READMEs
are read at least: Python compiles, YAML loads, a shell understands the commands, and `stretto` knows their options.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from stretto_cli.main import COMMANDS, load
from stretto_core.planner.tuning_rules import TuningRules
from stretto_wire import JobSpec
from stretto_wire.contract.registry import CHANNELS
from stretto_wire.jobspec.schema import job_schema

from tests.docs.screenshots import BYTES_MAX
from tests.docs.site import DOCS, OWN, module
from tests.e2e.tutorials import TUTORIALS, Fence, fences
from tests.e2e.typed import ROOT

PAGES = sorted(OWN.rglob("*.md"))
TYPED = (*PAGES, *sorted(TUTORIALS.glob("*.md")))
"""Pages whose every fence is run."""
FILES = sorted({ROOT / file for file in module("assemble").Site(ROOT).files} | set(TYPED))
GENERATED = {name for name in module("references").FILES if name.endswith(".md")}
WORDS_MAX = 25
PLACEHOLDERS = {"JOB": "job", "POD": "job/worker-0", "…": ""}


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", TYPED, ids=name_of)
def test_every_fence_is_run_here_or_names_its_test(page: Path) -> None:
    """Tutorials are run by tests/e2e/test_tutorials.py; elsewhere YAML is a job, and `text` shows what is printed."""
    unrun = [
        fence
        for fence in fences(page)
        if not (fence.tested or fence.language == "text" or page.parent == TUTORIALS or _is_job(fence))
    ]
    assert unrun == []


def _is_job(fence: Fence) -> bool:
    if fence.language == "yaml":
        JobSpec.parse(yaml.safe_load(fence.text))
    return fence.language == "yaml"


def test_the_page_of_the_job_file_has_each_field_of_each_part() -> None:
    """Parts that the schema states in their place are named by their titles."""
    page = (OWN / "reference/job-file.md").read_text()

    def parts(within: object, name: str = "") -> Iterator[tuple[str, set[str]]]:
        if isinstance(within, dict):
            if isinstance(fields := within.get("properties"), dict):
                yield within.get("title", name), set(fields)
            for key, each in within.items():
                yield from parts(each, key)
        elif isinstance(within, list):
            for each in within:
                yield from parts(each)

    schema = job_schema()
    found = [*parts(schema["$defs"])]
    assert {"Plan", "DataPartition"} <= {name for name, _ in found}
    for name, fields in found:
        section = page.split(f"\n## {name}\n")[1].split("\n## ")[0]
        assert fields <= set(re.findall(r"^\| `(\w+)` ", section, re.MULTILINE))


@pytest.mark.parametrize("page", FILES, ids=name_of)
def test_every_fence_can_be_read(page: Path) -> None:
    for fence in fences(page):
        if fence.language == "python":
            compile(fence.text, name_of(page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        elif fence.language == "yaml":
            list(yaml.safe_load_all(fence.text))
        elif fence.language == "json":
            json.loads(fence.text)
        elif fence.language == "sh":
            done = subprocess.run(["bash", "-n"], input=fence.text, text=True, capture_output=True, check=False)
            assert done.stderr == "", fence.text
            for line in fence.text.splitlines():
                _understood(line)


def _understood(line: str) -> None:
    """Raise an exception of Typer for a command of ours that has no such option."""
    for part in re.split(r"\s(?:\||&&|;)\s|\s&$", line):
        found = re.match(r"(?:\.venv/bin/)?stretto ([a-z-]+)\b(.*)", part)
        if found and found[1] in COMMANDS:
            words = [PLACEHOLDERS.get(word, word) for word in shlex.split(found[2].partition(" > ")[0], comments=True)]
            load(found[1]).make_context(found[1], [word for word in words if word], resilient_parsing=False)


def test_a_command_with_an_unknown_option_is_found() -> None:
    with pytest.raises(Exception, match="No such option"):
        _understood("stretto jobs --nonsense | head")


def test_every_subject_and_type_that_a_page_names_is_in_the_registry() -> None:
    known = {(each.kind, each.service, each.name) for each in CHANNELS}
    named = [
        (name_of(page), *found)
        for page in FILES
        for found in re.findall(r"\b(evt|rpc)\.v1\.([a-z]+)\.([a-z-]+)", page.read_text())
        + [("evt", *each) for each in re.findall(r"\bstretto\.([a-z]+)\.([a-z-]+)\.v1\b", page.read_text())]
    ]
    assert len(named) > 50
    assert [each for each in named if each[1:] not in known] == []


def test_the_rules_that_the_page_of_data_workers_names_exist() -> None:
    text = (OWN / "explanation" / "data-workers.md").read_text()
    named = set(re.findall(r"`([a-z_]+)`", text.partition("## When they")[2].partition("\n## ")[0]))
    assert named == {each.name for each in dataclasses.fields(TuningRules)} - {"same"}


def test_every_page_is_on_the_site() -> None:
    site = module("assemble").Site(ROOT)
    assert {path for path in PAGES} <= {ROOT / file for file in site.files}
    on_site = {file for file in site.files if file.startswith("services/")}
    assert {name_of(path) for path in ROOT.glob("services/*/README.md")} <= on_site


def test_pictures_are_shown_few_and_small() -> None:
    pictures = sorted(OWN.rglob("*.png"))
    text = "".join(page.read_text() for page in TYPED)
    assert [each.name for each in pictures if f"pictures/{each.name})" not in text] == []
    assert len(pictures) <= 6
    assert [each.name for each in pictures if each.stat().st_size > BYTES_MAX] == []


def test_the_root_is_short_and_leads_to_the_site() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 60
    assert "`/console/docs/`" in text


def sentences(text: str) -> list[str]:
    """Return the sentences of the prose: no fences, tables, headings; a colon or semicolon ends a sentence, too."""
    prose = re.sub(r"^```.*?^```$|<!--.*?-->|^[|#> ][^\n]*$", "", text, flags=re.DOTALL | re.MULTILINE)
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", prose)
    parts = [" ".join(part.split()) for part in re.split(r"\n\s*\n|^(?:-|\d+\.) ", plain, flags=re.MULTILINE)]
    return [each for part in parts for each in re.split(r"(?<=[.:;?!])\s", part) if each]


def test_prose_is_found_between_headings_tables_and_fences() -> None:
    text = "# T\n\nOne\n[two](x.md). Three: four.\n\n| a |\n\n```sh\nls\n```\n- five\n- six\n"
    assert sentences(text) == ["One two.", "Three:", "four.", "five", "six"]


@pytest.mark.parametrize("page", [ROOT / "README.md", *TYPED], ids=name_of)
def test_a_sentence_has_at_most_25_words(page: Path) -> None:
    """Pages that are generated quote the code, and are left out."""
    found = [] if f"reference/{page.name}" in GENERATED else sentences(page.read_text())
    assert [each for each in found if len(each.split()) > WORDS_MAX] == []


def test_what_is_lost_is_told(tmp_path: Path) -> None:
    assemble = module("assemble")
    pages = tmp_path / DOCS.relative_to(ROOT) / "pages"
    pages.mkdir(parents=True)
    (pages.parent / "site.toml").write_text('[Home]\nindex = ""\nother = "other.md"\n')
    (tmp_path / "other.md").write_text("# Other\n\n## One\n\nHere.\n\n## Two\n\nThere, see [one](#one).\n")
    for text, fault in (
        ("# A\n\n[x](../../../none.md)\n", "a link to"),
        ("# A\n\n[x](../../../other.md#three)\n", "no such heading"),
        ("# A\n\n<!-- include: other.md#three -->\n", "0 such sections"),
        ("# A\n\n<!-- include: other.md#one -->\n\n<!-- body: other.md#one -->\n", "other.md#one: on"),
        ("no title\n", "begins with no title"),
    ):
        (pages / "index.md").write_text(text)
        with pytest.raises(assemble.Lost, match=fault):
            assemble.Site(tmp_path).write(tmp_path / "out")
    (pages / "index.md").write_text("# A\n\n<!-- include: other.md#one -->\n")
    site = assemble.Site(tmp_path)
    home, other = (site.text(page) for page in site.pages)
    assert "## One { #one }\n\nHere." in home
    assert "Here." not in other, "a fact stands once"
    assert "[one](index.md#one)" in other
    assert "- [One](index.md#one)" in other, "the page says where its section went"


def test_a_link_reads_well_where_files_have_become_pages(tmp_path: Path) -> None:
    assemble = module("assemble")
    pages = tmp_path / DOCS.relative_to(ROOT) / "pages"
    pages.mkdir(parents=True)
    (pages.parent / "site.toml").write_text('[Home]\nindex = ""\n[Inside]\nother = "OTHER.md"\n')
    (tmp_path / "OTHER.md").write_text(
        "# Another page\n\n[OTHER.md](OTHER.md) has [all](OTHER.md#all).\n\n## All\n\nHere.\n"
    )
    (pages / "index.md").write_text("# A\n\n[OTHER.md](../../../OTHER.md), or [the other](../../../OTHER.md)\n")
    site = assemble.Site(tmp_path)
    home, other = (site.text(page) for page in site.pages)
    assert "[Another page](inside/other.md), or [the other](inside/other.md)" in home
    assert "Another page has [all](other.md#all)." in other
