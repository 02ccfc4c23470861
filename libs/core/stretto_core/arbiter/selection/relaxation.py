"""The linear relaxation (fractions of options), solved by prices of the resources, and the bound that it proves.

At prices p >= 0 every job takes its option of the highest value less price. The sum over jobs plus p x room is an upper
bound on every selection (Lagrangian). It is convex and piecewise linear in p, and its minimum is the optimum of the
linear relaxation. Each evaluation gives a tangent; the minimum of all tangents is the next p to evaluate (Kelley's
cutting planes). That minimum is a linear programme of one variable more than there are resources.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog

from stretto_core.arbiter.selection.table import Floats, OptionTable

ROUNDS = 60
"""Evaluations at most."""
PRECISION = 1e-9
"""Relative precision at which a bound counts as the minimum."""


@dataclass(frozen=True, slots=True)
class Relaxation:
    """A proven upper ``bound`` and its prices [resources].

    ``loss`` [rows]: the least decrease of the bound if a job has to take that row.
    """

    bound: float
    price: Floats
    loss: Floats


def relaxed(table: OptionTable, precision: float = PRECISION) -> Relaxation:
    """Return the least Lagrangian bound to a relative ``precision``, or the best after all rounds, valid as well."""
    price = np.zeros(table.amounts.shape[1])
    best, best_price, box = np.inf, price, price
    tangents, heights = list[Floats](), list[float]()
    for _ in range(ROUNDS):
        reduced = table.values - table.priced(price)
        rows = table.best(reduced)
        value = float((price * table.room).sum()) + float(reduced[rows].sum())
        slope = table.room - table.amounts[rows].sum(axis=0)
        if not tangents:  # no job buys above the highest value per amount, and prices x room cannot exceed the bound
            box = np.minimum(_highest(table), value / table.room)
        if value < best:
            best, best_price = value, price
        tangents.append(slope)
        heights.append(value - float((slope * price).sum()))
        if not (slope < 0).any() and not price.any():
            break
        price, least = _lowest(np.array(tangents), np.array(heights), box, best)
        if best - least <= precision * best:
            break
    return at_prices(table, best_price)


def at_prices(table: OptionTable, price: Floats) -> Relaxation:
    """Return the Lagrangian bound at these prices, which are at least 0; any such bound is valid."""
    reduced = table.values - table.priced(price)
    highest = reduced[table.best(reduced)]
    bound = float((price * table.room).sum()) + float(highest.sum())
    return Relaxation(bound, price, highest[table.job] - reduced)


def _highest(table: OptionTable) -> Floats:
    """Return the highest value per amount of any row, by resource."""
    with np.errstate(divide="ignore", invalid="ignore"):
        density = np.where(table.amounts > 0, np.abs(table.values[:, None]) / table.amounts, 0.0)
    return np.minimum(density.max(axis=0, initial=0.0), 1e300)


def _lowest(tangents: Floats, heights: Floats, box: Floats, best: float) -> tuple[Floats, float]:
    """Return the prices within the box that minimise the highest tangent, and this minimum."""
    unit = max(best, 1e-300)
    scale = np.where(box > 0, box, 1.0)
    found = linprog(
        np.append(np.zeros(len(box)), 1.0),
        A_ub=np.hstack([tangents * scale / unit, -np.ones((len(heights), 1))]),
        b_ub=-heights / unit,
        bounds=[*((0.0, 1.0 if width > 0 else 0.0) for width in box), (None, None)],
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    if found.x is None:  # the numbers' range is too wide for the solver; bounds found before stay valid
        return np.zeros(len(box)), best
    return np.asarray(found.x[:-1] * scale, dtype=np.float64), float(found.x[-1]) * unit
