"""Flowcharts of READMEs as the site draws them: nothing of them is lost, and what is not understood is an error."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.docs.site import module
from tests.e2e.typed import ROOT

BLOCK = re.compile(r"^```mermaid\n(.*?)\n```$", re.DOTALL | re.MULTILINE)
FILES = sorted(file for file in module("assemble").Site(ROOT).files if "```mermaid" in (ROOT / file).read_text())
words = (
    st.text("abcxyz &<>'/.,", min_size=1, max_size=12).map(str.strip).filter(lambda text: text and text[0].isalpha())
)


def text_of(html: str) -> str:
    return unescape(" ".join(re.sub(r"<[^>]*>", " ", html).split()))


@pytest.mark.parametrize("file", FILES)
def test_every_word_and_every_arrow_of_a_readme_is_drawn(file: str) -> None:
    drawn = module("flowcharts").drawn
    for source in BLOCK.findall((ROOT / file).read_text()):
        html = drawn(source.splitlines())
        arrows = re.findall(r"-->|\.->", source)
        assert html.count("→") + html.count("⇢") == len(arrows)
        assert html.count("<div") == html.count("</div>")
        labels = re.findall(r"\[\(?\"?([^\]\")]+)", source) + re.findall(r"-[-.] (.+?) (?:--|\.-)>", source)
        for label in labels:
            missing = set(re.findall(r"[\w./'-]+", label)) - set(re.findall(r"[\w./'-]+", text_of(html)))
            assert missing == set(), f"{file}: {label}"


@given(st.lists(words, min_size=1, max_size=4), words, words)
def test_names_labels_and_descriptions_stand_in_their_order(names: list[str], label: str, description: str) -> None:
    nodes = [f'n{number}["{name}: {description}"]' for number, name in enumerate(names)]
    html = module("flowcharts").drawn(["flowchart LR", f" -- {label} --> ".join(nodes)])
    assert text_of(html) == text_of(
        f" {label} → ".join(f"{name} {description}" for name in names).replace("&", "&amp;").replace("<", "&lt;")
    )


@pytest.mark.parametrize(
    "lines",
    [
        ["sequenceDiagram", "a->>b: x"],
        ["flowchart LR", "a ==> b"],
        ["flowchart LR", "a{really?} --> b"],
        ["flowchart LR", "a -->"],
        ["flowchart LR", "subgraph a", "b"],
        ["flowchart LR", "b", "end"],
        ["flowchart LR", "end", "subgraph a"],
    ],
)
def test_what_is_not_understood_is_refused(lines: list[str]) -> None:
    with pytest.raises(ValueError):
        module("flowcharts").drawn(lines)


def test_a_page_with_another_diagram_is_lost(tmp_path: Path) -> None:
    pages = tmp_path / "libs/docs/pages"
    pages.mkdir(parents=True)
    (pages.parent / "site.toml").write_text('[Home]\nindex = ""\n')
    (pages / "index.md").write_text("# A\n\n```mermaid\ngantt\n```\n")
    assemble = module("assemble")
    with pytest.raises(assemble.Lost, match=r"index\.md.*gantt"):
        assemble.Site(tmp_path).write(tmp_path / "out")
    (pages / "index.md").write_text("# A\n\n```mermaid\nflowchart LR\na --> b\n")
    with pytest.raises(assemble.Lost, match=r"index\.md.*no end"):
        assemble.Site(tmp_path).write(tmp_path / "out")
