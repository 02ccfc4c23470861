"""Memory of one parameter server as a linear function of its rows, and the server's share of the new categories.

DLRover-RM section 5.3 has M_emb = T x D x phi. Here

    resident bytes = base + table bytes,    table bytes = fixed + row bytes x rows.

A server tells its table bytes and its row bytes exactly (`PsReported`): the latter are of the layout, with the
optimizer's slots, the entry and the share of the index. The base is resident minus table bytes: program, connections,
buffers. Rows lie in pages and never move, so a table costs no more while it grows. Left to chance are the base, the
pages touched ahead, and an index that doubles, at a load of its own in each bucket.

Measured (``python -m tests.bench --only memory_law``): the base of a store stood still within 0.4 MiB while it grew
from 13,000 to 4 million rows. In a pod of the demonstration it was 86 MiB at first, and 92 after a move of half the
rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import median, pstdev

from stretto_core.model.spilling import COLD_ROW_BYTES, memory_bytes
from stretto_core.oom.growth import Z_90, Estimate

POINTS_MAX = 40
"""Measurements kept of a server. Taste."""
BASE_SD_BYTES = 2**20
"""Least sd of the base. Above the 0.4 MiB measured; what it does in a job counts beside that."""
AHEAD_SD_BYTES = 2**20
"""Sd of the pages touched ahead: up to 64 KiB for the rows of each of 64 buckets, and as much for their entries."""
INDEX_SD_BYTES = 1.2
"""Sd of a row's share of the index: 6.7 to 10.7 bytes, computed for 64 buckets whose loads are spread evenly."""
STOCK_SHARE = 0.1
"""Part of a server's stock of rows that counts beside its new rows in their mean bytes. Taste."""


@dataclass(slots=True)
class UsagePoint:
    """Bytes of one parameter server that holds ``rows``: resident, of its tables, and of one row in the mean."""

    rows: int
    used_bytes: int
    table_bytes: int
    row_bytes: float
    cold_rows: int = 0
    """Rows on the server's disk."""
    warm_rows: int = 0
    """Rows that are rounded in its memory."""
    warm_bytes: int = 0
    """Bytes of these but for their entries and index."""

    @property
    def saved_bytes(self) -> float:
        """Bytes by which cold and warm rows would need more memory if they were hot."""
        each = max(0.0, self.row_bytes - COLD_ROW_BYTES)
        return self.cold_rows * each + max(0.0, self.warm_rows * each - self.warm_bytes)

    @property
    def base_bytes(self) -> int:
        """Resident bytes beside the tables. Negative while the system keeps pages of the tables elsewhere."""
        return self.used_bytes - self.table_bytes

    @property
    def payload_bytes(self) -> float:
        """Bytes of all rows."""
        return self.rows * self.row_bytes


@dataclass(slots=True)
class ServerUsage:
    """Measurements of one parameter server since its buckets last changed."""

    limit_bytes: int = 0
    buckets: int = -1
    points: list[UsagePoint] = field(default_factory=list[UsagePoint])
    first: UsagePoint | None = None
    """The measurement at which this ownership began."""

    @property
    def rows(self) -> int:
        return self.points[-1].rows if self.points else 0

    @property
    def cold_rows(self) -> int:
        """Rows on its disk at the last measurement."""
        return self.points[-1].cold_rows if self.points else 0

    @property
    def had_cold_rows(self) -> bool:
        """True if it had rows on its disk before the last measurement, too."""
        return len(self.points) > 1 and self.points[-2].cold_rows > 0

    @property
    def used_bytes(self) -> int:
        """Resident memory at the last measurement."""
        return self.points[-1].used_bytes if self.points else 0

    @property
    def grown_rows(self) -> int:
        """Rows since this ownership began."""
        return max(0, self.rows - self.first.rows) if self.first else 0

    def add(self, point: UsagePoint, limit_bytes: int, buckets: int) -> None:
        """Add a measurement. Another number of buckets begins a new series: their rows moved in or out."""
        if not self.points or buckets != self.buckets or point.rows < 0.98 * self.rows:
            self.points, self.first = [], point
        self.buckets, self.limit_bytes = buckets, limit_bytes
        self.points.append(point)
        if len(self.points) > POINTS_MAX:
            self.points[: POINTS_MAX // 2] = self.points[: POINTS_MAX // 2 : 2]


@dataclass(frozen=True, slots=True)
class RowCost:
    """Bytes of a new row with their sd, and the sd of what does not come with new rows.

    ``level_sd_bytes``: of the base and of pages touched ahead. ``index_sd_bytes``: of each row that there will be.
    """

    bytes: float
    sd: float
    level_sd_bytes: float = 0.0
    index_sd_bytes: float = 0.0


def row_cost(servers: list[ServerUsage]) -> RowCost:
    """Return the cost of a new row, from the bytes of a row that all ``servers`` tell.

    The mean is of the rows that came since ownership began. With one table it is exact from the first row on; with
    tables of different widths it may differ from the mean of all rows, and the difference counts as its sd.
    """
    known = [server for server in servers if server.points]
    rows = sum(server.rows for server in known)
    payload = sum(server.points[-1].payload_bytes for server in known)
    told = payload / rows if rows else max((server.points[-1].row_bytes for server in known), default=0.0)
    grown, new_payload = STOCK_SHARE * rows, STOCK_SHARE * payload
    for server in known:
        if server.first is not None and server.grown_rows:
            grown += server.grown_rows
            new_payload += server.points[-1].payload_bytes - server.first.payload_bytes
    mean = max(0.0, new_payload / grown) if grown else told
    bases = [_base_sd_bytes(server) for server in known]
    level_sd_bytes = math.hypot(max(bases, default=BASE_SD_BYTES), AHEAD_SD_BYTES)
    return RowCost(mean, abs(mean - told), level_sd_bytes, INDEX_SD_BYTES)


def _base_sd_bytes(server: ServerUsage) -> float:
    return max(BASE_SD_BYTES, pstdev(point.base_bytes for point in server.points))


def share_of_growth(server: ServerUsage, servers: list[ServerUsage]) -> float:
    """Return the share of the job's new categories that comes to ``server``.

    Its share of the growth since its buckets last changed, shrunk towards its share of the stock. The stock's weight is
    that of half as many categories.
    """
    stock = sum(other.rows for other in servers)
    if stock <= 0:
        return 1 / max(1, len(servers))
    grown = sum(other.grown_rows for other in servers)
    return (server.grown_rows + 0.5 * server.rows) / (grown + 0.5 * stock)


def bytes_at(server: ServerUsage, new_rows: Estimate, cost: RowCost) -> Estimate:
    """Return the memory of a server with all rows after ``new_rows`` more, with its 90 % interval.

    Rows on its disk, and rounded ones, count as if they were in memory as they were trained. The base is the median of
    the last three readings.
    """
    last = server.points[-1]
    now = median(point.base_bytes for point in server.points[-3:]) + last.table_bytes + last.saved_bytes

    def noise(rows: float) -> float:
        return Z_90 * math.hypot(cost.level_sd_bytes, cost.index_sd_bytes * (server.rows + rows))

    z_cost = Z_90 * cost.sd * 0.7  # the two errors are independent: neither at its worst when the other is
    return Estimate(
        now + max(0.0, cost.bytes - z_cost) * new_rows.low - noise(new_rows.low),
        now + cost.bytes * new_rows.mean,
        now + (cost.bytes + z_cost) * new_rows.high + noise(new_rows.high),
    )


def rest_bytes(server: ServerUsage) -> float:
    """Return the memory of a server beside its rows, hot and cold."""
    last = server.points[-1]
    base = median(point.base_bytes for point in server.points[-3:])
    return max(0.0, base + last.table_bytes + last.saved_bytes - last.payload_bytes)


def rounded_bytes(server: ServerUsage, all_hot_bytes: float) -> float:
    """Return the memory of a server that has every row rounded, from the memory that it has with all rows hot."""
    last, rest = server.points[-1], rest_bytes(server)
    if not last.warm_rows:
        return all_hot_bytes
    rounded = COLD_ROW_BYTES + last.warm_bytes / last.warm_rows
    return rest + (all_hot_bytes - rest) * min(1.0, rounded / max(last.row_bytes, 1.0))


def spilled_bytes_at(server: ServerUsage, new_rows: Estimate, cost: RowCost) -> Estimate:
    """Return the memory of a server that goes on evicting rows: what it has, unless cold rows alone come to need more.

    Where their entries and index fill the limit, hardly a hot row is left.
    """
    last = server.points[-1]
    all_hot = bytes_at(server, Estimate(0.0, 0.0, 0.0), cost)

    def at(now: float, rows: float) -> float:
        least = memory_bytes(last.rows + rows, last.row_bytes, now - last.rows * last.row_bytes, 0.0)
        return float(max(last.used_bytes, least))

    return Estimate(at(all_hot.low, new_rows.low), at(all_hot.mean, new_rows.mean), at(all_hot.high, new_rows.high))
