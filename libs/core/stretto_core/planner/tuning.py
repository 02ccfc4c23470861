"""The number of data workers of one job, told by its data queue (GoldMiner §3.4.1).

1. alone: the workers read for themselves. Nothing starts until they wait for batches, or reading takes the cores that
   they train on, in several windows one after the other.
2. scaling: so many start as the queue lacks by division; the next windows tell if that was right. GoldMiner climbs one
   by one instead, which is done here only where the windows contradict.
3. settled: workers need not wait. Data workers that are spare go, and all of them once reading at home costs nothing.

fallen-back: the job was not faster with data workers, though its workers waited no longer, or none ever served. It
wants none until its plan has other workers, or they wait clearly longer than when it tried.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from stretto_messages.base import counted
from stretto_messages.planner import DataWorkersProposed, TuningPhase
from stretto_messages.profiler import ProfileMeasured
from stretto_messages.values import NO_EXTENDED, FeedProfile, Plan

from stretto_core.model.throughput import ENDLESS, Supply
from stretto_core.model.types import DataWorkerLimits
from stretto_core.planner.tuning_rules import TuningRules

SLOWER = "the job was slower with data workers than without"
_TOLD_SHARE_MAX = 0.99
"""Share of waiting from which the bound on a job's gain says nothing, 100 times and more, and is not told."""


@dataclass(slots=True)
class TuningState:
    """The tuning of one job. Rates are batches per second of the whole job."""

    phase: TuningPhase = "alone"
    wanted: int = 0
    given: int = 0
    """Data workers that the arbiter decided on last."""
    windows: int = 0
    """Windows that told the same, one after the other."""
    windows_per_s: float = 0.0
    """Sum of their rates."""
    last_per_s: float = 0.0
    """Rate of the last window; 0: not known."""
    silent_since_s: float | None = None
    """Since when there is no lane, although data workers were given."""
    incomplete_since_s: float | None = None
    """Since when there are other lanes than those of the data workers given."""
    workers: int = 0
    """Workers of the plan that the rates are of."""
    worker_cpu_cores: float = 0.0
    alone_per_s: float = 0.0
    """Rate without data workers; 0: not known under this plan."""
    alone_share: float = 0.0
    """Largest part of their time that workers waited for batches when data workers were tried, under this plan."""
    before: int = 0
    before_per_s: float = 0.0
    """Data workers before the last increase, and the rate with them in the last windows before others served."""
    enough: int = 0
    """Number beyond which more brought nothing, under this plan; 0: not known."""
    short: int = 0
    """Number with which workers waited, under this plan: it is not enough, whatever the rates say; 0: none."""
    slow_since_s: float | None = None
    is_pinned: bool = False
    """A user has asked for a number: the queue decides nothing."""


class Tuning:
    """Decides on one window after the other."""

    def __init__(self, job: str, state: TuningState, limits: DataWorkerLimits, rules: TuningRules) -> None:
        self.job, self.state, self.limits, self.rules = job, state, limits, rules

    @property
    def is_trying(self) -> bool:
        """True while windows are to tell what data workers bring: no other change of the job may interfere."""
        return self.state.phase == "scaling" and self.state.given == self.state.wanted

    def supply(self, feed: FeedProfile, plan: Plan, room_cores: float) -> Supply:
        """Return how fast batches come under other plans than ``plan``. ``room_cores``: those of the whole cluster.

        Data workers follow the plan as long as plan and data workers fit the cluster together; into what both have now
        where the arbiter has no room for more.
        """
        state, each = self.state, self.limits.each.cpu_cores
        is_bound = feed.read_share >= self.rules.read_share_min
        most = state.given
        if state.phase != "fallen-back" and not state.is_pinned:
            most = state.enough or self.limits.most
        if feed.prepare_s <= 0 or not (most or is_bound):
            return ENDLESS
        if not most:
            return Supply(feed.prepare_s, home_ahead=self.limits.reads_ahead)
        if state.given < state.wanted:
            room_cores = min(room_cores, plan.resources(NO_EXTENDED).cpu_cores + state.given * each)
        one_per_s = (
            feed.enqueued_per_s / state.given if state.given and feed.lanes else self.limits.lanes / feed.prepare_s
        )
        return Supply(feed.prepare_s, one_per_s, most, each, room_cores, self.limits.reads_ahead)

    def decided(self, count: int) -> None:
        """Take note of the number that the arbiter gives."""
        state = self.state
        state.given = count
        state.windows, state.silent_since_s, state.incomplete_since_s = 0, None, None
        if state.phase == "alone":
            state.wanted = count

    def requested(self, count: int | None) -> None:
        """Begin anew under a user's number; None: the queue decides again, from the number that there is."""
        state = self.state
        self.state = TuningState(
            wanted=state.given,
            given=state.given,
            workers=state.workers,
            worker_cpu_cores=state.worker_cpu_cores,
            is_pinned=count is not None,
        )

    def measured(self, window: ProfileMeasured, left_s: float, now: float) -> DataWorkersProposed | None:
        """Return the number to ask for, if it is another. ``left_s``: training that is left at the present rate."""
        state, feed = self.state, window.feed
        if not window.settled or feed is None or not self.limits.most or state.is_pinned:
            return None
        self._note_plan(window)
        per_s = _steps_per_s(window)
        last_per_s, state.last_per_s = state.last_per_s or per_s, per_s
        if state.phase == "fallen-back":
            self._look_again(window, feed)
            return None
        if not state.given:
            return self._alone(window, feed, left_s) if not (feed.lanes or state.wanted) else None
        if feed.lanes != state.given * self.limits.lanes:
            if state.phase == "scaling" and feed.lanes == state.before * self.limits.lanes:
                _note_before(state, (last_per_s + per_s) / 2, feed, self.rules)
            return self._silent(feed, now)
        state.silent_since_s = state.incomplete_since_s = None
        if self._is_slow(window, feed, now):
            return self._fall_back(feed, SLOWER)
        if state.phase == "scaling":
            return self._judge(window, feed)
        return self._keep(window, feed)

    def _mean_rate(self, window: ProfileMeasured, windows: int) -> float | None:
        """Count one more window that tells the same; return their mean rate once there are so many."""
        state = self.state
        if not state.windows_per_s:  # of a state that knew no rates
            state.windows = 0
        state.windows_per_s = (state.windows_per_s if state.windows else 0.0) + _steps_per_s(window)
        state.windows = (state.windows + 1) % windows
        return None if state.windows else state.windows_per_s / windows

    def _note_plan(self, window: ProfileMeasured) -> None:
        """Forget what was measured under a plan with other workers; what they do alone grows with their number."""
        state, plan = self.state, window.plan
        if (plan.workers, plan.worker_cpu_cores) == (state.workers, state.worker_cpu_cores):
            return
        is_scaled = state.workers > 0 and plan.worker_cpu_cores == state.worker_cpu_cores
        state.alone_per_s *= plan.workers / state.workers if is_scaled else 0.0
        state.workers, state.worker_cpu_cores = plan.workers, plan.worker_cpu_cores
        state.windows = state.enough = state.short = 0
        state.last_per_s = 0.0
        state.alone_share, state.slow_since_s = 0.0, None
        if state.phase == "fallen-back":
            state.phase = "alone"
        elif state.given:  # as many as before, until the next windows tell
            state.phase, state.before = "scaling", state.given

    # phases ----------------------------------------------------------------------------------------------------

    def _alone(self, window: ProfileMeasured, feed: FeedProfile, left_s: float) -> DataWorkersProposed | None:
        state = self.state
        reason = self._gain(window, feed)
        if not reason or feed.prepare_s <= 0 or left_s < self.rules.payback_s:
            state.windows = 0
            return None
        if (per_s := self._mean_rate(window, self.rules.windows)) is None:
            return None
        state.alone_per_s, state.alone_share = per_s, max(state.alone_share, feed.read_share)
        worker_per_s = self.limits.lanes / feed.prepare_s
        state.before, state.before_per_s = 0, state.alone_per_s
        state.phase = "scaling"
        count = self._covering(feed.dequeued_per_s, worker_per_s)
        return self._propose(count, worker_per_s, feed, [reason, _covers(count, worker_per_s, feed)])

    def _gain(self, window: ProfileMeasured, feed: FeedProfile) -> str:
        """Return why data workers may pay, in words; empty if they do not."""
        if feed.read_share >= self.rules.read_share_min:
            most = ""
            if feed.read_share < _TOLD_SHARE_MAX:
                most = f": at most {1 / (1 - feed.read_share):.2f} times the speed"
            return f"workers wait {feed.read_share:.0%} of their time for batches{most}"
        share = _reading_share(window, feed)
        if feed.cpu_share >= self.rules.busy and share >= self.rules.cpu_share_min:
            return f"reading takes {share:.0%} of the workers' cores, which are {feed.cpu_share:.0%} used"
        return ""

    def _judge(self, window: ProfileMeasured, feed: FeedProfile) -> DataWorkersProposed | None:
        """Tell from the windows since the last change whether its number is right."""
        state, rules = self.state, self.rules
        if (per_s := self._mean_rate(window, rules.windows)) is None:
            return None
        worker_per_s = feed.enqueued_per_s / state.given
        if not state.before and state.given == state.wanted and per_s < (1 - rules.same) * state.alone_per_s:
            return self._fall_back(feed, SLOWER)
        promised = min((state.given - state.before) * worker_per_s, feed.dequeued_per_s - state.before_per_s)
        least = rules.little * promised if state.before else _least_gain(state, feed, rules)
        brings_nothing = state.given > state.before and per_s - state.before_per_s < least
        if feed.read_share < rules.read_share_min and (state.before or not brings_nothing):
            state.phase = "settled"
            return self._trim(feed, worker_per_s) or self._propose(
                state.wanted, worker_per_s, feed, [_waits(feed), _covers(state.given, worker_per_s, feed)]
            )
        if brings_nothing:
            state.phase, state.enough = ("settled" if state.before else "fallen-back"), state.before
            reason = f"{per_s:.1f} batches/s with {counted(state.given, 'data worker')}, {state.before_per_s:.1f} with"
            return self._propose(
                state.before, worker_per_s, feed, [f"{reason} {state.before or 'none'}: the limit is elsewhere"]
            )
        count = self._covering(feed.dequeued_per_s, worker_per_s, state.given + 1)
        if state.given < state.wanted or count <= state.given:  # no more room, or the job's own limit
            state.phase = "settled"
            return None
        state.before, state.before_per_s = state.given, per_s
        state.short = max(state.short, state.given)
        return self._propose(count, worker_per_s, feed, [_waits(feed), _covers(count, worker_per_s, feed)])

    def _keep(self, window: ProfileMeasured, feed: FeedProfile) -> DataWorkersProposed | None:
        """Give back what is spare, all if reading at home costs nothing; begin again where workers wait."""
        state, rules = self.state, self.rules
        worker_per_s = feed.enqueued_per_s / state.given
        waits = feed.read_share >= rules.read_share_min and state.given < (state.enough or self.limits.most)
        home = _is_free_at_home(window, feed, self.limits, rules)
        spare = _spare(state, feed, worker_per_s, rules) < state.given
        if not ((waits and state.given == state.wanted) or home or spare):
            state.windows = 0
            return None
        if (per_s := self._mean_rate(window, rules.windows + 1)) is None:  # longer: nothing is lost meanwhile
            return None
        if home:
            state.phase, state.alone_per_s, state.alone_share = "alone", 0.0, 0.0
            return self._propose(0, worker_per_s, feed, ["workers that read for themselves need not wait either"])
        if not waits:
            return self._trim(feed, worker_per_s)
        state.phase = "scaling"
        state.before, state.before_per_s = state.given, per_s
        state.short = max(state.short, state.given)
        count = self._covering(feed.dequeued_per_s, worker_per_s, state.given + 1)
        return self._propose(count, worker_per_s, feed, [_waits(feed), _covers(count, worker_per_s, feed)])

    def _trim(self, feed: FeedProfile, worker_per_s: float) -> DataWorkersProposed | None:
        count = _spare(self.state, feed, worker_per_s, self.rules)
        if count >= self.state.given:
            return None
        text = f"{count} of {self.state.given} data workers prepare as much as workers take"
        return self._propose(count, worker_per_s, feed, [text])

    # ends ------------------------------------------------------------------------------------------------------

    def _silent(self, feed: FeedProfile, now: float) -> DataWorkersProposed | None:
        """Wait for data workers to serve: they import the user's code first, and may be replaced.

        Where some serve, and others do not in time, no window will tell: the job's plan waits no longer.
        """
        state = self.state
        state.windows = 0
        if state.incomplete_since_s is None:
            state.incomplete_since_s = now
        elif state.phase == "scaling" and now - state.incomplete_since_s >= self.rules.silent_s:
            state.phase = "settled"
        if feed.lanes:
            state.silent_since_s = None
        elif state.silent_since_s is None:
            state.silent_since_s = now
        if state.silent_since_s is None or now - state.silent_since_s < self.rules.silent_s:
            return None
        state.alone_share = 1.0  # however long workers wait, another try would end the same
        return self._fall_back(feed, "no data worker came to serve")

    def _look_again(self, window: ProfileMeasured, feed: FeedProfile) -> None:
        """Begin anew where workers wait clearly longer than when data workers brought nothing."""
        state, rules = self.state, self.rules
        if feed.lanes or state.given or feed.read_share < state.alone_share + rules.again_share:
            state.windows = 0
        elif self._mean_rate(window, rules.windows) is not None:
            state.phase, state.enough = "alone", 0

    def _is_slow(self, window: ProfileMeasured, feed: FeedProfile, now: float) -> bool:
        """Return True if the job was slower than alone for too long."""
        state = self.state
        if not _is_slower(state, _steps_per_s(window), feed, self.rules):
            state.slow_since_s = None
        elif state.slow_since_s is None:
            state.slow_since_s = now
        return state.slow_since_s is not None and now - state.slow_since_s >= self.rules.patience_s

    def _fall_back(self, feed: FeedProfile, reason: str) -> DataWorkersProposed:
        self.state.phase = "fallen-back"
        return self._propose(0, 0.0, feed, [reason])

    def _covering(self, per_s: float, worker_per_s: float, least: int = 1) -> int:
        """Return how many prepare ``per_s``, within the job's limit."""
        count = math.ceil(per_s / worker_per_s * (1 - self.rules.same / 2)) if worker_per_s > 0 else least
        return min(max(count, least, self.state.short + 1), self.state.enough or self.limits.most)

    def _propose(self, count: int, worker_per_s: float, feed: FeedProfile, reasons: list[str]) -> DataWorkersProposed:
        self.state.wanted = count
        return DataWorkersProposed(
            job=self.job,
            count=count,
            phase=self.state.phase,
            worker_per_s=worker_per_s,
            dequeued_per_s=feed.dequeued_per_s,
            reasons=tuple(reasons),
        )


def _note_before(state: TuningState, per_s: float, feed: FeedProfile, rules: TuningRules) -> None:
    """Note the rate just before data workers serve: a store that recovers meanwhile is none of their doing."""
    state.before_per_s = per_s
    if not state.before:
        state.alone_per_s = per_s
        if feed.read_share < rules.read_share_min:  # what they were to end has ended: it may come again
            state.alone_share = 0.0


def _spare(state: TuningState, feed: FeedProfile, worker_per_s: float, rules: TuningRules) -> int:
    """Return the least number that is not scarce."""
    if worker_per_s <= 0:
        return state.given
    count = max(1, math.ceil(feed.dequeued_per_s * (1 + rules.spare) / worker_per_s))
    return max(count, state.short + 1)


def _steps_per_s(window: ProfileMeasured) -> float:
    return window.throughput / window.batch_size


def _reading_share(window: ProfileMeasured, feed: FeedProfile) -> float:
    """Return the part of its cores that a worker needs, or would need, to read for itself."""
    per_s = feed.dequeued_per_s / max(window.plan.workers, 1)
    return feed.prepare_cpu_s * per_s / window.plan.worker_cpu_cores


def _least_gain(state: TuningState, feed: FeedProfile, rules: TuningRules) -> float:
    """Return the least gain of the first data workers, in batches per second.

    Where waiting has ended, it is half of what that promised, if that is less than rates may differ: most of the jobs
    that wait little would else lose by noise what they have gained.
    """
    has_waited = feed.read_share < rules.read_share_min <= state.alone_share
    return min(rules.same, state.alone_share / 2 if has_waited else math.inf) * state.before_per_s


def _is_free_at_home(window: ProfileMeasured, feed: FeedProfile, limits: DataWorkerLimits, rules: TuningRules) -> bool:
    """Return True if a worker that prepares its batches hardly waits for them, and has the cores for it.

    A worker that reads ahead takes as long for a batch as a lane does, and waits the part of that which training does
    not cover. Any other waits for all of what it takes itself, and asks no lane where that is little. Half of what data
    workers begin at, so that they do not come and go.
    """
    lane_s = feed.lanes / feed.enqueued_per_s if feed.enqueued_per_s > 0 else math.inf
    train_s = window.plan.workers / feed.dequeued_per_s if feed.dequeued_per_s > 0 else 0.0
    waits = max(1 - train_s / lane_s, 0.0) if limits.reads_ahead else feed.prepare_s / (train_s + feed.prepare_s)
    is_busy = feed.cpu_share + _reading_share(window, feed) >= rules.busy
    takes = _reading_share(window, feed) >= rules.cpu_share_min / 2
    return waits < rules.read_share_min / 2 and not (is_busy and takes)


def _is_slower(state: TuningState, per_s: float, feed: FeedProfile, rules: TuningRules) -> bool:
    """Return True if the job is slower than alone though its workers do not wait, as they would for a slow store."""
    return feed.read_share < rules.read_share_min and per_s < (1 - rules.same) * state.alone_per_s


def _waits(feed: FeedProfile) -> str:
    return f"workers wait {feed.read_share:.0%} of their time for batches"


def _covers(count: int, worker_per_s: float, feed: FeedProfile) -> str:
    wanted = f"{feed.dequeued_per_s:.1f} that workers take"
    return f"{counted(count, 'data worker')} of {worker_per_s:.1f} batches/s for the {wanted}"
