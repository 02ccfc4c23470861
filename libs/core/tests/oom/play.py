"""Plays a generated curve against the memory watch and the arbiter, with an actuator that takes its time.

Time passes in windows of telemetry. A limit that the arbiter decides is in force ``resize`` windows later, whatever it
decides meanwhile; where its decision needs more servers, buckets move for ``migration`` windows, in which nothing can
be measured or decided.

Foreseeable. A perfect watch with the same telemetry knows what rows cost and the past; of the future it knows no more
than that a server hardly gets, within the reaction time, over ``KNOWABLE_FACTOR`` times the most it got in any equal
time of the last ``KNOWABLE_WINDOWS`` windows. Memory above what this bound leads to could be foreseen by nobody: a step
larger than that, within the reaction time, is not a failure of the watch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
from curves import BASE_SD_BYTES, BUCKETS, Curve, Floats, bytes_of, split
from job_builders import plan_applied, plan_proposed
from oom_builders import limit_changed, measured, progressed, server_measured
from stretto_core.arbiter.machine import ArbiterMachine
from stretto_core.arbiter.state import ArbiterSettings
from stretto_core.machine import Emit
from stretto_core.model import types
from stretto_core.model.spilling import COLD_ROW_BYTES, Step, hot_rows, reads_per_step
from stretto_core.model.types import JobLimits, JobProfile
from stretto_core.oom.machine import OomMachine
from stretto_core.oom.state import JobOpened, WatchSettings
from stretto_messages.arbiter import PlanDecided
from stretto_messages.base import GIB
from stretto_messages.oom import OomForecast
from stretto_messages.values import Plan, PsProfile, Resources

WINDOW_S = 5.0
KNOWABLE_FACTOR = 2.0
KNOWABLE_WINDOWS = 24
FIRST_WINDOWS = 6
"""what the job begins with has to last so long: nothing can be known before"""
MIB = 2**20
STEP, PULLED = Step(0.02, 0.0, 4, 17_000.0), 3000.0
"""Four workers without the pipeline, so that no read hides, and a virtual disk; rows that a step pulls."""
MISSES = (0.34, 0.22, 0.161, 0.123, 0.098, 0.079, 0.064, 0.052, 0.043, 0.035, 0.028, 0.022, 0.016, 0.01, 0.005, 0.0)
"""Miss ratios of a Zipf stream."""


@dataclass(frozen=True)
class Case:
    """Initial memory of a job and speed of its actuator. ``share``: initial memory as a share of the need.

    ``spills``: its servers evict rows rather than run out of memory; a disk is as large as it has to be.
    """

    share: float
    resize: int = 2
    migration: int = 6
    max_share: float = math.inf
    spills: bool = False

    @classmethod
    def draw(cls, seed: int, tight: float = 0.6) -> Case:
        """``tight``: share of the jobs that begin with too little; the others with too much."""
        rng = np.random.default_rng([seed, 77])
        little = rng.random() < tight
        share = rng.uniform(0.1, 0.9) if little else -rng.uniform(1.0, 3.0)
        most = float(rng.uniform(0.6, 0.9)) if little and rng.random() < 0.2 else math.inf
        return cls(float(share), int(rng.integers(1, 4)), int(rng.integers(4, 9)), most)


@dataclass
class Outcome:
    """Result of one job. ``*_over``: recommended capacity above the true need, as a share of it.

    ``end_over``: at the end. ``mean_over``: on average over the time from the first decision on, against the need to
    the end, what was too little counting as nothing. ``worst_over``: the largest request. ``end_error`` and
    ``covered``: of the forecast at the first third, for a job that stayed as it was. ``slowest``: the longest step,
    over one without reads; ``slow_s``: time in which steps were longer by a twentieth.
    """

    would_oom: bool
    oom_at: int | None = None
    oom_foreseeable: bool = False
    foreseeable: bool = True
    foreseen: bool = False
    began_over: float = 0.0
    end_over: float = 0.0
    mean_over: float = 0.0
    worst_over: float = 0.0
    decisions: int = 0
    end_error: float = math.nan
    covered: bool = True
    limits: list[float] = field(default_factory=list[float])
    slowest: float = 1.0
    slow_s: float = 0.0


class Play:
    """One job, its servers, and the machines."""

    def __init__(self, curve: Curve, case: Case, settings: WatchSettings | None = None) -> None:
        self.curve, self.case = curve, case
        self.held = dict(enumerate(curve.split))
        self._remember()
        first = self.used[:, : FIRST_WINDOWS + case.resize + 1].max()
        need = self.need(0)
        share = case.share
        begin = max(first * 1.03, need * -share) if share < 0 else first * 1.03 + (need - first) * share
        self.limit = int(begin)
        most = int(max(self.limit, need * case.max_share)) if math.isfinite(case.max_share) else 2**44
        total = int(curve.samples[-1])
        self.watch = OomMachine(None, settings or WatchSettings())
        self.watch.handle(JobOpened(total, 2**20, most), 0.0)
        self.plan = Plan(2, curve.servers, 1.0, 1.0, GIB, self.limit)
        low, high = Plan(1, 1, 1.0, 1.0, GIB, 2**20), Plan(8, 64, 1.0, 1.0, GIB, most)
        self.arbiter = ArbiterMachine(None, ArbiterSettings(Resources(1e6, 2**55)))
        profile = JobProfile(512, total, JobLimits(low, high), initial=self.plan)
        self.arbiter.handle(types.JobOpened("job", profile), 0.0)
        self.arbiter.handle(plan_proposed("job", "initial", self.plan, 1.0, ()), 0.0)
        self.arbiter.handle(plan_applied("job", 1, self.plan, 1.0), 0.0)
        self.pending: tuple[int, PlanDecided] | None = None
        self.raised: list[tuple[int, int]] = []
        """moments at which decided limits are in force, with the limits"""
        self.outcome = Outcome(need >= self.limit, foreseeable=True, began_over=self.limit / need - 1)

    def _remember(self) -> None:
        self.used = np.array([self.curve.used_bytes(held, pod) for pod, held in self.held.items()])
        self.known = np.array([self._knowable(held) for held in self.held.values()])

    def _knowable(self, held: range) -> Floats:
        """Memory that a perfect forecast would have requested one reaction time before each moment [T]."""
        curve, reaction = self.curve, 1 + self.case.resize
        per_bucket = curve.rows[:, held]
        rows = per_bucket.sum(1)
        gained = np.zeros(len(rows))
        gained[reaction:] = rows[reaction:] - rows[:-reaction]
        bound = np.full(len(rows), np.inf)
        for moment in range(FIRST_WINDOWS, len(rows) - reaction):
            most = gained[max(0, moment - KNOWABLE_WINDOWS) : moment + 1].max()
            after = per_bucket[moment] * (1 + KNOWABLE_FACTOR * most / max(rows[moment], 1))
            bytes_then = curve.base_bytes + bytes_of(after, np.array(held), curve.payload_bytes).sum()
            bound[moment + reaction] = bytes_then + 3 * BASE_SD_BYTES
        return bound

    @property
    def foreseeable(self) -> bool:
        """Return True if a perfect forecast would have covered every moment."""
        return bool((self.used <= self.known).all())

    def need(self, moment: int) -> float:
        """Return the need of the fullest server from ``moment`` to the end."""
        return float(self.used[:, moment:].max())

    def run(self) -> Outcome:
        over: list[float] = []
        for moment in range(len(self.curve.samples)):
            now = 1000 + WINDOW_S * moment
            self._apply(moment, now)
            fullest = self.used[:, moment]
            out = self.outcome
            if self.case.spills and all(self._hot_share(moment, pod) > 0 for pod in self.held):
                self._read(moment)
            elif (fullest >= self.limit).any():
                out.oom_at = moment
                out.oom_foreseeable = bool((fullest <= self.known[:, moment])[fullest >= self.limit].any())
                break
            self._measure(moment, now)
            out.limits.append(self.limit)
            if out.decisions:
                over.append(max(0.0, self.limit / self.need(moment) - 1))
        out.foreseeable = self.foreseeable
        out.end_over = self.limit / self.need(0) - 1
        out.mean_over = float(np.mean(over)) if over else max(0.0, out.end_over)
        return out

    def _hot_share(self, moment: int, pod: int) -> float:
        """Return the share of a server's rows that are in memory."""
        curve, held = self.curve, self.held[pod]
        rest = curve.base_bytes + curve.table_bytes(held)[moment] - curve.rows[moment, held].sum() * curve.row_bytes
        rows = float(curve.rows[moment, held].sum())
        return hot_rows(rows, curve.row_bytes, rest, self.limit) / max(rows, 1.0)

    def _read(self, moment: int) -> None:
        reads = max(reads_per_step(MISSES, self._hot_share(moment, pod), 1000 * PULLED, PULLED) for pod in self.held)
        slow = STEP.slowdown(reads)
        self.outcome.slowest = max(self.outcome.slowest, float(1 + slow))
        self.outcome.slow_s += WINDOW_S if slow > 0.05 else 0.0

    def _measure(self, moment: int, now: float) -> None:
        curve = self.curve
        done, recent = int(curve.samples[moment]), max(0, moment - 5)
        rate = (done - int(curve.samples[recent])) / (WINDOW_S * max(1, moment - recent)) or 1.0
        self.watch.handle(progressed(done, int(curve.samples[-1]), rate), now)
        self._decided(self.arbiter.handle(progressed(done, int(curve.samples[-1]), rate), now), moment)
        servers = tuple(
            self._server(pod, moment, int(used)) for pod, used in zip(self.held, self.used[:, moment], strict=True)
        )
        out, third = self.outcome, len(curve.samples) // 3
        for action in self.watch.handle(measured(servers, self.pending is None), now):
            assert isinstance(action, Emit)
            said: OomForecast = action.fact
            out.foreseen |= said.action == "grow" or any(s.oom_at_samples is not None for s in said.ps)
            if said.action == "grow" and len(self.held) == curve.servers:
                out.worst_over = max(out.worst_over, said.recommended_ps_memory_bytes / self.need(0) - 1)
            if moment <= third and len(self.held) == curve.servers:
                self._judge(said)
            self._decided(self.arbiter.handle(said, now), moment)

    def _server(self, pod: int, moment: int, used: int) -> PsProfile:
        curve, held = self.curve, self.held[pod]
        rows, tables = int(curve.rows[moment, held].sum()), int(curve.table_bytes(held)[moment])
        cold = int((1 - self._hot_share(moment, pod)) * rows) if self.case.spills else 0
        gone = int(cold * (curve.row_bytes - COLD_ROW_BYTES))
        server = server_measured(f"ps-{pod}", used - gone, self.limit, rows, len(held), curve.row_bytes, tables - gone)
        return replace(server, cold_rows=cold)

    def _judge(self, said: OomForecast) -> None:
        largest = int(self.used[:, -1].argmax())
        told, need = said.ps[largest], self.used[largest, -1]
        self.outcome.end_error = told.at_end_bytes / need - 1
        self.outcome.covered = bool(told.at_end_interval_bytes.low <= need <= told.at_end_interval_bytes.high)

    def _decided(self, actions: list, moment: int) -> None:
        for action in actions:
            if isinstance(action.fact, PlanDecided):
                wider = action.fact.plan.ps > self.plan.ps
                self.pending = (moment + (self.case.migration if wider else self.case.resize), action.fact)
                self.raised.append((moment + self.case.resize, action.fact.plan.ps_memory_bytes))
                self.outcome.decisions += 1

    def _apply(self, moment: int, now: float) -> None:
        """Memory of running servers is resized first; buckets that move are where they belong at the end."""
        if self.pending is None:
            return
        in_force = [limit for due, limit in self.raised if due <= moment]
        self.raised = [(due, limit) for due, limit in self.raised if due > moment]
        if in_force and max(in_force) > self.limit:
            self._resize(max(in_force), now)
        due, decided = self.pending
        if moment < due:
            return
        self.pending = None
        if decided.plan.ps > self.plan.ps:
            self.held = dict(enumerate(split(BUCKETS, decided.plan.ps)))
            self._remember()
        self.plan = decided.plan
        used = max(self.used[:, moment].max(), 0)
        self._resize(max(decided.plan.ps_memory_bytes, int(1.1 * used)), now)
        self._decided(self.arbiter.handle(plan_applied("job", decided.version, decided.plan, 1.0), now), moment)

    def _resize(self, limit: int, now: float) -> None:
        self.limit = limit
        self.watch.handle(limit_changed(limit), now)


def play(curve: Curve, case: Case, settings: WatchSettings | None = None) -> Outcome:
    """The whole job, or its way to the moment at which a server ran out of memory."""
    return Play(curve, case, settings).run()
