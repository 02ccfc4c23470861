"""One figure and its bar, as ``make bench`` prints them."""

from __future__ import annotations

from typing import TypedDict


class Row(TypedDict):
    """A figure. ``baseline``: measured in the same run. ``ok``: whether the bar is met; None without a bar."""

    name: str
    value: float
    unit: str
    baseline: float | None
    ratio: float | None
    bar: str
    ok: bool | None
    note: str


def row(
    name: str,
    value: float,
    unit: str,
    bar: str,
    ok: bool | None,
    note: str,
    baseline: float | None = None,
    ratio: float | None = None,
) -> Row:
    """Return a row. ``ratio`` defaults to the value divided by the baseline."""
    if ratio is None and baseline:
        ratio = value / baseline
    return Row(name=name, value=value, unit=unit, baseline=baseline, ratio=ratio, bar=bar, ok=ok, note=note)


def row_at_most(name: str, value: float, unit: str, bar: float | None, note: str, baseline: float | None = None) -> Row:
    """Return the row of a figure that must not exceed its bar, if it has one."""
    told, ok = ("", None) if bar is None else (f"<= {bar:g} {unit}".rstrip(), value <= bar)
    return row(name, value, unit, told, ok, note, baseline)
