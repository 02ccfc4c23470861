"""Cards for notebooks: HTML with static SVG, no script, and colours that suit light and dark pages.

Text has the colour of the page around it (``currentColor``), because a notebook may be dark where the browser is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files

from .. import figures
from . import svg

LEFT, WIDTH, RIGHT, TOP, HEIGHT = 90.0, 800.0, 24.0, 20.0, 160.0
LANE = 26.0
MOST_LANES = 40


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of a parameter server, in bytes, and its prospect in words."""

    pod: str
    used: float
    limit: float
    at_end: float
    at_end_interval: tuple[float, float]
    prospect: str


@dataclass(frozen=True, slots=True)
class Stretch:
    """A time in which a plan was to hold, with the predicted interval of its throughput, if there is one."""

    begin_s: float
    title: str
    interval: tuple[float, float] | None


@cache
def _style() -> str:
    return (files("stretto_client") / "drawing" / "cards.css").read_text()


def card(heading: str, drawings: Iterable[str], lines: Iterable[str] = (), preformatted: str = "") -> str:
    """Return a card. ``drawings`` are SVG or HTML; heading, lines and preformatted text are escaped."""
    paragraphs = "".join(f"<p>{escape(line)}</p>" for line in lines if line)
    text = f"<pre>{escape(preformatted)}</pre>" if preformatted else ""
    style = f"<style>{_style()}</style>"
    return f'<div class="stretto-card">{style}<h4>{escape(heading)}</h4>{paragraphs}{"".join(drawings)}{text}</div>'


def bar(share: float) -> str:
    """Return a progress bar as SVG."""
    done = WIDTH * max(0.0, min(1.0, share))
    shapes = [svg.rect(0, 0, WIDTH, 8, "track"), *([svg.rect(0, 0, done, 8, "pool")] if done else [])]
    return svg.figure(WIDTH, 8, f"{share:.1%} done", shapes)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; every cell is escaped."""
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def memory(rows: Sequence[Memory]) -> str:
    """Draw a lane for each parameter server: used now, at the end with its 90 % interval, and the limit."""
    most = max((max(row.limit, row.at_end_interval[1], row.used) for row in rows), default=0.0)
    if most <= 0:
        return ""
    shown = rows[:MOST_LANES]
    shapes: list[str] = []
    for number, row in enumerate(shown):
        y = TOP + LANE * number
        x = [LEFT + WIDTH * value / most for value in (row.used, row.limit, row.at_end, *row.at_end_interval)]
        title = (
            f"{row.pod}: {figures.size(row.used)} of {figures.size(row.limit)} now, {figures.size(row.at_end)} at the "
            f"end [{figures.size(row.at_end_interval[0])} … {figures.size(row.at_end_interval[1])}], {row.prospect}"
        )
        shapes += [
            svg.text(LEFT - 8, y + 12, row.pod, "name"),
            svg.rect(LEFT, y, x[0] - LEFT, 16, "pool", title),
            svg.rect(x[3], y + 5, x[4] - x[3], 6, "band", title),
            svg.dot(x[2], y + 8, 3.5, "change", title),
            svg.line(x[1], y - 3, x[1], y + 19, "limit", f"limit {figures.size(row.limit)}"),
        ]
    height = TOP + LANE * len(shown)
    if len(rows) > len(shown):
        shapes.append(svg.text(LEFT, height + 12, f"… and {len(rows) - len(shown)} more", "tick-left"))
    return svg.figure(LEFT + WIDTH + RIGHT, height + 16, "memory of the parameter servers", shapes)


def throughput(points: Sequence[tuple[float, float]], stretches: Sequence[Stretch]) -> str:
    """Draw measured samples per second over time, the changes of plan, and the predicted 90 % interval of each."""
    highs = [stretch.interval[1] for stretch in stretches if stretch.interval is not None]
    most = max([value for _, value in points] + highs, default=0.0)
    if not points or most <= 0:
        return ""
    begin_s, end_s = min(points[0][0], *(each.begin_s for each in stretches), points[0][0]), points[-1][0]
    base = TOP + HEIGHT

    def at(time_s: float, value: float) -> tuple[float, float]:
        share = (min(max(time_s, begin_s), end_s) - begin_s) / max(end_s - begin_s, 1e-9)
        return LEFT + WIDTH * share, base - HEIGHT * value / most

    shapes = [svg.line(LEFT, base, LEFT + WIDTH, base, "grid"), svg.line(LEFT, TOP, LEFT + WIDTH, TOP, "grid")]
    shapes += [svg.text(LEFT - 8, TOP + 4, figures.short_rate(most), "name"), svg.text(LEFT - 8, base + 4, "0", "name")]
    ends_s = [*(stretch.begin_s for stretch in stretches[1:]), end_s]
    for stretch, until_s in zip(stretches, ends_s, strict=False):
        (x, _), (right, _) = at(stretch.begin_s, 0), at(until_s, 0)
        if stretch.interval is not None and right > x:
            (_, low), (_, high) = at(0, stretch.interval[0]), at(0, stretch.interval[1])
            shapes.append(svg.rect(x, high, right - x, low - high, "band", stretch.title, radius=0))
        shapes.append(svg.line(x, TOP - 6, x, base, "change-line", stretch.title))
    shapes.append(svg.polyline([at(*point) for point in points], "speed line"))
    shapes.append(svg.text(LEFT, base + 16, figures.clock(begin_s), "tick-left"))
    shapes.append(svg.text(LEFT + WIDTH, base + 16, figures.clock(end_s), "name"))
    return svg.figure(LEFT + WIDTH + RIGHT, base + 22, "samples per second over time", shapes)
