"""Draws Mermaid's flowcharts as rows of boxes and arrows in plain HTML, which the strict policy lets pass.

GitHub draws the same text by itself. Mermaid's own script writes styles into the page, which the policy forbids. A row
here is a statement there, in the author's order, and a framed part is a subgraph. Colours are in `theme/`. The grammar
is what our READMEs use; anything else is refused:

    statement = nodes {arrow nodes} {";" statement}      nodes = node {"&" node}
    node      = id ["[name: description]"]               arrow = "-->" | "-- label -->" | "-. label .->"
    part      = "subgraph" id ["[name: description]"], statements, "end"
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from itertools import accumulate, groupby
from typing import NamedTuple

SHAPE = r"""(?:\[\((?P<store>[^)]*)\)\]| ?\["(?P<quoted>[^"]*)"\]| ?\[(?P<plain>[^]"]*)\])?"""
NODE = re.compile(rf"(?P<id>\w+){SHAPE}")
PART = re.compile(rf"subgraph (?P<id>\w+){SHAPE}")
ARROW = re.compile(r"\s*(?:-->|-- (?P<label>.+?) -->|-\. (?P<hinted>.+?) \.->)\s*")
AND = re.compile(r"\s*&\s*")
SOLID, DOTTED = "→", "⇢"


class Node(NamedTuple):
    """A node where it is mentioned. ``text``: name and description, empty where another place has them."""

    id: str
    text: str


class Arrow(NamedTuple):
    """An arrow with its label, which may be empty."""

    head: str
    label: str


Row = list[list[Node] | Arrow]
"""A statement: nodes side by side, an arrow, nodes, and so on."""


def drawn(lines: list[str]) -> str:
    """Return a flowchart as HTML. Raises ValueError with the statement that is not understood."""
    head, *body = [line.strip() for line in lines]
    if not head.startswith("flowchart "):
        raise ValueError(f"{head!r} begins no flowchart")
    read = [each for line in body for each in _statements(line)]
    depths = list(accumulate(isinstance(each, Node) - (each is None) for each in read))
    if min(depths, default=0) < 0 or (depths and depths[-1]):
        raise ValueError("a subgraph has no end, or an end no subgraph")
    names = {node.id: _split(node.text)[0] for each in read for node in _nodes(each) if node.text}
    return '<div class="flow">\n' + "\n".join(_html(read, names)) + "\n</div>"


def _statements(line: str) -> Iterator[Node | Row | None]:
    """Yield the subgraph that a line begins, its statements, or None where it ends a subgraph."""
    if line == "end":
        yield None
    elif found := PART.fullmatch(line):
        yield Node(found["id"], _text(found) or found["id"])
    else:
        yield from (_row(each.strip()) for each in line.split(";"))


def _row(statement: str) -> Row:
    row: Row = [[]]
    place = 0
    while found := NODE.match(statement, place):
        nodes = row[-1]
        assert isinstance(nodes, list)
        nodes.append(Node(found["id"], _text(found)))
        place = found.end()
        if place == len(statement):
            return row
        if arrow := ARROW.match(statement, place):
            label = (arrow["label"] or arrow["hinted"] or "").strip('" ')
            row += [Arrow(DOTTED if arrow["hinted"] else SOLID, label), []]
            place = arrow.end()
        elif joined := AND.match(statement, place):
            place = joined.end()
        else:
            break
    raise ValueError(f"{statement!r} is not understood at {statement[place:]!r}")


def _text(found: re.Match[str]) -> str:
    return (found["store"] or found["quoted"] or found["plain"] or "").strip()


def _nodes(read: Node | Row | None) -> list[Node]:
    if isinstance(read, Node):
        return [read]
    return [node for each in read or () if isinstance(each, list) for node in each]


def _split(text: str) -> tuple[str, str]:
    name, _, description = text.partition(": ")
    return name, description


def _html(read: list[Node | Row | None], names: dict[str, str]) -> Iterator[str]:
    """Yield the lines. Nodes without arrows, one after the other, share a row."""
    for alone, group in groupby(read, lambda each: isinstance(each, list) and len(each) == 1):
        if alone:
            yield f"<div>{' '.join(_box(node, names) for each in group for node in _nodes(each))}</div>"
            continue
        for each in group:
            if each is None:
                yield "</div>"
            elif isinstance(each, Node):
                yield f'<div class="part">{_named(each, names)}'
            else:
                yield f"<div>{' '.join(_piece(piece, names) for piece in each)}</div>"


def _piece(piece: list[Node] | Arrow, names: dict[str, str]) -> str:
    if isinstance(piece, Arrow):
        return f"<i>{escape(piece.label)} {piece.head}</i>" if piece.label else f"<i>{piece.head}</i>"
    return f"<span>{' '.join(_box(node, names) for node in piece)}</span>"


def _box(node: Node, names: dict[str, str]) -> str:
    return f'<span class="box">{_named(node, names)}</span>'


def _named(node: Node, names: dict[str, str]) -> str:
    name, description = _split(node.text) if node.text else (names.get(node.id, node.id), "")
    return f"<b>{escape(name)}</b>" + (f" {escape(description)}" if description else "")
