"""The number of data workers follows the job's data queue. The queue here is computed from known times."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from job_builders import profile_measured
from stretto_core.model.types import DataWorkerLimits
from stretto_core.planner.tuning import Tuning, TuningState
from stretto_core.planner.tuning_rules import TuningRules
from stretto_messages.base import GIB
from stretto_messages.planner import DataWorkersProposed
from stretto_messages.profiler import ProfileMeasured
from stretto_messages.values import FeedProfile, Plan, Resources, StepTimes

BATCH = 512
WINDOW_S = 5.0
RULES = TuningRules()


@dataclass
class Job:
    """A job of ``workers`` that train a batch in ``train_s`` and wait for one that takes ``prepare_s``.

    ``store_per_s``: batches that the store gives to all readers together. ``room``: data workers that the arbiter has
    room for.
    """

    train_s: float = 0.01
    prepare_s: float = 0.03
    cpu_s: float = 0.001
    workers: int = 1
    cores: float = 1.0
    lanes_each: int = 1
    store_per_s: float = math.inf
    room: int = 1000
    most: int = 16
    has_lanes: bool = True
    missing: int = 0
    """Data workers that never serve."""
    slower: float = 1.0
    """Factor on the training time with data workers, such as of a trainer that is busy with receiving."""
    is_crowded: bool = False
    """Reading takes the cores that training needs."""
    noise: float = 1.0
    """Factor on the rate of the next window."""
    uneven_below: int = 0
    """Fewer data workers come unevenly: workers wait 8 % of their time though the rates suffice."""
    reads_ahead: bool = True
    asks_lanes: bool = True
    """Workers ask data workers for batches that take them long enough."""
    state: TuningState = field(default_factory=TuningState)
    given: int = 0
    now: float = 0.0
    said: list[DataWorkersProposed] = field(default_factory=list[DataWorkersProposed])

    def window(self) -> ProfileMeasured:
        lanes = max(self.given - self.missing, 0) * self.lanes_each if self.has_lanes else 0
        readers = lanes + (0 if lanes and self.is_crowded else self.workers)  # workers that wait read, too
        one_s = max(self.prepare_s, readers / self.store_per_s)
        supply_per_s = readers / one_s
        train_s = self.train_s * (self.slower if lanes else 1.0)
        if self.is_crowded and not lanes:
            train_s = max(train_s, (train_s + self.cpu_s) / self.cores)
        wanted_per_s = self.workers / train_s
        per_s = min(wanted_per_s, supply_per_s)
        if not lanes and not self.reads_ahead:
            per_s = self.workers / (train_s + one_s)
        if lanes and self.given < self.uneven_below:
            per_s = min(per_s, 0.92 * wanted_per_s)
        step_s = self.workers / per_s
        used = (train_s + (0.0 if lanes else self.cpu_s)) / step_s / self.cores
        feed = FeedProfile(
            dequeued_per_s=wanted_per_s,
            enqueued_per_s=lanes / one_s if self.asks_lanes else 0.0,
            read_share=1 - train_s / step_s,
            prepare_s=one_s,
            prepare_cpu_s=self.cpu_s,
            cpu_share=min(used, 1.0),
            lanes=lanes,
        )
        plan = Plan(self.workers, 1, self.cores, 1.0, GIB, GIB)
        return replace(
            profile_measured("job", 1, plan, step_s, per_s * BATCH * self.noise),
            batch_size=BATCH,
            settled=True,
            times=StepTimes(emb_s=0.0, grad_s=train_s, upd_s=0.0, sync_s=0.0, read_s=step_s - train_s),
            feed=feed,
        )

    def run(self, windows: int, left_s: float = 3600.0) -> None:
        for _ in range(windows):
            self.now += WINDOW_S
            tuning = self.tuning
            if (proposed := tuning.measured(self.window(), left_s, self.now)) is not None:
                self.said.append(proposed)
                self.given = min(proposed.count, self.room)
                tuning.decided(self.given)

    @property
    def tuning(self) -> Tuning:
        each = Resources(float(self.lanes_each), GIB)
        limits = DataWorkerLimits(each, most=self.most, reads_ahead=self.reads_ahead)
        return Tuning("job", self.state, limits, RULES)

    @property
    def per_s(self) -> float:
        return self.window().throughput / BATCH


def test_a_job_that_waits_for_its_reader_gets_as_many_as_it_lacks_in_one_step() -> None:
    job = Job(train_s=0.01, prepare_s=0.05)
    job.run(RULES.windows)
    assert (job.given, job.state.phase) == (5, "scaling")
    assert "workers wait 80 % of their time" in job.said[0].reasons[0].replace("%", " %")
    job.run(RULES.windows)
    assert job.state.phase == "settled"
    job.run(20)
    assert job.given == 5, "what is settled stays"
    assert job.per_s == pytest.approx(100.0)


@pytest.mark.parametrize(("prepare_s", "bound"), [(0.05, ": at most 5.00 times the speed"), (5.0, "")])
def test_a_bound_of_a_hundred_times_the_speed_is_not_told(prepare_s: float, bound: str) -> None:
    job = Job(train_s=0.01, prepare_s=prepare_s)
    job.run(RULES.windows)
    assert job.said[0].reasons[0].partition("for batches")[2] == bound


def test_a_program_keeps_data_workers_for_what_it_would_not_read_ahead_itself() -> None:
    """A batch takes half as long as its step: who reads ahead never waits, and who does not a third of the time."""
    alone, ahead = (Job(train_s=0.02, prepare_s=0.01, reads_ahead=each) for each in (False, True))
    for job in (alone, ahead):
        job.run(60)
    assert (alone.given, ahead.given) == (1, 0)
    assert [each.count for each in alone.said if each.count == 0] == []
    assert alone.per_s == pytest.approx(50.0)
    alone.prepare_s, alone.asks_lanes = 0.0002, False
    alone.run(5)
    assert alone.given == 0, "nobody asks for what costs nothing"


def test_a_number_with_which_workers_waited_is_not_spare_a_second_time() -> None:
    job = Job(train_s=0.01, prepare_s=0.02, given=6, uneven_below=4)  # three prepare 1.5 times what is taken
    job.state = TuningState(phase="settled", wanted=6, given=6, workers=1, worker_cpu_cores=1.0)
    job.run(60)
    assert [proposed.count for proposed in job.said] == [3, 4, 4], "the last one says that it stays"


def test_a_job_that_is_slower_with_data_workers_loses_them_after_the_first_windows() -> None:
    job = Job(train_s=0.01, prepare_s=0.012, slower=1.4)
    job.run(2 * RULES.windows)
    assert (job.given, job.state.phase) == (0, "fallen-back")
    assert (job.said[-1].phase, job.said[-1].count) == ("fallen-back", 0)
    assert "slower" in job.said[-1].reasons[0]
    job.run(60)
    assert (job.given, job.state.phase) == (0, "fallen-back"), "for good"


def test_a_job_with_room_for_too_few_keeps_them_and_grows_once_there_is_more() -> None:
    job = Job(train_s=0.01, prepare_s=0.05, room=1)
    job.run(2 * RULES.windows + 10)
    assert (job.given, job.state.wanted, job.state.phase) == (1, 5, "settled")
    job.given = 5
    job.tuning.decided(5)
    job.run(10)
    assert (job.given, job.state.phase) == (5, "settled")
    assert job.per_s == pytest.approx(100.0)


def test_nothing_starts_where_nothing_is_to_gain_or_the_job_ends_soon() -> None:
    fast = Job(train_s=0.02, prepare_s=0.01, cpu_s=0.0005)
    fast.run(50)
    ending = Job(train_s=0.01, prepare_s=0.05)
    ending.run(50, left_s=RULES.payback_s / 2)
    off = Job(train_s=0.01, prepare_s=0.05, most=0)
    off.run(50)
    assert not fast.said
    assert not ending.said
    assert not off.said


def test_reading_that_takes_the_workers_cores_moves_away_although_nobody_waits() -> None:
    job = Job(train_s=0.02, prepare_s=0.019, cpu_s=0.006, cores=1.0, is_crowded=True)
    job.run(RULES.windows)
    assert job.given == 1
    assert "of the workers' cores" in job.said[0].reasons[0]
    job.run(30)
    assert job.given == 1, "reading would take a third of the cores: it stays away"


def test_reading_that_moved_away_and_made_nothing_faster_comes_back() -> None:
    """The cores that it took were no limit: a data worker would cost more and bring nothing."""
    job = Job(train_s=0.02, prepare_s=0.019, cpu_s=0.006, cores=1.0)
    job.run(2 * RULES.windows)
    assert (job.given, job.state.phase) == (0, "fallen-back")


def test_a_limit_that_lies_elsewhere_is_found_and_the_surplus_goes() -> None:
    job = Job(train_s=0.01, prepare_s=0.02, store_per_s=60.0)
    job.run(60)
    assert job.state.phase == "settled"
    assert job.per_s == pytest.approx(60.0)
    assert job.given <= 2, "the store gives 60 batches per second to any number of readers"


def test_data_workers_go_again_once_the_store_is_fast_again() -> None:
    job = Job(train_s=0.01, prepare_s=0.05, cpu_s=0.0005)
    job.run(10)
    assert job.given == 5
    job.prepare_s = 0.002
    job.run(20)
    assert (job.given, job.state.phase) == (0, "alone")
    job.run(20)
    assert job.given == 0
    job.prepare_s = 0.05
    job.run(10)
    assert job.given == 5, "and come again"


@pytest.mark.parametrize("recovers_after", [0, 1, 5])
def test_a_store_that_recovers_before_data_workers_serve_is_none_of_their_doing(recovers_after: int) -> None:
    """Data workers are judged by the windows beside their coming, and come again when the store is slow again."""
    job = Job(train_s=0.01, prepare_s=0.05, cpu_s=0.0005, missing=1000)
    job.run(RULES.windows + recovers_after)
    assert job.given == 5
    job.prepare_s = 0.002
    job.run(2)
    job.missing = 0
    job.run(RULES.windows)
    assert job.state.before_per_s == pytest.approx(100.0)
    assert job.given == 0
    job.run(20)
    assert job.given == 0
    job.prepare_s = 0.05
    job.run(20)
    assert job.given == 5


def test_a_store_that_turns_slower_while_they_serve_is_no_reason_against_them() -> None:
    job = Job(train_s=0.01, prepare_s=0.05, most=2)
    job.run(10)
    assert job.given == 2
    job.prepare_s = 0.5
    job.run(40)
    assert job.given == 2
    assert job.per_s < 10.0


def test_more_workers_get_more_data_workers() -> None:
    job = Job(train_s=0.01, prepare_s=0.03)
    job.run(10)
    assert job.given == 3
    job.workers = 2
    job.run(10)
    assert job.given == 6


def test_a_job_that_is_slow_because_there_is_room_for_too_few_still_wants_as_many() -> None:
    job = Job(train_s=0.01, prepare_s=0.05, workers=2, room=1)
    alone_per_s = job.per_s
    job.run(60)
    assert (job.given, job.state.wanted) == (1, 10)
    assert job.per_s == pytest.approx(1.5 * alone_per_s)


def test_data_workers_that_end_the_waiting_and_bring_nothing_go_until_workers_wait_more() -> None:
    job = Job(train_s=0.01, prepare_s=0.0107, slower=1.06)
    job.run(2 * RULES.windows)
    assert (job.given, job.state.phase) == (0, "fallen-back")
    assert "the limit is elsewhere" in job.said[-1].reasons[0]
    job.run(50)
    assert len(job.said) == 2, "nothing has changed, so nothing is tried again"
    job.prepare_s = 0.05
    job.run(20)
    assert (job.given, job.state.phase) == (5, "settled")


@pytest.mark.parametrize("prepare_s", [0.0107, 0.015])
@pytest.mark.parametrize("window", range(4))
def test_a_state_that_knew_no_rates_decides_as_one_that_did(window: int, prepare_s: float) -> None:
    """Goal: an upgrade changes no decision. Method: the sum of rates is lost after each of the first windows."""
    job, upgraded = (Job(train_s=0.01, prepare_s=prepare_s, slower=1.06) for _ in "ab")
    job.run(20)
    upgraded.run(window)
    upgraded.state.windows_per_s = 0.0
    upgraded.run(20)
    assert (upgraded.given, upgraded.state.phase) == (job.given, job.state.phase)


def test_a_small_gain_is_rarely_taken_for_none_on_a_noisy_machine() -> None:
    """Workers wait 6 % of their time, so data workers gain 6 %; rates are off by 2 %, one window like another."""
    dice = random.Random(1)
    kept = 0
    for _ in range(200):
        job = Job(train_s=0.01, prepare_s=0.0107)
        for _ in range(8):
            job.noise = dice.gauss(1.0, 0.02)
            job.run(1)
        kept += job.given > 0
    assert kept >= 180


def test_data_workers_that_never_serve_are_given_up() -> None:
    job = Job(has_lanes=False)
    job.run(RULES.windows + int(RULES.silent_s / WINDOW_S))
    assert job.given, "they may still start"
    job.run(2)
    assert job.state.phase == "fallen-back"
    assert job.said[-1].reasons == ("no data worker came to serve",)
    job.prepare_s = 1.0
    job.run(50)
    assert job.state.phase == "fallen-back", "more waiting does not make them serve"


def test_plans_do_not_wait_for_ever_for_one_data_worker_that_never_serves() -> None:
    job = Job(train_s=0.01, prepare_s=0.05, missing=1)
    job.run(RULES.windows + int(RULES.silent_s / WINDOW_S))
    assert (job.given, job.tuning.is_trying) == (5, True)
    job.run(2)
    assert (job.given, job.tuning.is_trying) == (5, False)
    job.missing = 0
    job.run(20)
    assert (job.given, job.state.phase) == (5, "settled")


@pytest.mark.parametrize("train_s", [0.01, 0.005])
def test_a_number_that_a_user_asked_for_is_where_the_queue_goes_on(train_s: float) -> None:
    job = Job(train_s=0.01, prepare_s=0.05)
    job.run(10)
    assert job.given == 5
    for count in (5, None):  # the number stays the same, so the arbiter decides nothing
        tuning = job.tuning
        tuning.requested(count)
        job.state = tuning.state
    job.said.clear()
    job.train_s = train_s
    job.run(20)
    assert [proposed.count for proposed in job.said if proposed.count < 5] == []
    assert job.given == (5 if train_s == 0.01 else 10)


def test_a_window_that_is_not_settled_or_of_another_number_tells_nothing() -> None:
    job = Job(room=0)
    job.run(RULES.windows)
    assert job.state.wanted == 3
    assert job.given == 0
    job.run(50)
    assert len(job.said) == 1, "the arbiter has no room: asking again changes nothing"
    unsettled = replace(Job().window(), settled=False)
    state = TuningState()
    tuning = Tuning("job", state, DataWorkerLimits(Resources(1.0, GIB), most=16), RULES)
    assert all(tuning.measured(unsettled, 3600.0, float(n)) is None for n in range(10))
    assert state == TuningState()


TIMES = st.floats(0.001, 0.2)


@given(
    train_s=TIMES,
    prepare_s=TIMES,
    workers=st.integers(1, 8),
    lanes_each=st.integers(1, 4),
    most=st.integers(1, 40),
    room=st.integers(0, 40),
    store_per_s=st.one_of(st.just(math.inf), st.floats(5.0, 500.0)),
)
def test_a_job_ends_near_its_best_rate_with_few_more_than_needed(
    train_s: float, prepare_s: float, workers: int, lanes_each: int, most: int, room: int, store_per_s: float
) -> None:
    job = Job(train_s, prepare_s, 0.0, workers, 1.0, lanes_each, store_per_s, room, most)
    alone_per_s = job.per_s
    job.run(80)
    settled = [job.given]
    job.run(20)
    settled.append(job.given)
    assert settled[0] == settled[1], "it comes to rest"
    allowed = min(most, room)
    assert 0 <= job.given <= allowed
    rates = {count: replace(job, given=count).per_s for count in range(1, allowed + 1)} | {0: alone_per_s}
    best = max(rates.values())
    assert job.per_s >= 0.9 * best or job.per_s >= best / (1 + 2 * RULES.read_share_min)
    if store_per_s == math.inf and job.given == job.state.wanted:  # else it waits for room, with what there is
        least = min(count for count, rate in rates.items() if rate >= 0.95 * best)
        assert job.given <= 1.25 * least + 1
