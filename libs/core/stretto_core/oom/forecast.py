"""When the memory of parameter servers runs out, and how much they need (DLRover-RM section 5.3).

A forecast of the end of a long job is wide at first, and its upper end would waste memory. So the recommendation
reaches only as far ahead as the interval is narrow: to the furthest horizon up to which at most 12 % more than its
lower end is needed. If the interval holds, the truth there is not below the lower end. Growth never falls, so the
recommendation is at most 12 % above the job's need at its end. When that horizon comes near, the curve is known better,
and the next recommendation reaches further.

It always covers the time that getting memory takes. Over that time the forecast is at least twice the largest growth in
any equal time lately, whatever the fit: a burst, or the end of a lull, is in no trend.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

from stretto_messages.values import Interval, PsForecast

from stretto_core.oom.growth import CategoryForecast, Estimate
from stretto_core.oom.usage import RowCost, ServerUsage, bytes_at, rounded_bytes, share_of_growth

MemoryLaw = Callable[[ServerUsage, Estimate, RowCost], Estimate]

HORIZONS = 24
"""Horizons at which the forecast is evaluated, evenly spaced to the end. Taste."""
MARGIN_MAX = 1.12
"""Largest recommendation over the lower end of the need. Chosen by hand; ``python -m tests.bench --only
memory`` measures the waste."""
SAFETY = 1.02
"""Factor on the upper end of the interval: an image of a checkpoint that goes to the disk takes the copy of a bucket, a
64th of the tables."""
MOVE_MARGIN = 1.1
"""Factor on the expected need while buckets move to other servers. Taste."""
BURST_LEADS = 2 / 3
"""Part of the lead time in which a burst is allowed for: getting memory takes so long, the rest is slack."""


@dataclass(frozen=True, slots=True)
class Lead:
    """Time, with slack, until a server has more memory (resize), or more servers share the tables (move)."""

    resize_s: float
    move_s: float


@dataclass(frozen=True, slots=True)
class MemoryForecast:
    """Forecast for all servers of a job."""

    servers: tuple[PsForecast, ...]
    recommended_bytes: int
    enough_bytes: int
    """Enough to the end, at the upper end of the interval."""
    reaches_end: bool
    """The recommendation covers the rest of the job, not only the foreseeable part."""
    urgent: bool
    """A limit may be crossed within the lead time."""
    crosses: bool
    """A limit may be crossed before the end."""


def forecast(
    servers: dict[str, ServerUsage],
    growth: CategoryForecast,
    cost: RowCost,
    samples_end: int,
    samples_per_s: float,
    lead: Lead,
    max_bytes: int,
    law: MemoryLaw = bytes_at,
) -> MemoryForecast:
    """Forecast to ``samples_end``. One server cannot have more than ``max_bytes``: beyond, buckets have to move.

    ``law``: memory of a server with all its rows in it, or of one that evicts rows.
    """
    known = {pod: server for pod, server in servers.items() if server.points}
    peers = list(known.values())
    now, left = growth.samples, max(0, samples_end - growth.samples)
    soon, resized, moved = (
        min(left, samples_per_s * s) for s in (BURST_LEADS * lead.resize_s, lead.resize_s, lead.move_s)
    )
    resized = max(resized, left / 50)
    grid = sorted({now + resized, now + moved, *(now + left * step / HORIZONS for step in range(1, HORIZONS + 1))})
    at_resized, at_moved = grid.index(now + resized), grid.index(now + moved)
    totals = _never_falling(growth.course(grid))
    totals[at_resized] = growth.with_burst(totals[at_resized], soon)
    shares = {pod: share_of_growth(server, peers) for pod, server in known.items()}
    paths = {
        pod: [law(server, _part(total, growth.categories, shares[pod]), cost) for total in totals]
        for pod, server in known.items()
    }
    worst = [_fullest(paths, step) for step in range(len(grid))]
    tops = list(accumulate((SAFETY * interval.high for interval in worst), max))
    reach = max(at_resized, *(s for s, interval in enumerate(worst) if tops[s] <= MARGIN_MAX * interval.low), 0)
    wanted = tops[reach]
    has_to_move = max(tops[at_resized], MOVE_MARGIN * worst[at_moved].mean) > max_bytes
    if has_to_move:
        wanted = max(wanted, MOVE_MARGIN * worst[at_moved].mean)
    limits = {pod: server.limit_bytes for pod, server in known.items()}
    urgent = any(path[at_resized].high * SAFETY >= limits[pod] > 0 for pod, path in paths.items())
    crosses = any(path[-1].high * SAFETY >= limits[pod] > 0 for pod, path in paths.items())
    each = tuple(_server_forecast(pod, known[pod], paths[pod], grid, now, samples_per_s) for pod in sorted(paths))
    reaches_end = reach == len(grid) - 1
    return MemoryForecast(each, int(wanted), int(tops[-1]), reaches_end, urgent or has_to_move, crosses)


def _never_falling(totals: list[Estimate]) -> list[Estimate]:
    """Make both ends of the intervals monotone: the number of categories never falls."""
    lows = accumulate((total.low for total in totals), max)
    highs = list(accumulate((total.high for total in reversed(totals)), min))[::-1]
    return [
        Estimate(low, max(low, min(total.mean, high)), high)
        for low, total, high in zip(lows, totals, highs, strict=True)
    ]


def _fullest(paths: dict[str, list[Estimate]], step: int) -> Estimate:
    """Return the need of the fullest server."""
    at = [path[step] for path in paths.values()]
    return Estimate(max(i.low for i in at), max(i.mean for i in at), max(i.high for i in at))


def _part(total: Estimate, stock: int, share: float) -> Estimate:
    """Return one server's part of the new categories; its share is known to 3 %."""
    return Estimate(
        share * 0.97 * (total.low - stock), share * (total.mean - stock), share * 1.03 * (total.high - stock)
    )


def _server_forecast(
    pod: str,
    server: ServerUsage,
    path: list[Estimate],
    grid: list[float],
    now: int,
    samples_per_s: float,
) -> PsForecast:
    crossing = _crossing(server, path, grid, now)
    end = path[-1]
    low, mean, high = (int(max(0, value)) for value in (end.low, end.mean, end.high))
    assert low <= mean <= high, f"{pod} ends at {mean} bytes, outside {low} to {high}"
    return PsForecast(
        pod=pod,
        used_bytes=server.used_bytes,
        limit_bytes=server.limit_bytes,
        at_end_bytes=mean,
        at_end_interval_bytes=Interval(low=float(low), high=float(high)),
        oom_in_s=(crossing - now) / samples_per_s if crossing is not None and samples_per_s > 0 else None,
        oom_at_samples=int(crossing) if crossing is not None else None,
    )


def _crossing(server: ServerUsage, path: list[Estimate], grid: list[float], now: int) -> float | None:
    """Return the samples at which the expected memory reaches the limit, interpolated; None: not before the end.

    A server that evicts rows does not reach it, and a server that rounds rows only once every row is rounded.
    """
    if server.limit_bytes <= 0 or server.cold_rows:
        return None
    before, samples = rounded_bytes(server, server.used_bytes + server.points[-1].saved_bytes), float(now)
    if before >= server.limit_bytes:
        return samples
    for point, at in zip(path, grid, strict=True):
        least = rounded_bytes(server, point.mean)
        if least >= server.limit_bytes:
            return samples + (at - samples) * (server.limit_bytes - before) / (least - before)
        before, samples = least, at
    return None
