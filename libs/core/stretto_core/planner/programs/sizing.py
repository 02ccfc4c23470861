"""The size of a program that is only watched: cores and memory by what its worker used, since nobody knows its samples.

Memory: the used bytes m of the last windows lie about a line m = a + b t (least squares). If b is positive beyond its
standard error, a limit M is reached in (M - m) / b. More is asked for once that is near, or m is near M; less, once the
worker has long needed clearly less. A worker that is killed for its memory loses the whole run, so that little is saved
by taking the last byte.

Cores: a worker that uses nearly all of its cores gets more; if it uses no more then, or makes no more steps, it gets
back what it had and is not tried again. A worker that uses clearly less gives the rest back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import linear_regression, median

from stretto_messages.base import GIB
from stretto_messages.profiler import ProfileMeasured
from stretto_messages.values import Plan

from stretto_core.model.types import JobLimits

POINTS = 60
"""Windows that are kept of a worker."""
MEMORY_STEP_BYTES = 2**26
CORES_STEP = 0.1
LINE_POINTS_MIN = 6
SURE = 3.0
"""Slope of memory over its standard error from which on memory grows."""


@dataclass(frozen=True, slots=True)
class SizingRules:
    """Thresholds, all of taste: a change of a running program is cheap in place, and its death is not.

    ``windows`` settled ones tell what a plan brings; ``idle_windows`` what a worker does not need. A request that has
    no answer is repeated after ``again_s``.
    """

    windows: int = 6
    idle_windows: int = 12
    nearly: float = 0.85
    """Used share of memory or cores from which on more is asked for."""
    lead_s: float = 120.0
    """Time that is left until memory is full when more is asked for."""
    horizon_s: float = 600.0
    """Time for which it is to be enough, at the present growth."""
    headroom: float = 1.25
    """Factor on what a worker used, for what the worker gets."""
    memory_headroom: float = 1.5
    """Factor on the most memory used, where memory is given back."""
    still: float = 0.05
    """Share of the most memory used by which a worker grows in ``horizon_s`` at most where memory is given back: what a
    program prints grows the pages of its log for ever."""
    worth: float = 0.8
    """Less is asked for if it is at most this share of what there is."""
    shrink_after_s: float = 300.0
    """Time after the start of a worker, and after its last change, before memory is given back."""
    more_cores: float = 1.5
    gain: float = 1.1
    """Factor on what a worker used, or on its steps, by which more cores have proved useful."""
    again_s: float = 60.0


@dataclass(slots=True)
class WindowUse:
    """Use of a worker in one window, and the steps that its program told."""

    at_s: float
    memory_bytes: int
    cpu_cores: float
    steps_per_s: float
    settled: bool


@dataclass(slots=True)
class MoreCores:
    """More cores that were asked for, and what the worker did with fewer."""

    cpu_cores: float
    used_cores: float
    steps_per_s: float


@dataclass(slots=True)
class ProgramUse:
    """Use of a watched program so far, and the size that was asked for it."""

    pod: str = ""
    plan_version: int = 0
    since_s: float = 0.0
    """Start of this worker under this plan."""
    uses: list[WindowUse] = field(default_factory=list[WindowUse])
    """The last windows of this worker, of any plan."""
    under_plan: int = 0
    """The newest of them that are of this plan and settled."""
    peak_bytes: int = 0
    """Most memory of any worker of the job so far."""
    trial: MoreCores | None = None
    enough_cores: float = 0.0
    """Cores beyond which more brought nothing; 0: not known."""
    asked_at_s: float | None = None


def sized(
    state: ProgramUse,
    event: ProfileMeasured,
    limits: JobLimits,
    most_cores: float,
    now: float,
    rules: SizingRules,
    only_memory: bool = False,
) -> tuple[Plan, str] | None:
    """Take in a window; return the plan that the program should have, and why. None: it has the right one.

    ``most_cores``: of the cluster. ``only_memory``: its job file states its size, and only its death is prevented.
    """
    _note(state, event, now)
    if not state.uses or (state.asked_at_s is not None and now - state.asked_at_s < rules.again_s):
        return None
    high = replace(limits.high, worker_cpu_cores=max(min(limits.high.worker_cpu_cores, most_cores), CORES_STEP))
    bounds = JobLimits(
        replace(limits.low, worker_cpu_cores=min(limits.low.worker_cpu_cores, high.worker_cpu_cores)), high
    )
    found = _more_memory(state, event.plan, bounds, rules)
    if found is None and not only_memory:
        found = _cores(state, event.plan, bounds, rules) or _less_memory(state, event.plan, bounds, now, rules)
    if found is not None:
        state.asked_at_s = now
    return found


def _note(state: ProgramUse, event: ProfileMeasured, now: float) -> None:
    if not event.workers:
        return
    worker = event.workers[-1]
    if worker.pod != state.pod:
        state.pod, state.since_s, state.under_plan = worker.pod, now, 0
        state.uses.clear()
    if event.plan_version != state.plan_version:
        state.plan_version, state.since_s, state.under_plan, state.asked_at_s = event.plan_version, now, 0, None
        if state.trial is not None and event.plan.worker_cpu_cores <= state.trial.cpu_cores:
            state.trial = None  # another plan was decided in its place
    use = WindowUse(now, worker.memory_used_bytes, worker.cpu_used_cores, worker.samples_per_s, event.settled)
    state.uses = [*state.uses[-POINTS + 1 :], use]
    state.under_plan = min(state.under_plan + 1, POINTS) if event.settled else 0
    state.peak_bytes = max(state.peak_bytes, use.memory_bytes)


# ---- memory ---------------------------------------------------------------------------------------------------------


def growth_bytes_per_s(uses: Sequence[WindowUse]) -> float:
    """Return by how much memory grows each second; 0: not surely.

    b = S_xy / S_xx, and its standard error is sqrt(S_rr / ((n - 2) S_xx)), S_rr the sum of the squared residuals.
    """
    n = len(uses)
    if n < LINE_POINTS_MIN:
        return 0.0
    times, sizes = [use.at_s - uses[0].at_s for use in uses], [float(use.memory_bytes) for use in uses]
    if times[-1] <= 0:
        return 0.0
    slope, base = linear_regression(times, sizes)
    mean = sum(times) / n
    s_xx = sum((time - mean) ** 2 for time in times)
    s_rr = sum((size - base - slope * time) ** 2 for time, size in zip(times, sizes, strict=True))
    return slope if slope > SURE * math.sqrt(s_rr / ((n - 2) * s_xx)) else 0.0


def _more_memory(state: ProgramUse, plan: Plan, limits: JobLimits, rules: SizingRules) -> tuple[Plan, str] | None:
    has, used = plan.worker_memory_bytes, state.uses[-1].memory_bytes
    growth = growth_bytes_per_s(state.uses[-rules.idle_windows :])
    is_soon = growth > 0 and used + growth * rules.lead_s >= has
    if not is_soon and used < rules.nearly * has:
        return None
    need = max(rules.headroom * used, used + growth * rules.horizon_s)
    wanted = limits.clamp(replace(plan, worker_memory_bytes=_rounded(need, MEMORY_STEP_BYTES)))
    if wanted.worker_memory_bytes <= has:
        return None
    told = f"{state.pod} uses {_gib(used)} of {_gib(has)}"
    if is_soon:
        full_s = max(0.0, (has - used) / growth)
        told += f" and {growth / 2**20:.1f} MiB more each second, so that it would be full in {full_s:.0f} s"
    return wanted, told


def _less_memory(
    state: ProgramUse, plan: Plan, limits: JobLimits, now: float, rules: SizingRules
) -> tuple[Plan, str] | None:
    has = plan.worker_memory_bytes
    grows = growth_bytes_per_s(state.uses) * rules.horizon_s > rules.still * state.peak_bytes
    rests = now - state.since_s >= rules.shrink_after_s and not grows
    if not rests or state.under_plan < rules.idle_windows:
        return None
    need = _rounded(rules.memory_headroom * state.peak_bytes, MEMORY_STEP_BYTES)
    wanted = limits.clamp(replace(plan, worker_memory_bytes=need))
    if wanted.worker_memory_bytes > rules.worth * has:
        return None
    used = f"{state.pod} has never used more than {_gib(state.peak_bytes)} of {_gib(has)}"
    return wanted, f"{used}, and uses no more than before since {now - state.since_s:.0f} s"


# ---- cores ----------------------------------------------------------------------------------------------------------


def _cores(state: ProgramUse, plan: Plan, limits: JobLimits, rules: SizingRules) -> tuple[Plan, str] | None:
    if state.under_plan < rules.windows:
        return None
    has, lately = plan.worker_cpu_cores, state.uses[-rules.windows :]
    used, rate = median(use.cpu_cores for use in lately), median(use.steps_per_s for use in lately)
    if state.trial is not None and has > state.trial.cpu_cores:
        before, state.trial = state.trial, None
        if used < rules.gain * before.used_cores or 0 < rate < rules.gain * before.steps_per_s:
            state.enough_cores = before.cpu_cores
            return limits.clamp(replace(plan, worker_cpu_cores=before.cpu_cores)), _in_vain(has, used, rate, before)
    if used >= rules.nearly * has:
        return _more_cores(state, plan, limits, used, rate, rules)
    recent = state.uses[-state.under_plan :]
    most = max(use.cpu_cores for use in recent)
    wanted = limits.clamp(replace(plan, worker_cpu_cores=_rounded_cores(rules.headroom * most)))
    if len(recent) < rules.idle_windows or wanted.worker_cpu_cores > rules.worth * has:
        return None
    span_s = recent[-1].at_s - recent[0].at_s
    return wanted, f"{state.pod} has used at most {most:.2f} of {has:g} cores for {span_s:.0f} s"


def _more_cores(
    state: ProgramUse, plan: Plan, limits: JobLimits, used: float, rate: float, rules: SizingRules
) -> tuple[Plan, str] | None:
    has = plan.worker_cpu_cores
    wanted = limits.clamp(replace(plan, worker_cpu_cores=_rounded_cores(rules.more_cores * has)))
    if wanted.worker_cpu_cores <= has or 0 < state.enough_cores < wanted.worker_cpu_cores:
        return None
    state.trial = MoreCores(has, used, rate)
    return wanted, f"{state.pod} uses {used:.2f} of {has:g} cores, nearly all"


def _in_vain(has: float, used: float, rate: float, before: MoreCores) -> str:
    told = f"it used {used:.2f} of {has:g} cores, and {before.used_cores:.2f} when it had {before.cpu_cores:g}"
    if rate > 0 and before.steps_per_s > 0:
        told += f"; {rate:.3g} steps a second, and {before.steps_per_s:.3g} then"
    return f"more cores brought nothing: {told}"


def _rounded(size_bytes: float, step_bytes: int) -> int:
    return math.ceil(size_bytes / step_bytes) * step_bytes


def _rounded_cores(cores: float) -> float:
    return max(math.ceil(round(cores / CORES_STEP, 6)), 1) / 10


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / GIB:.2f} GiB"
