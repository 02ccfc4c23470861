"""A job's candidate plans: the exact Pareto front of resource cost and throughput (DLRover-RM Eq. 7-9).

Enumerating the whole grid is exact and takes about 30 ms for a million plans, so it is the default; NSGA-II, the
paper's choice, is a plug-in behind :class:`CandidateAlgorithm`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from stretto_messages.base import GIB
from stretto_messages.values import (
    DEVICES,
    NO_EXTENDED,
    Candidate,
    ExtendedPerPod,
    Interval,
    Plan,
    Resources,
    WorkerGroup,
)

from stretto_core.model.mixed import MixedWorkers, StageRatio
from stretto_core.model.throughput import KNOWS_NOTHING, Array, Configuration, FittedModel, Inputs, throughput
from stretto_core.model.types import DeviceType, JobLimits, Prices

MEBIBYTE = 1024**2
MEMORY_STEP_BYTES = 16 * MEBIBYTE
"""Memory of a server is given in steps of this size: a fifth of a server without rows (86 MiB, measured). Taste."""
COST_BINS = 65536
NORMAL_90 = 1.645  # standard deviations to either side of a 90 % interval
AXIS_LIMITS = (64, 32, 32, 32)  # values per axis; longer ranges are thinned geometrically


@dataclass(frozen=True, slots=True)
class Grid:
    """Every plan that a search may return. ``ps_memory_bytes`` has one value per entry of ``ps``, because the
    embeddings are split over the PSes. ``extended``: what every pod has beside cores and memory. ``groups``: workers on
    devices, which every plan of the grid has among its workers."""

    workers: tuple[int, ...]
    ps: tuple[int, ...]
    worker_cpu_cores: tuple[float, ...]
    ps_cpu_cores: tuple[float, ...]
    worker_memory_bytes: int
    ps_memory_bytes: tuple[int, ...]
    extended: ExtendedPerPod = NO_EXTENDED
    groups: tuple[WorkerGroup, ...] = ()

    @property
    def on_devices(self) -> int:
        """Number of workers of every plan that are on devices."""
        return sum(group.workers for group in self.groups)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Values per axis, in the order w, p, l_w, l_p."""
        return (len(self.workers), len(self.ps), len(self.worker_cpu_cores), len(self.ps_cpu_cores))

    def plan(self, index: int) -> Plan:
        """The plan at a flat (C order) index."""
        return self.plans(np.array([index]))[0]

    def plans(self, indices: NDArray[np.int64]) -> list[Plan]:
        """The plans at flat indices."""
        return [
            Plan(
                workers=self.workers[w],
                ps=self.ps[p],
                worker_cpu_cores=self.worker_cpu_cores[lw],
                ps_cpu_cores=self.ps_cpu_cores[lp],
                worker_memory_bytes=self.worker_memory_bytes,
                ps_memory_bytes=self.ps_memory_bytes[p],
                groups=self.groups,
            )
            for w, p, lw, lp in np.stack(np.unravel_index(indices, self.shape), axis=1).tolist()
        ]

    def inputs(self, batch_size: int) -> Inputs:
        """The grid as arrays that broadcast to :attr:`shape`."""
        w = np.array(self.workers, dtype=np.float64).reshape(-1, 1, 1, 1)
        p = np.array(self.ps, dtype=np.float64).reshape(1, -1, 1, 1)
        lw = np.array(self.worker_cpu_cores, dtype=np.float64).reshape(1, 1, -1, 1)
        lp = np.array(self.ps_cpu_cores, dtype=np.float64).reshape(1, 1, 1, -1)
        one = np.ones((1, 1, 1, 1))
        return Inputs(w, p, lw, lp, one * batch_size, one, one, one)

    def resources(self) -> tuple[Array, Array]:
        """Cores and bytes of every plan; the bytes broadcast."""
        x = self.inputs(1)
        ps_bytes = np.array(self.ps_memory_bytes, dtype=np.float64).reshape(1, -1, 1, 1)
        workers = x.workers - self.on_devices
        cores = workers * x.worker_cpu_cores + x.ps * x.ps_cpu_cores
        return cores, workers * self.worker_memory_bytes + x.ps * ps_bytes

    def cost_per_hour(self, prices: Prices) -> Array:
        """RC of every plan (Eq. 7), in :attr:`shape`."""
        cores, memory = self.resources()
        cost = cores * prices.cpu_core_hour + memory / GIB * prices.memory_gib_hour
        of_worker, of_ps = (prices.of_extended(counts) for counts in (self.extended.worker, self.extended.ps))
        if self.groups:
            cost = cost + prices.of_extended(tuple((DEVICES + each.device, each.workers) for each in self.groups))
        if not (of_worker or of_ps):
            return cost
        x = self.inputs(1)
        return cost + ((x.workers - self.on_devices) * of_worker + x.ps * of_ps)

    def beyond(self, room: Resources) -> NDArray[np.bool_]:
        """Return which plans need more than ``room``; broadcasts to :attr:`shape`."""
        cores, memory = self.resources()
        over = (cores > room.cpu_cores + 1e-9) | (memory > room.memory_bytes)
        of_worker, of_ps = dict(self.extended.worker), dict(self.extended.ps)
        for name in of_worker.keys() | of_ps.keys():
            x = self.inputs(1)
            counts = (x.workers - self.on_devices) * of_worker.get(name, 0) + x.ps * of_ps.get(name, 0)
            over = over | (counts > room.count_of(name))
        return over | any(group.workers > room.count_of(DEVICES + group.device) for group in self.groups)


def grid_within(
    limits: JobLimits,
    room: Resources,
    current: Plan | None = None,
    *,
    cpu_step: float = 0.5,
    extended: ExtendedPerPod = NO_EXTENDED,
) -> Grid:
    """The grid of a job's limits, as far as ``room`` (what the whole job may use) can reach.

    ``extended``: what every pod has beside cores and memory. ``cpu_step`` in cores; the values of ``current``
    are always on it. Memory is not searched: a worker keeps its memory, and so does a PS, unless there are fewer PSes
    than now, which then hold the embeddings of the others.
    """
    low, high = limits.low, limits.high
    start = current or low

    def reachable(name: str) -> int:
        pod = low.pod("worker" if name == "workers" else "ps", extended)
        most = min(room.cpu_cores / pod.cpu_cores, room.memory_bytes / pod.memory_bytes)
        by_device = (room.count_of(device) // count for device, count in pod.extended)
        return max(min([math.floor(most + 1e-9), *by_device]), getattr(low, name))

    def cores(name: str, limit: int) -> tuple[float, ...]:
        least = getattr(low, name)
        most = max(min(getattr(high, name), room.cpu_cores), least)
        return tuple(sorted({*_core_axis(least, most, cpu_step, limit), getattr(start, name)}))

    counts = sorted({*_whole_axis(low.ps, min(high.ps, reachable("ps")), AXIS_LIMITS[1]), start.ps})
    needs = [math.ceil(start.ps_memory_bytes * max(start.ps / p, 1)) for p in counts]
    # a count whose PSes cannot hold the embeddings is no plan; the present one stays, whatever it holds
    holding = [
        (p, need) for p, need in zip(counts, needs, strict=True) if need <= high.ps_memory_bytes or p == start.ps
    ]
    workers = {*_whole_axis(low.workers, min(high.workers, reachable("workers")), AXIS_LIMITS[0]), start.workers}
    return Grid(
        workers=tuple(sorted(count for count in workers if count > 0)),
        ps=tuple(p for p, _ in holding),
        worker_cpu_cores=cores("worker_cpu_cores", AXIS_LIMITS[2]),
        ps_cpu_cores=cores("ps_cpu_cores", AXIS_LIMITS[3]),
        worker_memory_bytes=start.worker_memory_bytes,
        ps_memory_bytes=tuple(max(need, low.ps_memory_bytes) for _, need in holding),
        extended=extended,
    )


def _whole_axis(low: int, high: int, limit: int) -> tuple[int, ...]:
    if high - low < limit:
        return tuple(range(low, high + 1))
    return tuple(sorted({round(value) for value in np.geomspace(low, high, limit)}))


def _core_axis(low: float, high: float, step: float, limit: int) -> tuple[float, ...]:
    """Whole steps from ``low`` on, thinned geometrically, and ``high``."""
    count = math.floor((high - low) / step + 1e-9)
    if count < limit:
        steps = set(range(count + 1))
    else:
        steps = {0, *(round((value - low) / step) for value in np.geomspace(low, high, limit))}
    return tuple(sorted({min(round(low + i * step, 6), high) for i in steps} | {high}))


@dataclass(frozen=True, slots=True)
class PricedPlan:
    """A plan with its predicted throughput (samples per second) and its cost per hour."""

    plan: Plan
    throughput: float
    cost_per_hour: float


@dataclass(frozen=True, slots=True)
class Verified:
    """A configuration that was measured: its throughput replaces the prediction. ``log_sd`` is its uncertainty.

    ``groups`` of its plan: with another mix of devices it is another plan.
    """

    configuration: Configuration
    throughput: float
    log_sd: float
    groups: tuple[WorkerGroup, ...] = ()


class Points(NamedTuple):
    """A Pareto front as arrays, by rising cost per hour."""

    cost: Array
    throughput: Array

    def beat(self, cost: Array, throughput: Array) -> NDArray[np.bool_]:
        """Return which points are no faster than one of the front that costs no more."""
        fastest = np.concatenate([[-np.inf], self.throughput])
        return throughput <= fastest[np.searchsorted(self.cost, cost, side="right")]


@dataclass(frozen=True, slots=True)
class CandidateProblem:
    """The input of a candidate algorithm. ``room`` is what the whole job may use (None: the grid alone limits it),
    ``seed`` is for algorithms that draw random numbers. ``devices``: the types that its workers may have. ``had``: the
    front of other plans; what it beats may be left out."""

    model: FittedModel
    batch_size: int
    grid: Grid
    prices: Prices
    verified: tuple[Verified, ...] = ()
    room: Resources | None = None
    seed: int = 0
    devices: tuple[DeviceType, ...] = ()
    back_s: float = 0.0
    """Time until another worker trains after one was taken away."""
    stage_ratios: tuple[StageRatio, ...] = ()
    had: Points | None = None

    @property
    def workers(self) -> MixedWorkers:
        """The workers of its plans, whatever devices they have."""
        return MixedWorkers(self.model, self.batch_size, self.devices, self.back_s, self.stage_ratios)

    def beyond_room(self) -> NDArray[np.bool_]:
        """Return which plans of the grid need more than ``room``, in the grid's shape."""
        if self.room is None:
            return np.zeros(self.grid.shape, dtype=np.bool_)
        return np.broadcast_to(self.grid.beyond(self.room), self.grid.shape)

    def throughput(self) -> Array:
        """Predicted (or verified) throughput of every plan of the grid, in the grid's shape."""
        x = self.grid.inputs(self.batch_size)
        if not self.grid.groups:
            result = np.array(np.broadcast_to(throughput(self.model.step_time_s(x), x), self.grid.shape))
        else:
            rates = self.workers.rates(x, self.grid.groups)
            result = sum((group.rate for group in rates), start=np.zeros(self.grid.shape))
        for known in self.verified:
            if known.groups == self.grid.groups and (index := self._index(known.configuration)) is not None:
                result[index] = known.throughput
        return result

    def _index(self, known: Configuration) -> tuple[int, int, int, int] | None:
        grid = self.grid
        try:
            return (  # a plan without workers on cores has whatever cores: those of the grid
                grid.workers.index(known.workers),
                grid.ps.index(known.ps),
                grid.worker_cpu_cores.index(known.worker_cpu_cores),
                grid.ps_cpu_cores.index(known.ps_cpu_cores),
            )
        except ValueError:
            return None


class CandidateAlgorithm(Protocol):
    """Algorithms of the kind ``pareto``; cheapest plan first."""

    def __call__(self, problem: CandidateProblem) -> list[PricedPlan]: ...


def exact_front(problem: CandidateProblem) -> list[PricedPlan]:
    """The exact Pareto front over the whole grid (Eq. 9), cheapest first."""
    cost = np.broadcast_to(problem.grid.cost_per_hour(problem.prices), problem.grid.shape).ravel()
    speed = np.where(problem.beyond_room(), -np.inf, problem.throughput()).ravel()
    found = pareto_indices(cost, speed)
    if problem.had is not None:  # most of a mix's front is beaten, and a plan takes longer than its numbers
        found = found[~problem.had.beat(cost[found], speed[found])]
    return [*map(PricedPlan, problem.grid.plans(found), speed[found].tolist(), cost[found].tolist())]


def with_verified(problem: CandidateProblem, front: Sequence[PricedPlan], current: Plan) -> list[PricedPlan]:
    """The front and every measured configuration, cheapest first.

    What was measured is known, what beats it may be only a prediction that turns out too uncertain to act on: then
    the measured plan is the best there is. Memory as in :func:`grid_within`, but beyond the job's limits too: whoever
    decides says why a plan that is known to be better cannot be had.
    """
    present = {(Configuration.of(priced.plan, problem.batch_size), priced.plan.groups) for priced in front}
    result = list(front)
    for known in problem.verified:
        at = known.configuration
        if (at, known.groups) in present or at.batch_size != problem.batch_size:
            continue
        memory = math.ceil(current.ps_memory_bytes * max(current.ps / at.ps, 1))
        plan = replace(
            current,
            workers=at.workers,
            ps=at.ps,
            worker_cpu_cores=at.worker_cpu_cores,
            ps_cpu_cores=at.ps_cpu_cores,
            ps_memory_bytes=memory,
            groups=known.groups,
        )
        result.append(
            PricedPlan(plan, known.throughput, problem.prices.cost_per_hour(plan.resources(problem.grid.extended)))
        )
    return sorted(result, key=lambda priced: (priced.cost_per_hour, -priced.throughput))


def pareto_indices(cost: Array, gain: Array) -> NDArray[np.int64]:
    """Indices of the points that no other point beats (cost down, gain up), by rising cost.

    Of equal points the first stays. Integer cost bins first discard what any strictly cheaper bin already beats
    (linear time), so that the exact sort sees only a few points of a million.
    """
    if cost.size <= COST_BINS:
        return _records(cost, gain, np.arange(cost.size))
    low, high = float(cost.min()), float(cost.max())
    bins = ((cost - low) * ((COST_BINS - 1) / max(high - low, 1e-300))).astype(np.int64)
    best = np.full(COST_BINS, -np.inf)
    np.maximum.at(best, bins, gain)
    cheaper = np.concatenate([[-np.inf], np.maximum.accumulate(best)[:-1]])
    return _records(cost, gain, np.flatnonzero(gain > cheaper[bins]))


def _records(cost: Array, gain: Array, kept: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the points of ``kept`` that gain more than every cheaper point, by rising cost."""
    order = kept[np.lexsort((kept, -gain[kept], cost[kept]))]
    record = np.maximum.accumulate(np.concatenate([[-np.inf], gain[order][:-1]]))
    return order[gain[order] > record]


@dataclass(frozen=True, slots=True)
class Overheads:
    """Seconds of training that a change wastes, from past changes of the cluster (Eq. 8's Overhead).

    Cores and memory of running pods change in place: that is not what moves parameters. A server is there after 2 s and
    its part of 5 million rows after one more, instead of 8 and 5 s of the servers on TensorFlow, which counted as 15
    (measured with two workers that train).
    """

    worker_change_s: float = 5.0
    ps_change_s: float = 4.0
    resize_s: float = 1.0

    def seconds(self, current: Plan, target: Plan) -> float:
        """The wasted seconds of going from one plan to another: workers join at once, PSes migrate one by one."""
        counts = (target.workers, target.groups) != (current.workers, current.groups)
        workers = self.worker_change_s if counts else 0.0
        same = replace(current, workers=target.workers, ps=target.ps, groups=target.groups)
        resized = self.resize_s if same != target else 0.0
        return workers + resized + abs(target.ps - current.ps) * self.ps_change_s


def half_width(candidate: Candidate) -> float:
    """Return half of the 90 % interval of log throughput."""
    interval = candidate.throughput_interval
    return math.log(max(interval.high, 1e-9) / max(interval.low, 1e-9)) / 2


def relative_error(candidate: Candidate) -> float:
    """Return one standard deviation of the prediction, relative: a 90 % interval is 1.645 of them to either side."""
    return half_width(candidate) / NORMAL_90


@dataclass(frozen=True, slots=True)
class Comparison:
    """The basis of comparison: the plan in force, its throughput, the samples that are left to train."""

    current: Plan
    current_throughput: float
    remaining_samples: float
    overheads: Overheads


def throughput_gain(after: float, against: Comparison, overhead_s: float) -> float:
    """TG = difference of throughput - Overhead (Eq. 8), in samples per second over the rest of the job.

    The overhead is time; spread over the job's remaining time under the new plan it becomes a throughput. A change
    that takes longer than what is left gains nothing: it costs all of the current throughput.
    """
    remaining_s = against.remaining_samples / max(after, 1e-12)
    lost = min(overhead_s / remaining_s, 1.0) if remaining_s > 0 else 1.0
    return after * (1 - lost) - against.current_throughput


def weigh(problem: CandidateProblem, front: Sequence[PricedPlan], against: Comparison) -> list[Candidate]:
    """Candidates with intervals, overhead and gain; cheapest first, as in ``front``."""
    if not front:
        return []
    configurations = [(Configuration.of(priced.plan, problem.batch_size), priced.plan.groups) for priced in front]
    log_sd = problem.workers.log_sd([priced.plan for priced in front])
    known = {(verified.configuration, verified.groups): verified.log_sd for verified in problem.verified}
    quantile = problem.model.quantile(0.9)
    result: list[Candidate] = []
    for priced, configuration, predicted_sd in zip(front, configurations, log_sd, strict=True):
        # a measured plan has its own standard error, which knows nothing of the model's few degrees of freedom
        measured_sd = known.get(configuration)
        width = quantile * float(predicted_sd) if measured_sd is None else NORMAL_90 * measured_sd
        overhead_s = against.overheads.seconds(against.current, priced.plan)
        factor = math.exp(min(width, KNOWS_NOTHING))
        result.append(
            Candidate(
                id=f"c{len(result)}",
                plan=priced.plan,
                cost_per_hour=priced.cost_per_hour,
                throughput=priced.throughput,
                throughput_interval=Interval(low=priced.throughput / factor, high=priced.throughput * factor),
                gain=throughput_gain(priced.throughput, against, overhead_s),
                overhead_s=overhead_s,
                stage_times_s=problem.workers.stage_times_s(priced.plan) if priced.plan.stages > 1 else (),
            )
        )
    return result


def thin(front: Sequence[PricedPlan], limit: int = 64, kept: Collection[Configuration] = ()) -> list[PricedPlan]:
    """At most ``limit`` plans, evenly spread over the logs of throughput, cheapest and fastest included.

    The plans of the configurations ``kept`` stay whatever the limit.
    """
    if len(front) <= limit:
        return list(front)
    speeds = np.array([priced.throughput for priced in front])
    sizes = {at.batch_size for at in kept}
    asked = [i for i, priced in enumerate(front) if any(Configuration.of(priced.plan, size) in kept for size in sizes)]
    wanted = np.geomspace(speeds.min(), speeds.max(), max(limit - len(asked), 2))
    picked = sorted({*asked, *(int(np.abs(speeds / value - 1).argmin()) for value in wanted)})
    return [front[i] for i in picked]
