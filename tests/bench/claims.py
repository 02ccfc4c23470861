"""The papers' claims beside our measurements: a table after `make bench`, and bench-results/claims.md.

A module of the bench lists the claims that its rows check in ``CLAIMS``. A claim without a row is settled by reasoning,
and names the test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from tests.bench.places import module

COLUMNS = ("paper", "claims", "published", "ours", "same", "why")
TENTH = 0.1
"""share by which a figure may fall short of the published one and still count as the same: other machine, other
traces"""
NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Claim:
    """A published claim.

    ``paper``: the paper and its section. ``row``: the name of the row with our figure; empty if ``ours`` gives it in
    words. ``same``: returns whether the figure (the row's ratio, or its value without one) agrees with the claim.
    """

    paper: str
    claims: str
    published: str
    why: str
    same: Callable[[float], bool]
    row: str = ""
    ours: str = ""

    def line(self, rows: dict[str, Any]) -> tuple[str, ...]:
        """Return the cells of :data:`COLUMNS`; ``rows`` are by name, and NaN means not measured."""
        if not self.row:
            return self.paper, self.claims, self.published, self.ours, _verdict(self.same(0.0)), self.why
        row = rows.get(self.row)
        figure = None if row is None else row["value"] if row["ratio"] is None else row["ratio"]
        if figure is None or figure != figure:
            return self.paper, self.claims, self.published, NOT_MEASURED, "?", self.why
        ours = f"{row['value']:.4g} {row['unit']}".strip() + (f" ({row['ratio']:.3g} ×)" if row["ratio"] else "")
        return self.paper, self.claims, self.published, ours, _verdict(self.same(figure)), self.why


def _verdict(same: bool) -> str:
    return "yes" if same else "no"


def at_least(figure: float) -> Callable[[float], bool]:
    """Return a check that the figure is at least this one, less a tenth."""
    return lambda ours: ours >= figure - TENTH * abs(figure)


def at_most(figure: float) -> Callable[[float], bool]:
    """Return a check that the figure is at most this one, plus a tenth."""
    return lambda ours: ours <= figure + TENTH * abs(figure)


def above(figure: float) -> Callable[[float], bool]:
    """Return a check that the figure is above this one, without a tolerance: one of two is better."""
    return lambda ours: ours > figure


def never(_: float) -> bool:
    """Reject a claim for the reason in its ``why``."""
    return False


def always(_: float) -> bool:
    """Accept a claim for the reason in its ``why``."""
    return True


def lines(results: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return a line per claim of the modules that have results, in order."""
    rows = {row["name"]: row for result in results.values() for row in result["rows"]}
    claims: Iterable[Claim] = (claim for name in results for claim in getattr(module(name), "CLAIMS", ()))
    return [claim.line(rows) for claim in claims]


def table(results: dict[str, Any]) -> Table | None:
    """Return a table for a terminal; None without any claim."""
    found = lines(results)
    if not found:
        return None
    shown = Table(*COLUMNS, title="The papers' claims", title_justify="left", header_style="bold")
    for line in found:
        colour = {"yes": "green", "no": "red"}.get(line[4], "yellow")
        shown.add_row(*line[:4], f"[{colour}]{line[4]}[/{colour}]", line[5])
    return shown


def markdown(results: dict[str, Any]) -> str:
    """Return the same lines as a Markdown document."""
    head = ["# The papers' claims, measured", "", "`make bench` writes this page.", ""]
    body = [COLUMNS, ("---",) * len(COLUMNS), *lines(results)]
    return "\n".join([*head, *(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in body), ""])
