"""Cost of a category in the memory of one parameter server, and the server's share of the new categories.

DLRover-RM section 5.3: M_emb = T x D x phi. Two things differ in a real server. The row also holds the optimiser's
slots, and the rest of the process does not grow; so the bytes per row are measured, with T x D as the prior. And a
hash table does not grow row by row: it doubles when it is 80 % full, all tables of a server at nearly the same time,
because a good hash fills them alike. Measured with 64 tables of TensorFlow 2.21: resident memory follows the slots
(1.0 to 1.25 times, as allocators fragment), while a straight line through the rows misses it by a factor of up to 2.6.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from stretto_core.oom.growth import Z_90, Estimate

POINTS_MAX = 40
"""Measurements kept of a server. Taste."""
LOAD_MAX = 0.8
"""TensorFlow's DenseHashTable doubles above this load (its source)."""
MEASURING_SD = 0.01
"""Relative sd of resident memory: allocators, buffers under way. Chosen by hand."""
BYTES_RANGE = (0.5, 2.5)
"""Range of the estimate, relative to the prior. Beyond it is not the tables' doing: a process that warms up, a leak."""
PRIOR_SD = 0.3
"""Relative sd of the bytes per row that the specification implies. Chosen by hand, above the 1.25 measured."""
REMEMBERED_SD = 0.05
"""Least relative sd of an estimate from before the buckets moved. Taste."""
KEY_BYTES, FLOAT_BYTES = 8, 4


SLOT_FLOATS = {
    "sgd": (0, 0), "rowwise-adagrad": (0, 1), "adagrad": (1, 0), "rmsprop": (1, 0), "ftrl": (2, 0), "adam": (2, 1),
    "adamw": (2, 1),
}  # fmt: skip
"""Floats that each optimizer keeps: per weight, and per row. Adam has two moments, and a step count for the row."""


def row_bytes(embedding_dim: int, optimizer: str, row_weights: str = "float32") -> int:
    """Return the bytes of one category: its key, its weights and the optimizer's slots."""
    per_weight, per_row = SLOT_FLOATS[optimizer]
    weight_words = (embedding_dim + 1) // 2 if row_weights == "bfloat16" else embedding_dim
    return KEY_BYTES + FLOAT_BYTES * (weight_words + per_weight * embedding_dim + per_row)


@dataclass(slots=True)
class UsagePoint:
    """Resident bytes of one parameter server that holds ``rows``."""

    rows: int
    used_bytes: int


@dataclass(slots=True)
class ServerUsage:
    """Measurements of one parameter server since its buckets last changed."""

    limit_bytes: int = 0
    buckets: int = -1
    points: list[UsagePoint] = field(default_factory=list[UsagePoint])
    first_rows: int = 0
    """Rows when this ownership began."""

    @property
    def rows(self) -> int:
        return self.points[-1].rows if self.points else 0

    @property
    def used_bytes(self) -> int:
        """Resident memory at the last measurement."""
        return self.points[-1].used_bytes if self.points else 0

    def add(self, rows: int, used_bytes: int, limit_bytes: int, buckets: int) -> bool:
        """Add a measurement; return True if it ended a series.

        Another number of buckets begins a new one: their rows moved in or out.
        """
        ended = bool(self.points) and (buckets != self.buckets or rows < 0.98 * self.rows)
        if ended or not self.points:
            self.points, self.first_rows = [], rows
        self.buckets, self.limit_bytes = buckets, limit_bytes
        self.points.append(UsagePoint(rows, used_bytes))
        if len(self.points) > POINTS_MAX:
            self.points[: POINTS_MAX // 2] = self.points[: POINTS_MAX // 2 : 2]
        return ended


@dataclass(frozen=True, slots=True)
class RowCost:
    """Bytes per row, or per table slot where ``initial_slots`` is set, with standard deviation."""

    bytes: float
    sd: float
    initial_slots: int = 0

    def units(self, rows: float, buckets: int) -> float:
        """Return the units that memory is proportional to.

        They are rows, or the slots of ``buckets`` tables that doubled from ``initial_slots``.
        """
        if not self.initial_slots or buckets < 1:
            return rows
        return buckets * _slots(rows / buckets, self.initial_slots)

    def copied(self, server: ServerUsage, new_rows: float) -> float:
        """Return the slots of the one table that exists twice while it doubles; 0 if none doubles on the way."""
        if not self.initial_slots or server.buckets < 1:
            return 0.0
        old, new = (self.units(server.rows + rows, server.buckets) / server.buckets for rows in (0, new_rows))
        return new / 2 if new > 1.01 * old else 0.0


def _slots(rows: float, initial: int) -> float:
    """Return the expected slots of one table, if each gets ``rows`` on average by random hashing (Poisson)."""
    slots = float(initial)
    while rows > LOAD_MAX * slots * 2:
        slots *= 2
    for _ in range(3):
        threshold = LOAD_MAX * slots
        above = 0.5 * math.erfc((threshold - rows) / math.sqrt(2 * max(1.0, rows)))
        if above < 1e-6:
            break
        if above < 1 - 1e-6:
            return slots * (1 + above)
        slots *= 2
    return slots


def fit_row_cost(
    servers: list[ServerUsage], promised: float, initial_slots: int, before: RowCost | None = None
) -> RowCost:
    """Estimate the bytes per unit from all servers, each with its own fixed part.

    A conjugate normal update with known variance (ridge regression): the prior is the estimate from ``before`` the
    buckets changed, or else the bytes ``promised`` by the specification; the precision of a server's data is
    sum (u - mean u)^2 / sd^2.
    """
    shape = RowCost(0.0, 0.0, initial_slots)
    prior = max(promised, 1.0)
    believed, sd = (before.bytes, before.sd) if before else (prior, PRIOR_SD * prior)
    precision = 1 / sd**2
    moment = believed * precision
    for server in servers:
        if len(server.points) < 3:
            continue
        units = np.array([shape.units(point.rows, server.buckets) for point in server.points])
        used = np.array([point.used_bytes for point in server.points], float)
        noise = MEASURING_SD * float(used.mean()) + 2**20
        centred = units - units.mean()
        precision += float((centred**2).sum()) / noise**2
        moment += float((centred * (used - used.mean())).sum()) / noise**2
    estimate, sd = moment / precision, 1 / math.sqrt(precision)
    least, most = BYTES_RANGE
    return RowCost(min(max(estimate, least * prior), most * prior), max(sd, 0.01 * estimate), initial_slots)


def remembered(cost: RowCost) -> RowCost:
    """Return the prior for later servers: the estimate from earlier ones of the job, with a least sd."""
    return RowCost(cost.bytes, max(cost.sd, REMEMBERED_SD * cost.bytes), cost.initial_slots)


def share_of_growth(server: ServerUsage, servers: list[ServerUsage]) -> float:
    """Return the share of the job's new categories that comes to ``server``.

    Its share of the growth since its buckets last changed, shrunk towards its share of the stock. The stock's weight is
    that of half as many categories.
    """
    stock = sum(other.rows for other in servers)
    if stock <= 0:
        return 1 / max(1, len(servers))
    grown = sum(max(0, other.rows - other.first_rows) for other in servers)
    own = max(0, server.rows - server.first_rows)
    return (own + 0.5 * server.rows) / (grown + 0.5 * stock)


def _level(server: ServerUsage, cost: RowCost, units: float) -> float:
    """Return the memory now: the median of the last three readings, each brought forward to ``units``."""
    forward = sorted(
        point.used_bytes + cost.bytes * (units - cost.units(point.rows, server.buckets)) for point in server.points[-3:]
    )
    return forward[len(forward) // 2]


def bytes_at(server: ServerUsage, new_rows: Estimate, cost: RowCost) -> Estimate:
    """Return the memory of a server after ``new_rows`` more."""
    start = cost.units(server.rows, server.buckets)
    used = _level(server, cost, start)

    def after(rows: float, bytes_per_unit: float) -> float:
        return used + bytes_per_unit * (cost.units(server.rows + rows, server.buckets) - start)

    z_cost = Z_90 * cost.sd * 0.7  # the two errors are independent: neither at its worst when the other is
    noise = MEASURING_SD * used
    return Estimate(
        after(new_rows.low, max(0.0, cost.bytes - z_cost)) - noise,
        after(new_rows.mean, cost.bytes),
        after(new_rows.high, cost.bytes + z_cost) + noise + cost.bytes * cost.copied(server, new_rows.high),
    )
