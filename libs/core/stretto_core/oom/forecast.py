"""From growth and cost to a decision: when memory runs out, and how much is needed (DLRover-RM section 5.3).

How much to ask for is a matter of honesty. A forecast of the end of a long job is wide at first, and its upper end
would waste memory. So the recommendation reaches only as far ahead as the interval is narrow: the furthest horizon
before which nothing is needed that is more than 12 % above its lower end. If the interval holds, the truth there is
not below the lower end, growth never falls, so the recommendation is at most 12 % above what the job needs in the
end. When that horizon comes near, the curve is known better, and the next one reaches further.

However narrow, it reaches over the time that getting memory takes. There no fit is believed that says less than twice
what came in any equal time lately: a burst, or the end of a lull, is in no trend.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from stretto_core.oom.growth import Course, Interval
from stretto_core.oom.usage import RowCost, ServerUsage, bytes_at, share_of_growth

HORIZONS = 24
MARGIN_MAX = 1.12
SAFETY = 1.02
MOVE_MARGIN = 1.1
SURPRISE_LEADS = 2 / 3
"""of the time that getting memory takes with room: what it takes indeed"""


@dataclass(frozen=True, slots=True)
class Lead:
    """How long it takes, with room, until a server has more memory, or more servers share the tables."""

    resize_s: float
    move_s: float


@dataclass(frozen=True, slots=True)
class ServerForecast:
    """Where one parameter server's memory is going. ``oom_*`` None: not before the job's end."""

    pod: str
    used_bytes: int
    limit_bytes: int
    at_end_bytes: int
    at_end_low_bytes: int
    at_end_high_bytes: int
    oom_in_s: float | None
    oom_at_samples: int | None


@dataclass(frozen=True, slots=True)
class MemoryForecast:
    """Of all servers of a job.

    ``urgent``: within the lead time a limit may be crossed. ``crosses``: it may be before the end.
    ``reaches_end``: the recommendation covers the rest of the job, not only the foreseeable part.
    ``enough_bytes``: what will do to the end, at the worst.
    """

    servers: tuple[ServerForecast, ...]
    recommended_bytes: int
    enough_bytes: int
    reaches_end: bool
    urgent: bool
    crosses: bool


def forecast(
    servers: dict[str, ServerUsage],
    growth: Course,
    cost: RowCost,
    samples_end: int,
    samples_per_s: float,
    lead: Lead,
    max_bytes: int,
) -> MemoryForecast:
    """Forecast to ``samples_end``. One server cannot have more than ``max_bytes``: beyond, buckets have to move."""
    known = {pod: server for pod, server in servers.items() if server.points}
    peers = list(known.values())
    now, left = growth.samples, max(0, samples_end - growth.samples)
    soon, resized, moved = (
        min(left, samples_per_s * s) for s in (SURPRISE_LEADS * lead.resize_s, lead.resize_s, lead.move_s)
    )
    resized = max(resized, left / 50)
    grid = sorted({now + resized, now + moved, *(now + left * step / HORIZONS for step in range(1, HORIZONS + 1))})
    at_resized, at_moved = grid.index(now + resized), grid.index(now + moved)
    totals = _never_falling(growth.course(grid))
    totals[at_resized] = growth.as_lately(totals[at_resized], soon)
    shares = {pod: share_of_growth(server, peers) for pod, server in known.items()}
    paths = {
        pod: [bytes_at(server, _part(total, growth.categories, shares[pod]), cost) for total in totals]
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
    told = tuple(_tell(pod, known[pod], paths[pod], grid, now, samples_per_s) for pod in sorted(paths))
    reaches_end = reach == len(grid) - 1
    return MemoryForecast(told, int(wanted), int(tops[-1]), reaches_end, urgent or has_to_move, crosses)


def _never_falling(totals: list[Interval]) -> list[Interval]:
    """Categories do not go: what is not exceeded later is not exceeded before either, and the other way round."""
    lows = accumulate((total.low for total in totals), max)
    highs = list(accumulate((total.high for total in reversed(totals)), min))[::-1]
    return [
        Interval(low, max(low, min(total.mean, high)), high)
        for low, total, high in zip(lows, totals, highs, strict=True)
    ]


def _fullest(paths: dict[str, list[Interval]], step: int) -> Interval:
    """What one server needs at least, probably and at most, so that the fullest has it."""
    at = [path[step] for path in paths.values()]
    return Interval(max(i.low for i in at), max(i.mean for i in at), max(i.high for i in at))


def _part(total: Interval, stock: int, share: float) -> Interval:
    """One server's part of the new categories."""
    return Interval(
        share * 0.97 * (total.low - stock), share * (total.mean - stock), share * 1.03 * (total.high - stock)
    )


def _tell(
    pod: str,
    server: ServerUsage,
    path: list[Interval],
    grid: list[float],
    now: int,
    samples_per_s: float,
) -> ServerForecast:
    crossing = _crossing(server, path, grid, now)
    end = path[-1]
    in_s = (crossing - now) / samples_per_s if crossing is not None and samples_per_s > 0 else None
    return ServerForecast(
        pod,
        server.used_bytes,
        server.limit_bytes,
        int(max(0, end.mean)),
        int(max(0, end.low)),
        int(max(0, end.high)),
        in_s,
        int(crossing) if crossing is not None else None,
    )


def _crossing(server: ServerUsage, path: list[Interval], grid: list[float], now: int) -> float | None:
    """Samples at which the expected memory reaches the limit, interpolated; None: not before the end."""
    if server.limit_bytes <= 0:
        return None
    before, samples = float(server.used_bytes), float(now)
    if before >= server.limit_bytes:
        return samples
    for point, at in zip(path, grid, strict=True):
        if point.mean >= server.limit_bytes:
            return samples + (at - samples) * (server.limit_bytes - before) / (point.mean - before)
        before, samples = point.mean, at
    return None
