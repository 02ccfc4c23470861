"""Training one shard: read, pull, compute, push.

While a batch is computed, the next one is read. In a pipeline it is also pulled, and the last one is pushed, both by
the same messages where they are small. The next batch of a shard's last one is the first of the shard that is likely
to follow. Gradients of several batches may be added up and pushed at once, counted from the shard's beginning as
batches are: servers have all of them or none.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import takewhile

from stretto_parameters import Claim
from stretto_pipeline.feeding import SampleRange
from stretto_wire.jobspec.spec import PIPELINE_FROM_STEP

from ..batches.feed import Feed
from ..engine.client import FINISHED, Parameters
from ..engine.pulling import PULL_KEPT_S, Pulled
from ..errors import (
    BatchMisaligned,
    DataError,
    ModelRefused,
    OwnershipUnknown,
    ProgressGap,
    PushRefused,
    ServerLost,
    ServersReplaced,
    StaleAttempt,
)
from ..model.program import Program
from ..model.reading import Prepared
from ..stages.rows import RowsStage
from .computing import RETRY_S, Computing, Stopping
from .gradient_sum import GradientSum
from .look_ahead import LOOK_AHEAD, LookAhead, TimedChoice
from .pushing import Push, Pusher
from .step_timer import StepTime, StepTimer

log = logging.getLogger("stretto.worker")


@dataclass(frozen=True, slots=True)
class Work:
    """A lease: samples [start, start + length) of the data, of which the first ``offset`` are known to be applied."""

    shard: int
    attempt: int
    start: int
    length: int
    offset: int = 0
    generation: int | None = None
    """The generation of the parameter servers when the shard was requested; None: the current one."""
    partition: str = ""
    lineage: int | None = None
    """The return to a checkpoint that the leasing ledger comes from; None: the same as the parameters."""
    steps_before: int = 0
    """Steps of the job, on all workers, before the shard's first."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """Training stopped within the shard: on request, or (``stale``) because another worker may have the lease."""

    offset: int
    stale: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """A batch by its place: samples [begin, end) of its shard. pushed_from: the first sample of the push that has it.
    is_pushed: True for the last batch of a push.
    """

    begin: int
    end: int
    pushed_from: int
    is_pushed: bool


@dataclass(frozen=True, slots=True)
class _Pushing:
    """A push that is due or on its way. times: the times of its step so far."""

    place: Place
    begun_s: float
    times: StepTime


@dataclass(frozen=True, slots=True)
class _Ahead:
    """The first batch of the work that is likely to follow."""

    work: Work
    range: SampleRange
    read: Future[Prepared]
    pull: Future[Pulled] | None
    begun_s: float

    def is_of(self, work: Work, first: SampleRange) -> bool:
        return (self.work.shard, self.work.attempt, self.range) == (work.shard, work.attempt, first)


class Trainer:
    """Trains shards on ``parameters``. ``keep_going`` is called before every step, ``passed`` with every new offset.

    pipeline: pull the next batch's parameters and push the last one's gradients while a batch is computed. Without it
    a pull begins after the push before it is applied, so a worker's own updates are never missing.
    pipeline_from_step: steps of the job before which it is not used, every pull brings the dense parameters, and every
    batch is pushed.
    stage: others compute what is behind the rows, and push all gradients; each batch is pushed then. A step that none
    of them answers is computed and pushed here.
    """

    def __init__(
        self,
        program: Program,
        parameters: Parameters,
        batch_size: int,
        meter: StepTimer,
        keep_going: Callable[[], bool] = lambda: True,
        passed: Callable[[int], None] = lambda _: None,
        *,
        pipeline: bool = True,
        pipeline_from_step: int = PIPELINE_FROM_STEP,
        feed: Feed | None = None,
        look_ahead: LookAhead | None = None,
        stage: RowsStage | None = None,
    ) -> None:
        self._program = program
        self._computing = Computing(program, parameters, stage, keep_going)
        self._feed = feed or Feed(program)
        self._parameters = parameters
        self._batch_size = batch_size
        self._meter = meter
        self._keep_going = keep_going
        self._passed = passed
        self._pipeline = pipeline
        self._pipeline_from_step = pipeline_from_step
        self._pusher = Pusher(parameters, keep_going)
        self._on_its_way: _Pushing | None = None
        self._offset = 0  # samples of the shard that every column has
        self._begun: int | None = None  # shard
        self._ahead: _Ahead | None = None
        self._look_ahead = look_ahead or LookAhead()
        self._along = TimedChoice()  # whether a pull beside a computation goes with a push
        self._counted_s = 0.0
        self.last_loss = float("nan")

    def train(self, work: Work, ahead: Work | None = None) -> Stopped | None:
        """Train the rest of the shard; return None once every column has all its samples.

        ahead: work that is likely to follow. Its batches are read, and the first may be pulled, before the next call;
        nothing of it is pushed. If that call is for other work, they are dropped.

        The offset to resume at comes from the parameter servers, which alone know what they applied. Batches are cut
        from the shard's beginning, so a replay has the same boundaries.
        If the servers lack earlier samples, or were replaced, they may hold a restored checkpoint. The ledger restored
        with it may have leased the same samples under another shard id, so the shard is given up as stale. If the lease
        still holds, the dispatcher answers with it again, and training resumes.
        Raises DataError (the user's data or code), ModelRefused.
        """
        if work.generation is None:
            work = replace(work, generation=self._parameters.generation)
        again = work.shard == self._begun  # the dispatcher answered with the same lease again
        self._begun = work.shard
        offset = _resumed(self._parameters, work, self._keep_going) if again or work.attempt > 1 or work.offset else 0
        if offset is None:
            return Stopped(work.offset)
        try:
            return self._run(work, offset, ahead) if offset < work.length else None
        except (StaleAttempt, ProgressGap, ServersReplaced) as refused:
            log.warning("%s", refused)
            return Stopped(self._offset, stale=True)
        except BatchMisaligned as error:
            raise DataError(
                f"shard {work.shard}: {error}; was dataset.batch_size or model.wire.push_every changed?"
            ) from error

    def _run(self, work: Work, offset: int, ahead: Work | None) -> Stopped | None:
        self._offset = offset
        try:
            self._steps(work, offset, ahead)
        except Stopping:
            pass
        except (DataError, ModelRefused, PushRefused):  # of this batch: the push of the one before may be on its way
            self._settle()
            raise
        finally:
            if self._ahead is None:
                self._feed.follow(())
        self._settle()
        return None if self._offset >= work.length else Stopped(self._offset)

    def _steps(self, work: Work, offset: int, ahead: Work | None) -> None:
        """Run steps until the shard ends or training is to stop; the last push may still be on its way.

        Pushes go one at a time, in order. Each runs beside the next computations and ends before the next push. Batches
        that wait for theirs when training stops are trained again by the next who has the shard.
        """
        is_early = work.steps_before < self._pipeline_from_step  # when older parameters cost most
        # a group's step ends with new dense parameters, for which the next one waits
        pipeline = self._pipeline and not is_early and not self._parameters.in_group
        sums = self._computing.is_alone and not is_early
        places = _places(work, offset, self._batch_size, self._parameters.push_every if sums else 1)
        waiting, pays = GradientSum(self._program.layout), False
        ranges = _ranges(work, places)
        ranges += _ranges_ahead(ahead, ranges, self._batch_size)
        read, pull, is_followed = self._first(work, ranges)
        for number, place in enumerate(places):
            begun = time.monotonic()
            self._pusher.send_before(read, pull)
            ready = read.result()
            read_s = time.monotonic() - begun
            if not is_followed:
                self._feed.follow(ranges[1:], self._batches_ahead)
                is_followed = True
            pull = pull or self._computing.begin_pull(ready.keys, is_early)
            coming = self._feed.take(read_s) if number + 1 < len(ranges) else None
            wanted = time.perf_counter()
            pulled = self._computing.pulled(pull, ready.keys)
            # a pull that came with the last push was waited for there, unless that ran beside a computation
            waited = max(time.perf_counter() - wanted, 0.0 if pipeline else pulled.seconds)
            pull = self._begin_next(_ready(coming), ranges[number + 1 : number + 2], pipeline)
            if self._computing.asks and not self._settle():  # others push this batch behind the one before
                return
            computing = time.perf_counter()
            claim = Claim(work.shard, work.attempt, place.begin, place.end)
            gradients = self._computing.step(claim, work.generation, work.lineage, pulled, ready, not pipeline)
            computed = time.perf_counter() - computing
            self.last_loss = gradients.loss
            share = pulled.rows_seconds / max(1e-9, pulled.seconds)
            times = StepTime(waited * share, computed, 0.0, waited * (1 - share), read_s)
            if gradients.is_pushed:
                pays = True  # no rounding is owed here for what others have pushed
                self._applied(place, begun, times)
            else:
                waiting.add(ready.keys, gradients)
                # nothing of this worker may follow for a while: what rounding has left must not wait for that
                pays = place.is_pushed and (not self._keep_going() or number + 1 == len(ranges))
                if not self._pass_on(work, place, begun, times, waiting, pays):
                    return
                waiting = GradientSum(self._program.layout) if place.is_pushed else waiting
                if not pipeline:
                    following = _ready(coming) if number + 1 < len(places) else None
                    pull = None if following is None else self._pusher.pull_along(following.keys, is_early)
                    if not self._settle():
                        return
            if not self._keep_going() and (pays or not self._parameters.carries_debt):
                return
            if coming is not None:
                read = coming
        if ahead is not None and len(ranges) > len(places):
            self._ahead = _Ahead(ahead, ranges[len(places)], read, pull, time.monotonic())

    def _pass_on(
        self, work: Work, place: Place, begun_s: float, times: StepTime, waiting: GradientSum, pays: bool
    ) -> bool:
        """Begin the push that the batch is the last of; count any other batch, which waits for its push.

        False if training is to stop before the push on its way has ended.
        """
        if not place.is_pushed:
            self._count(place, begun_s, times)
        elif not self._settle():
            return False
        else:
            claim = Claim(work.shard, work.attempt, place.pushed_from, place.end)
            self._pusher.due(Push(claim, waiting, pays, work.generation, work.lineage))
            self._on_its_way = _Pushing(place, begun_s, times)
        return True

    def _first(self, work: Work, ranges: Sequence[SampleRange]) -> tuple[Future[Prepared], Future[Pulled] | None, bool]:
        """Return the first batch, its pull if it has begun, and whether the feed follows the ranges.

        A batch that was begun ahead comes under what was followed then; the feed follows the others once it is there.
        """
        begun, self._ahead = self._ahead, None
        if begun is not None and begun.is_of(work, ranges[0]):
            is_fresh = time.monotonic() - begun.begun_s < PULL_KEPT_S
            return begun.read, begun.pull if is_fresh else None, False
        self._feed.follow(())  # what was asked for ahead does not come
        self._feed.follow(ranges, self._batches_ahead)
        return self._feed.take(), None, True

    @property
    def _batches_ahead(self) -> int:
        """Batches to have ready: more than the next only where servers read rows from their disks meanwhile."""
        return self._look_ahead.batches if self._parameters.has_cold_rows else 1

    def _begin_next(
        self, coming: Prepared | None, following: Sequence[SampleRange], pipeline: bool
    ) -> Future[Pulled] | None:
        """Begin the pull of the next batch beside this step, if reading keeps pace, with the push that is due."""
        pull = None
        if coming is not None:
            self._hint(coming, following[0], pipeline)
            if pipeline:
                if not self._along.is_on:
                    self._pusher.send()
                pull = self._pusher.pull_along(coming.keys) or self._computing.begin_pull(coming.keys)
        self._pusher.send()
        return pull

    def _hint(self, coming: Prepared, following: SampleRange, is_pulled_next: bool) -> None:
        """Name to the servers the rows of the batches that are ready, in their order."""
        if self._batches_ahead > 1:
            first = [] if is_pulled_next else [(following, coming)]
            for batch in self._look_ahead.unnamed((*first, *self._feed.ready()[: LOOK_AHEAD - 1])):
                self._parameters.hint(batch.keys)

    def _settle(self) -> bool:
        """Wait for the push that is on its way and count its step; False if training is to stop before it succeeds."""
        pushing = self._on_its_way
        self._on_its_way = None
        if pushing is None:
            return True
        pushed = self._pusher.result()
        if pushed is None:
            return False
        update = min(pushed.update_seconds, pushed.seconds)
        times = pushing.times + StepTime(update_s=update, sync_s=pushed.seconds - update)
        self._applied(pushing.place, pushing.begun_s, times)
        return True

    def _applied(self, place: Place, begun_s: float, times: StepTime) -> None:
        """Count a step whose batch every column has."""
        self._count(place, begun_s, times)
        self._offset = place.end
        self._passed(self._offset)

    def _count(self, place: Place, begun_s: float, times: StepTime) -> None:
        ended_s = time.monotonic()
        self._meter.step(begun_s, ended_s, place.end - place.begin, times)
        if self._parameters.has_cold_rows:
            self._look_ahead.choice.passed(ended_s - begun_s)
        else:  # steps overlap: each is as long as the time since the one before, unless training began with it
            self._along.passed(ended_s - max(begun_s, self._counted_s))
        self._counted_s = ended_s

    def close(self) -> None:
        self._pusher.close()
        self._feed.close()


def _ready(coming: Future[Prepared] | None) -> Prepared | None:
    """Return a batch that is read; None while it is not, or if reading has failed."""
    return coming.result() if coming is not None and coming.done() and coming.exception() is None else None


def _resumed(parameters: Parameters, work: Work, keep_going: Callable[[], bool]) -> int | None:
    """Return the offset to resume at; None if training is to stop before the servers answer."""
    while keep_going():
        try:
            done = parameters.progress(work.shard, work.attempt)
            return work.length if done >= FINISHED else min(done, work.length)
        except (ServerLost, OwnershipUnknown) as error:
            log.warning("%s", error)
            time.sleep(RETRY_S)
    return None


def _places(work: Work, offset: int, batch_size: int, batches_a_push: int = 1) -> list[Place]:
    """Return the batches from ``offset`` on. Batches and pushes are cut from the shard's beginning."""
    of_push = batch_size * batches_a_push
    places: list[Place] = []
    for begin in (offset, *range(offset - offset % batch_size + batch_size, work.length, batch_size)):
        end = min(begin - begin % batch_size + batch_size, work.length)
        pushed_from = max(offset, begin - begin % of_push)
        places.append(Place(begin, end, pushed_from, end % of_push == 0 or end == work.length))
    return places


def _ranges(work: Work, places: Sequence[Place]) -> list[SampleRange]:
    return [SampleRange(work.partition, work.start + each.begin, each.end - each.begin) for each in places]


def _ranges_ahead(ahead: Work | None, before: Sequence[SampleRange], batch_size: int) -> list[SampleRange]:
    """Return the batches of the work ahead, until one of those before comes again: a feed has each range once."""
    if ahead is None:
        return []
    known = frozenset(before)
    return list(takewhile(lambda each: each not in known, _ranges(ahead, _places(ahead, ahead.offset, batch_size))))
