"""From growth and cost to a decision: when memory runs out, and how much is needed (DLRover-RM section 5.3).

How much to ask for is a matter of honesty. A forecast of the end of a long job is wide at first, and its upper end
would waste memory. So the recommendation reaches only as far ahead as the interval is narrow: the furthest horizon
whose upper end is at most 12 % above its lower end. If the interval holds, the truth there is not below the lower
end, growth never falls, so the recommendation is at most 12 % above what the job needs in the end. When that
horizon comes near, the curve is known better, and the next one reaches further.
"""

from __future__ import annotations

from dataclasses import dataclass

from stretto_core.memory.growth import Growth, Interval
from stretto_core.memory.usage import RowCost, ServerUsage, bytes_at, share_of_growth

HORIZONS = 24
MARGIN_MAX = 1.12
SAFETY = 1.02


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
    """

    servers: tuple[ServerForecast, ...]
    recommended_bytes: int
    reaches_end: bool
    urgent: bool
    crosses: bool


def forecast(
    servers: dict[str, ServerUsage],
    growth: Growth,
    cost: RowCost,
    samples_end: int,
    samples_per_s: float,
    lead_s: float,
) -> MemoryForecast:
    """Forecast to ``samples_end``. ``lead_s``: the time that getting memory takes, with room."""
    known = {pod: server for pod, server in servers.items() if server.points}
    peers = list(known.values())
    now = growth.samples
    left = max(0, samples_end - now)
    lead = min(left, max(samples_per_s * lead_s, left / 50))
    grid = sorted({now + lead, *(now + left * step / HORIZONS for step in range(1, HORIZONS + 1))})
    totals = [growth.at(samples) for samples in grid]
    shares = {pod: share_of_growth(server, peers) for pod, server in known.items()}
    paths = {
        pod: [bytes_at(server, _part(total, growth.categories, shares[pod]), cost) for total in totals]
        for pod, server in known.items()
    }
    at_lead = grid.index(now + lead)
    tops = [max(path[step].high for path in paths.values()) * SAFETY for step in range(len(grid))]
    lows = [max(path[step].low for path in paths.values()) for step in range(len(grid))]
    reach = at_lead
    for step in range(len(grid)):
        if tops[step] <= MARGIN_MAX * lows[step]:
            reach = max(reach, step)
        elif step > at_lead:
            break
    limits = {pod: server.limit_bytes for pod, server in known.items()}
    urgent = any(path[at_lead].high * SAFETY >= limits[pod] > 0 for pod, path in paths.items())
    crosses = any(path[-1].high * SAFETY >= limits[pod] > 0 for pod, path in paths.items())
    told = tuple(_tell(pod, known[pod], paths[pod], grid, now, samples_per_s) for pod in sorted(paths))
    return MemoryForecast(told, int(max(tops[: reach + 1])), reach == len(grid) - 1, urgent, crosses)


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
