"""Drawings of the registry, as SVG without styles: a page shows them under any policy, on light and on dark ground.

`services` is the map: the services, and the messages by which one leads to the next. `events` has a row for each event
and a column for each service that reads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import NamedTuple

from stretto_wire.contract.registry import ANYBODY, CHANNELS, DECIDER, SERVICES, Channel

FONT = 'font-family="system-ui, sans-serif" font-size="13"'
BOX, INK, PALE, GROUND = "#3f51b5", "#7a859c", "#c5cae9", "#ffffff"
WIDTH, HEIGHT = 142.0, 38.0
"""Size of a box."""


class PagePlace(NamedTuple):
    """Middle of a box."""

    x: float
    y: float


PLACES = {
    "gateway": PagePlace(90, 50),
    "planner": PagePlace(350, 50),
    "arbiter": PagePlace(610, 50),
    "actuator": PagePlace(870, 50),
    "fitter": PagePlace(350, 160),
    "oom": PagePlace(610, 160),
    "checkpoints": PagePlace(870, 270),
    "profiler": PagePlace(350, 270),
    "dispatcher": PagePlace(610, 270),
    "worker": PagePlace(480, 395),
    "ps": PagePlace(870, 395),
}
NAMES = {"worker": "workers", "ps": "parameter servers"}
MESSAGES = (
    ("gateway", "planner", "job-submitted"),
    ("planner", "arbiter", "plan-proposed"),
    ("arbiter", "actuator", "plan-decided"),
    ("profiler", "fitter", "profile-measured"),
    ("fitter", "planner", "model-fitted"),
    ("profiler", "oom", "profile-measured"),
    ("oom", "arbiter", "oom-forecast"),
    ("dispatcher", "actuator", "job-completed"),
    ("worker", "profiler", "reported"),
    ("worker", "dispatcher", "next-shard"),
    ("checkpoints", "ps", "export-state"),
)
"""Sender, receiver and name of the messages on the map. The registry has to know each of them."""


def services() -> str:
    """Draw the map. Raises ValueError for a message that goes another way by now."""
    parts = [_box("pods", 560, 395, 800, 80, "none", INK)]
    named: set[str] = set()
    for sender, receiver, name in map(_checked, MESSAGES):
        parts.append(_arrow(PLACES[sender], PLACES[receiver], "" if name in named else name))
        named.add(name)
    parts.append(_arrow(PLACES["worker"], PLACES["ps"], "rows, gradients", both=True))
    for name, place in PLACES.items():
        parts.append(_box(NAMES.get(name, name), place.x, place.y, WIDTH, HEIGHT, BOX, BOX))
    parts.append(_text("pods of a job", 172, 425, INK, "start"))
    return _svg(960, 446, "Services of Stretto and the messages between them", parts)


def events() -> str:
    """Draw which service reads which event."""
    rows = [each for each in CHANNELS if each.kind == "evt"]
    readers = [*(each for each in SERVICES if each != "gateway"), DECIDER, "worker", "ps"]
    left, top, row, column = 330, 30, 20, 84
    parts = [_text(name, left + column * n, 16, INK) for n, name in enumerate(readers)]
    for n, channel in enumerate(rows):
        y = top + row * n + 10
        if n == 0 or rows[n - 1].service != channel.service:
            parts.append(_line(0, y - 10, left + column * len(readers) - 40, y - 10, PALE))
            parts.append(_text(channel.service, 0, y + 4, BOX, "start"))
        parts.append(_text(channel.name, 100, y + 4, INK, "start"))
        for reader in _readers(channel):
            parts.append(f'<circle cx="{left + column * readers.index(reader)}" cy="{y}" r="5" fill="{BOX}"/>')
    return _svg(left + column * len(readers) - 40, top + row * len(rows) + 6, "Events and their readers", parts)


def _readers(channel: Channel) -> list[str]:
    return [each for each in channel.readers if each not in (ANYBODY, "gateway")]


def _checked(message: tuple[str, str, str]) -> tuple[str, str, str]:
    sender, receiver, name = message
    for channel in CHANNELS:
        answers = channel.kind in ("rpc", "pod")
        ways = {(each, channel.service) if answers else (channel.service, each) for each in channel.readers}
        if channel.name == name and (sender, receiver) in ways:
            return message
    raise ValueError(f"{name} does not go from {sender} to {receiver}: correct MESSAGES")


def _arrow(begin: PagePlace, end: PagePlace, name: str, *, both: bool = False) -> str:
    (x1, y1), (x2, y2) = _edge(begin, end), _edge(end, begin)
    heads = 'marker-end="url(#head)"' + (' marker-start="url(#tail)"' if both else "")
    line = f'<line x1="{x1:.0f}" y1="{y1:.0f}" x2="{x2:.0f}" y2="{y2:.0f}" stroke="{INK}" stroke-width="1.5" {heads}/>'
    if not name:
        return line
    if abs(y1 - y2) < 1:
        return line + _text(name, (x1 + x2) / 2, y1 - 7, INK)
    if abs(x1 - x2) < 1:
        return line + _text(name, x1 - 6, (y1 + y2) / 2 + 5, INK, "end")
    return line + _text(name, (x1 + x2) / 2 + 14, (y1 + y2) / 2 + 8, INK, "start")


def _edge(of: PagePlace, towards: PagePlace) -> tuple[float, float]:
    """Return the point at which a line between two middles leaves the first one's box."""
    dx, dy = towards.x - of.x, towards.y - of.y
    share = min(side / 2 / abs(d) for side, d in ((WIDTH + 4, dx), (HEIGHT + 4, dy)) if d)
    return of.x + dx * share, of.y + dy * share


def _box(name: str, x: float, y: float, width: float, height: float, fill: str, stroke: str) -> str:
    shape = (
        f'<rect x="{x - width / 2:.0f}" y="{y - height / 2:.0f}" width="{width:.0f}" height="{height:.0f}" rx="8" '
        f'fill="{fill}" stroke="{stroke}"/>'
    )
    return shape + (_text(name, x, y + 5, GROUND) if fill != "none" else "")


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.0f}" y1="{y1:.0f}" x2="{x2:.0f}" y2="{y2:.0f}" stroke="{colour}" stroke-opacity="0.6"/>'


def _text(text: str, x: float, y: float, colour: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" fill="{colour}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(width: float, height: float, title: str, parts: list[str]) -> str:
    return "\n".join(_lines(width, height, title, parts))


def _lines(width: float, height: float, title: str, parts: list[str]) -> Iterator[str]:
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img" {FONT}>'
    yield f"<title>{escape(title)}</title>"
    for name, path in (("head", "M0 0 L8 4 L0 8 z"), ("tail", "M8 0 L0 4 L8 8 z")):
        at = 8 if name == "head" else 0
        yield (
            f'<marker id="{name}" markerWidth="8" markerHeight="8" refX="{at}" refY="4" orient="auto">'
            f'<path d="{path}" fill="{INK}"/></marker>'
        )
    yield from parts
    yield "</svg>"
