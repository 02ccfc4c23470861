"""Shapes of an SVG document as text. A shape's title is what a browser shows under the pointer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def titled(shape: str, title: str) -> str:
    """Return a shape with its title."""
    return f"<g>{shape}<title>{escape(title)}</title></g>" if title else shape


def rect(x: float, y: float, width: float, height: float, style: str, title: str = "", radius: float = 2) -> str:
    """Return a bar, at least 1.5 wide so that it can be seen."""
    width = max(width, 1.5)
    return titled(
        f'<rect class="{style}" x="{_number(x)}" y="{_number(y)}" width="{_number(width)}" '
        f'height="{_number(height)}" rx="{radius:g}"/>',
        title,
    )


def line(x1: float, y1: float, x2: float, y2: float, style: str, title: str = "") -> str:
    """Return a straight line."""
    points = " ".join(f'{n}="{_number(v)}"' for n, v in (("x1", x1), ("y1", y1), ("x2", x2), ("y2", y2)))
    return titled(f'<line class="{style}" {points}/>', title)


def dot(x: float, y: float, radius: float, style: str, title: str = "") -> str:
    """Return a filled circle."""
    return titled(f'<circle class="{style}" cx="{_number(x)}" cy="{_number(y)}" r="{radius:g}"/>', title)


def text(x: float, y: float, content: str, style: str = "") -> str:
    """Return a label."""
    return f'<text class="{style}" x="{_number(x)}" y="{_number(y)}">{escape(content)}</text>'


def polyline(points: Iterable[tuple[float, float]], style: str) -> str:
    """Return a line through points."""
    joined = " ".join(f"{_number(x)},{_number(y)}" for x, y in points)
    return f'<polyline class="{style}" points="{joined}"/>'


def area(points: Sequence[tuple[float, float]], base_y: float, style: str) -> str:
    """Return the area between a line through points and a base."""
    if not points:
        return ""
    joined = " ".join(f"{_number(x)},{_number(y)}" for x, y in points)
    first, last = _number(points[0][0]), _number(points[-1][0])
    return f'<polygon class="{style}" points="{first},{_number(base_y)} {joined} {last},{_number(base_y)}"/>'


def cross(x: float, y: float, size: float, style: str, title: str = "") -> str:
    """Return two crossed strokes."""
    marks = f"M{_number(x - size)} {_number(y - size)}L{_number(x + size)} {_number(y + size)}"
    marks += f"M{_number(x - size)} {_number(y + size)}L{_number(x + size)} {_number(y - size)}"
    return titled(f'<path class="{style}" d="{marks}"/>', title)


def figure(width: float, height: float, label: str, shapes: Iterable[str]) -> str:
    """Return a drawing of shapes."""
    box = f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(label)}">'
    return f"{box}{''.join(shapes)}</svg>"
