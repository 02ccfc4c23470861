"""``python -m tests.charts.values_table``: the table of values in charts/README.md, from values.yaml."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from tests.charts.rendering import CHART

README = CHART.parent / "README.md"
BEGIN, END = "<!-- values: begin -->", "<!-- values: end -->"
EXPLAINED = re.compile(r"^\s*# -- (.+)$")


@dataclass(frozen=True, slots=True)
class Row:
    path: str
    default: Any
    text: str


def rows() -> list[Row]:
    """Every value that has an explanation above it, or no values below it."""
    text = (CHART / "values.yaml").read_text()
    return [*_rows(yaml.compose(text), yaml.safe_load(text), text.splitlines(), ())]


def _rows(node: yaml.Node | None, values: Any, lines: list[str], at: tuple[str, ...]) -> Iterator[Row]:
    assert isinstance(node, yaml.MappingNode)
    for key, below in node.value:
        path, value = (*at, key.value), values[key.value]
        explained = EXPLAINED.match(lines[key.start_mark.line - 1])
        nested = isinstance(value, dict) and value and not below.flow_style
        if explained or not nested:
            yield Row(".".join(path), None if nested else value, explained[1] if explained else "")
        if nested and path[0] != "services" and path[-1] != "resources":
            yield from _rows(below, value, lines, path)


def table() -> str:
    lines = ["| value | default | |", "| --- | --- | --- |"]
    for row in rows():
        default = "" if row.default is None else f"`{json.dumps(row.default)}`"
        lines.append(f"| `{row.path}` | {default} | {row.text} |")
    return "\n".join(lines)


def filled(readme: str) -> str:
    """The README with the present table."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    README.write_text(filled(README.read_text()))
