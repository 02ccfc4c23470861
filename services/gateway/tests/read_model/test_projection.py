"""The read model as a pure fold: sequences of events in, views out."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from itertools import accumulate, pairwise

import pytest
import stretto_wire as wire
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from stretto_gateway.read_model import alerts
from stretto_gateway.read_model.folds.fold import record
from stretto_gateway.read_model.folds.measurements import FITS, HISTORY_POINTS, MEMORY_POINTS_MIN
from stretto_gateway.read_model.folds.pods import LEASED_KEPT, PODS_KEPT
from stretto_gateway.read_model.projection import Projection
from stretto_gateway.read_model.summaries import STALLED_S, STOPPED_S, as_of, has_stopped, start_s, summary
from stretto_messages.actuator import (
    JobFailed,
    MigrationFinished,
    MigrationStarted,
    ParametersLost,
    PlanApplied,
    PodExited,
    PodPending,
    PodResized,
    ReplacementAsked,
    ReplacementEnded,
)
from stretto_messages.arbiter import DataWorkersDecided, ReplacementDecided
from stretto_messages.base import Message, example_of
from stretto_messages.books import CompletedBooks, GivenUp, Shortfall
from stretto_messages.checkpoints import CheckpointFailed, CheckpointFlushed, CheckpointRestored, ColumnsRestored
from stretto_messages.dispatcher import (
    JobCompleted,
    JobProgressed,
    LedgerReturn,
    ShardAbandoned,
    ShardCompleted,
    ShardLeased,
    ShardRequeued,
)
from stretto_messages.fitter import ModelFitted
from stretto_messages.gateway import DataWorkersRequested, JobCancelled, PlanRequested
from stretto_messages.oom import OomForecast
from stretto_messages.planner import CandidatesComputed, HistoryRecorded
from stretto_messages.profiler import ProfileMeasured
from stretto_messages.values import CheckpointRef, Evaluation, GroupProfile, Interval, Shard, WorkerGroup
from stretto_wire.rest.views import Fitted, JobView, ThroughputPoint

from tests import live_bus
from tests.live_bus import finished

from ..job_events import MIB, TIMES, decided, plan, profile, started, submitted, worker_report


def fold(*messages: Message) -> Projection:
    """One message a second, sequences from 1."""
    projection = Projection()
    for number, message in enumerate(messages, start=1):
        projection.apply(message, number, float(number))
    return projection


def test_a_job_goes_from_submitted_to_finished_with_its_books() -> None:
    projection = Projection()
    seen = []
    shard = Shard(id=3, attempt=1, epoch=0, start=0, length=100)
    messages: list[Message] = [
        submitted(),
        decided(1, "warm-start", plan(), None),
        started("ps-0"),
        ShardLeased(job="a", shard=shard, pod="worker-0"),
        ShardCompleted(job="a", shard=shard, pod="worker-0"),
        live_bus.completed("a", 2000, shards=20),
        finished("a", 2000, repeats_recognised=64, evaluation=Evaluation(samples=10, loss=0.4, auc=0.8)),
    ]
    for number, message in enumerate(messages, start=1):
        view = projection.apply(message, number, float(number), "t" * 32)
        assert view is not None
        seen.append(view.status)
    assert seen == ["submitted", "starting", "starting", "training", "training", "finishing", "finished"]
    view = projection.jobs["a"]
    assert view.trace_id == "t" * 32
    assert view.progress.samples_total == 2000
    assert view.shards.leased == {}
    assert view.shards.completed == 1
    assert view.books is not None
    assert (view.books.samples_lost, view.books.repeats_recognised, view.books.shards) == (0, 64, 20)
    assert view.ended_at_s == 7.0
    assert view.phases[-1].ended_at_s == 7.0


def test_a_decision_keeps_what_it_rested_on_and_learns_what_it_brought() -> None:
    fitted = ModelFitted(
        job="a", form="default", coefficients={"a1": 1.0}, log_sd=0.1, rmsle=0.02, points=3, configurations=1,
        unidentified=("a2",), plan_version=1, plan=plan(), batch_size=512, measured_step_time_s=0.05,
        predicted_step_time_s=0.051, predicted_interval_s=Interval(low=0.04, high=0.06),
    )  # fmt: skip
    candidates = CandidatesComputed(
        job="a", plan_version=1, plan=plan(), throughput=100.0, algorithm="exact", plans_considered=12, candidates=()
    )
    projection = fold(
        submitted(),
        decided(1, "warm-start", plan(), None),
        profile(1, plan(), 50.0, settled=False),
        profile(1, plan(), 100.0),
        fitted,
        candidates,
        decided(2, "improve", plan(2), plan(), throughput=180.0, throughput_interval=Interval(low=150.0, high=210.0)),
        PlanApplied(job="a", version=2, plan=plan(2), took_s=4.0),
        profile(2, plan(2), 60.0, settled=False),
        profile(2, plan(2), 160.0),
        profile(2, plan(2), 170.0),
        profile(2, plan(2), 900.0),
    )
    first, second = projection.jobs["a"].decisions
    assert second.measured is not None
    assert second.measured.throughput == 100.0
    assert second.throughput_before == 100.0
    assert second.fitted is not None
    assert second.fitted.rmsle == 0.02
    assert second.front is not None
    assert second.front.plans_considered == 12
    outcome = second.outcome
    assert (outcome.applied_at_s, outcome.took_s, outcome.windows) == (8.0, 4.0, 3)
    assert outcome.throughput == 170.0  # the median: neither the unsettled window nor the outlier counts
    assert outcome.gain == pytest.approx(1.7)
    assert outcome.prediction_error == pytest.approx(-10 / 180)
    assert outcome.inside_interval is True
    assert first.outcome.throughput == 100.0


def test_a_plan_that_a_job_states_tells_what_its_stages_took() -> None:
    """Two workers of stage 0 take 10 ms and wait 30 ms, three of stage 1 take 30 ms: 20 and 10 ms for a batch."""
    stated = plan(2).with_workers(2, [WorkerGroup("fast", 3, 1.0, 2**30, stage=1, first_layer=1)])
    waits, computes = replace(TIMES, read_s=0.0, grad_s=0.02), replace(TIMES, grad_s=0.03)
    told = (("", 2, waits, 0), ("fast", 3, computes, 1))
    groups = tuple(GroupProfile(device=d, workers=n, step_time_s=0.03, times=t, stage=s) for d, n, t, s in told)
    projection = fold(
        submitted(), decided(1, "initial", stated, None), replace(profile(1, stated, 2000.0), groups=groups)
    )
    assert projection.jobs["a"].decisions[-1].outcome.stage_times_s == pytest.approx((0.02, 0.01))


def test_a_decision_for_the_disk_has_the_reads_that_were_expected_and_those_that_there_were() -> None:
    """10,000 samples in 5 s are 20 steps of 500; the busiest server read 4,000 rows."""
    server = example_of(ProfileMeasured).ps[0]
    servers = (replace(server, rows_read=4000), replace(server, pod="ps-1", rows_read=3000))
    read = replace(profile(2, plan(), 2000.0), batch_size=500, window_s=5.0, ps=servers)
    more = {"throughput": 1950.0, "throughput_before": 2000.0, "reads_per_step": 190.0}
    projection = fold(
        submitted(), decided(1, "initial", plan(), None), decided(2, "memory", plan(), plan(), **more), read
    )
    decision = projection.jobs["a"].decisions[-1]
    assert (decision.reads_per_step, decision.outcome.reads_per_step) == (190.0, 200.0)
    assert decision.in_words == (
        "Rows go to the disks of parameter servers, not to more memory: 190 reads a step and −2.5 % of speed are "
        "expected; there were 200."
    )


def test_the_longest_gap_counts_in_every_phase_that_its_window_touches() -> None:
    migration = MigrationStarted(
        job="a", plan_version=2, cause="plan", sources=("ps-0",), destinations=("ps-1",), buckets=32
    )
    finished = MigrationFinished(
        job="a", plan_version=2, buckets=32, moved_bytes=5 * MIB, took_s=1.0, longest_freeze_s=0.01
    )
    projection = fold(
        submitted(),  # 1 s
        decided(1, "warm-start", plan(), None),
        started("worker-0"),
        PlanApplied(job="a", version=1, plan=plan(), took_s=1.0),  # 4 s: steady
        worker_report("worker-0", 5.0, 0.08),
        migration,  # 6 s
        worker_report("worker-0", 6.5, 0.30),
        finished,  # 8 s
        worker_report("worker-0", 10.5, 0.05),
    )
    view = projection.jobs["a"]
    gaps = {phase.kind: phase.longest_gap_s for phase in view.phases}
    assert gaps["steady"] == 0.30  # the report's window began before the migration did: it may be either's
    assert gaps["migrating"] == 0.30
    assert [phase.kind for phase in view.phases][-2:] == ["migrating", "applying"]
    assert view.phases[-1].longest_gap_s == 0.05
    moved = view.migrations[0]
    assert (moved.longest_gap_s, moved.took_s, moved.moved_bytes) == (0.30, 1.0, 5 * MIB)
    assert view.pods["worker-0"].memory_used_bytes == 600 * MIB


def test_a_gap_that_began_before_the_window_counts_for_the_migration_that_it_fell_in() -> None:
    projection = fold(
        submitted(),
        decided(1, "warm-start", plan(), None),
        started("worker-0"),
        PlanApplied(job="a", version=1, plan=plan(), took_s=1.0),
        MigrationStarted(
            job="a", plan_version=2, cause="plan", sources=("ps-0",), destinations=("ps-1",), buckets=32
        ),  # 5 s
        MigrationFinished(
            job="a", plan_version=2, buckets=32, moved_bytes=5 * MIB, took_s=1.0, longest_freeze_s=0.01
        ),  # 6 s
        worker_report("worker-0", 9.5, 4.0),  # its window began at 8.5 s, the gap at 4.5 s or later
    )
    view = projection.jobs["a"]
    assert view.migrations[0].longest_gap_s == 4.0
    assert [phase.longest_gap_s for phase in view.phases if phase.kind == "migrating"] == [4.0]


def test_a_killed_worker_is_a_phase_of_its_own_until_its_replacement_runs() -> None:
    projection = fold(
        submitted(),
        decided(1, "warm-start", plan(), None),
        started("worker-0"),
        PlanApplied(job="a", version=1, plan=plan(), took_s=1.0),
        PodExited(job="a", pod="worker-0", role="worker", reason="killed", exit_code=-9),
        started("worker-1", "relaunch"),
    )
    view = projection.jobs["a"]
    assert [phase.kind for phase in view.phases] == ["starting", "applying", "steady", "recovering", "steady"]
    assert view.pods["worker-0"].state == "exited"
    assert view.pods["worker-0"].exit_reason == "killed"
    assert view.pods["worker-1"].state == "running"


def test_a_loss_that_another_one_overtook_ends_with_the_return_of_the_whole_job() -> None:
    """Columns that came back alone stay told as such."""
    checkpoint = CheckpointRef(id="a-000003", url="file:///c", samples=100, size_bytes=10, ps=2)
    view = fold(
        submitted(),
        ParametersLost(job="a", pod="ps-0", version=2, servers=()),
        ColumnsRestored(job="a", loss=2, checkpoint=checkpoint, columns=38, size_bytes=5, took_s=0.5),
        ParametersLost(job="a", pod="ps-1", version=4, servers=()),
        CheckpointRestored(job="a", checkpoint=checkpoint, ps=2, ledger="", request_id="r"),
    ).jobs["a"]
    assert [(loss.pod, loss.restored_at_s is None, loss.returned_at_s is None) for loss in view.losses] == [
        ("ps-0", False, True),
        ("ps-1", True, False),
    ]
    assert view.losses[1].checkpoint == "a-000003"


def test_a_resize_tells_the_limit_before_it_and_outlasts_what_the_pod_believes() -> None:
    resized = PodResized(job="a", pod="worker-0", cpu_cores=0.5, memory_bytes=1200 * MIB)
    view = fold(submitted(), started("worker-0"), resized, worker_report("worker-0", 5.0, 0.1)).jobs["a"]
    assert view.resizes[0].memory_before_bytes == 900 * MIB
    assert view.pods["worker-0"].memory_limit_bytes == 1200 * MIB
    assert view.pods["worker-0"].memory_used_bytes == 600 * MIB


@pytest.mark.proof
def test_events_of_strangers_and_repeats_change_nothing() -> None:
    projection = fold(JobFailed(job="never-submitted", reason="?"), submitted())
    assert projection.jobs.keys() == {"a"}
    assert projection.strangers == 1
    before = TypeAdapter(JobView).dump_json(projection.jobs["a"])
    assert projection.apply(JobFailed(job="a", reason="late"), 2, 9.0) is None
    assert TypeAdapter(JobView).dump_json(projection.jobs["a"]) == before


def test_the_first_submission_of_a_name_is_the_job() -> None:
    other = submitted()
    other = wire.JobSubmitted(job="a", spec=other.spec.model_copy(update={"priority": 9.0}))
    view = fold(submitted(), other).jobs["a"]
    assert view.spec.priority == 1.0


def test_an_end_is_final() -> None:
    view = fold(submitted(), JobCancelled(job="a", reason="enough"), JobFailed(job="a", reason="late")).jobs["a"]
    assert (view.status, view.reason, view.ended_at_s) == ("cancelled", "cancelled by anonymous: enough", 2.0)


def test_past_jobs_are_history_and_not_jobs() -> None:
    past = HistoryRecorded(
        job="old", metadata={"model": "x"}, plan=plan(), throughput=1.0, duration_s=1.0, ps_memory_peak_bytes=1,
        samples=1,
    )  # fmt: skip
    projection = fold(past)
    assert projection.jobs == {}
    assert projection.history["old"].metadata == {"model": "x"}


def test_the_throughput_history_is_bounded_and_spans_the_whole_job() -> None:
    projection = fold(submitted(), *(profile(1, plan(), float(i)) for i in range(5 * HISTORY_POINTS)))
    points = projection.jobs["a"].throughput
    assert len(points) <= HISTORY_POINTS
    assert points[0].throughput < HISTORY_POINTS / 4
    assert points[-1].throughput == 5 * HISTORY_POINTS - 1


EVENTS = st.sampled_from(
    [
        submitted(),
        decided(1, "warm-start", plan(), None),
        decided(2, "measure", plan(2), plan()),
        profile(1, plan(), 10.0),
        started("ps-0"),
        started("worker-0"),
        started("worker-1", "relaunch"),
        worker_report("worker-0", 4.0, 0.1),
        PodExited(job="a", pod="worker-0", role="worker", reason="killed", exit_code=-9),
        PlanApplied(job="a", version=1, plan=plan(), took_s=1.0),
        MigrationStarted(job="a", plan_version=2, cause="plan", sources=(), destinations=(), buckets=1),
        MigrationFinished(
            job="a", plan_version=2, buckets=1, moved_bytes=1, took_s=1.0, longest_freeze_s=0.1
        ),
        CheckpointFailed(job="a", id="c", reason="disk"),
        JobFailed(job="a", reason="no"),
        ShardRequeued(
            job="a", shard=Shard(id=1, attempt=1, epoch=0, start=0, length=5), pod="worker-0", reason="pod-exited"
        ),
        finished("a", rows=0),
    ]
)  # fmt: skip


@cache
def json_of_jobs() -> TypeAdapter[dict[str, JobView]]:
    return TypeAdapter(dict[str, JobView])


@settings(max_examples=80)
@given(st.lists(EVENTS, max_size=30))
def test_any_order_of_events_gives_a_view_that_can_be_served(messages: list[Message]) -> None:
    one, two = fold(*messages), fold(*messages)
    dumped = json_of_jobs().dump_json(one.jobs)
    assert dumped == json_of_jobs().dump_json(two.jobs)
    for view in json.loads(dumped).values():
        ended = [phase["ended_at_s"] for phase in view["phases"]]
        assert None not in ended[:-1]
        assert (view["ended_at_s"] is not None) == (view["status"] in ("finished", "failed", "cancelled"))


def progressed(done: int) -> JobProgressed:
    return live_bus.progressed("a", done, 2000, 500.0)


def test_a_rate_grows_old_when_no_sample_is_trained_any_more() -> None:
    projection = fold(submitted(), decided(1, "initial", plan(), None), started("worker-0"), progressed(100))
    view = projection.jobs["a"]
    view.pods["worker-0"].samples_per_s = 500.0
    fresh = as_of(view, 4.0 + STALLED_S)
    assert (fresh.progress.samples_per_s, fresh.progress.stalled_since_s) == (500.0, None)
    # the ledger goes on telling how far the job is: only samples count
    projection.apply(progressed(100), 5, 5.0)
    stalled = as_of(view, 4.1 + STALLED_S)
    assert (stalled.progress.samples_per_s, stalled.progress.stalled_since_s) == (0.0, 4.0)
    assert stalled.pods["worker-0"].samples_per_s == 0.0
    line = summary(view, 4.1 + STALLED_S)
    assert (line.samples_per_s, line.stalled_since_s) == (0.0, 4.0)
    assert view.progress.samples_per_s == 500.0
    projection.apply(progressed(101), 6, 20.0)
    assert as_of(view, 21.0).progress.stalled_since_s is None


COMPLETED = JobCompleted(job="a", samples=2000, samples_abandoned=0, epochs=2, shards=20, requeued=0, started_at_s=3.0)
FINISHED = finished("a", 2000, rows=7)


def flushed(name: str, best: bool = False) -> CheckpointFlushed:
    at = CheckpointRef(id=name, url=f"file:///store/a/{name}/manifest.json", samples=1, size_bytes=1, ps=1)
    return CheckpointFlushed(job="a", checkpoint=at, took_s=1.0, best=best)


def test_a_job_says_what_its_checkpoints_take_in_the_store() -> None:
    """An ended job keeps the final one alone; events of before tell nothing of those before it."""
    kept, final = replace(flushed("a-000002"), stored_bytes=30), replace(flushed("a-000003-final"), stored_bytes=31)
    for told, stored_bytes in (
        ((), None),
        ((flushed("a-000001"),), None),
        ((kept,), 30),
        ((kept, COMPLETED, final), 31),
        ((kept, COMPLETED, final, FINISHED), 1),
        ((kept, COMPLETED, FINISHED, final), 1),
        ((flushed("a-000001", best=True), kept, COMPLETED, final, FINISHED), 2),
        ((kept, JobFailed(job="a", reason="no")), 30),
    ):
        view = fold(submitted(), *told).jobs["a"]
        assert view.stored_bytes == summary(view, 9.0).stored_bytes == stored_bytes


def test_a_final_checkpoint_that_was_not_stored_is_the_reason_of_the_finished_job() -> None:
    """The trained parameters are gone: whoever looks at the end has to learn that, and where to go on."""
    full = CheckpointFailed(job="a", id="a-000002-final", reason="not stored: No space left on device")
    view = fold(submitted(), flushed("a-000001"), COMPLETED, full, FINISHED).jobs["a"]
    assert (view.status, view.final_checkpoint_failure) == ("finished", full.reason)
    assert view.reason == (
        "the trained parameters are lost and cannot be exported: final checkpoint not stored: No space left on device; "
        "mend the store and submit the job under another name with checkpoint.restore_from = "
        "file:///store/a/a-000001/manifest.json, the last one that was stored"
    )
    assert summary(view, 9.0).reason == view.reason
    assert view.best_checkpoint is None
    best = fold(submitted(), flushed("a-000001", best=True), flushed("a-000002")).jobs["a"].best_checkpoint
    assert best is not None
    assert best.id == "a-000001"
    none_before = fold(submitted(), COMPLETED, full, FINISHED).jobs["a"].reason
    assert none_before.endswith("submit the job under another name")
    late = fold(submitted(), COMPLETED, FINISHED, full).jobs["a"]
    assert late.reason == none_before, "the job had stopped waiting for it"


def test_a_final_checkpoint_that_is_tried_again_stands_beside_finishing_and_fires() -> None:
    failing = CheckpointFailed(job="a", id="a-2-final", reason="not stored: disk full", next_try_at_s=1_794_998_600.0)
    view = fold(submitted(), COMPLETED, failing).jobs["a"]
    told = "its final checkpoint is not stored: disk full; mend the store before the next try, at 10:43:20 UTC"
    assert (view.status, view.reason, summary(view, 9.0).reason) == ("finishing", told, told)
    (alert,) = alerts.of_jobs([view], 9.0)
    assert (alert.alert, alert.subject, alert.detail) == ("StrettoCheckpointLate", "a", told)
    undone = LedgerReturn(checkpoint="a-1", samples_before=2000, samples_gained=0, samples_undone=1900)
    for then in (flushed("a-3-final"), COMPLETED, replace(progressed(100), returned=undone)):
        mended = fold(submitted(), COMPLETED, failing, then).jobs["a"]
        assert (mended.status, mended.reason, [*alerts.of_jobs([mended], 9.0)]) == ("finishing", "", [])


def test_a_final_checkpoint_that_failed_before_a_completion_was_undone_does_not_count() -> None:
    failed = CheckpointFailed(job="a", id="a-000002-final", reason="full")
    for last in (
        (COMPLETED, flushed("a-000003-final"), FINISHED),
        (COMPLETED, FINISHED),
        (flushed("a-3-final"), FINISHED),
    ):
        view = fold(submitted(), COMPLETED, failed, *last).jobs["a"]
        assert (view.status, view.reason, view.final_checkpoint_failure) == ("finished", "", "")


def test_a_finished_job_says_how_many_samples_it_gave_up_and_why() -> None:
    """The events of shards count what a return to a checkpoint undid, too: the books at the end are right."""
    lost = [GivenUp(shard=n, offset=0, epoch=0, start=n, length=6, reason=f"no column {n}") for n in range(2)]
    shard = Shard(id=1, attempt=3, epoch=0, start=0, length=6)
    abandoned = ShardAbandoned(job="a", shard=shard, reason="no column 0")
    books = CompletedBooks(fingerprint="0" * 16, given_up=tuple(lost))
    completed = replace(COMPLETED, samples=1988, samples_abandoned=12, books=books)
    full = CheckpointFailed(job="a", id="a-000002-final", reason="full")
    projection = fold(submitted(), *[abandoned] * 3, completed, FINISHED)
    view = projection.jobs["a"]
    assert (view.status, view.progress.samples_given_up, summary(view, 9.0).samples_given_up) == ("finished", 12, 12)
    assert view.books is not None
    assert view.books.given_up == lost
    text = (
        "12 of 2,000 samples (0.60%) were given up: `stretto audit a` lists them; the last, samples 1 to 6 in epoch 0: "
        "no column 1"
    )
    assert view.reason == summary(view, 9.0).reason == text
    assert (view.ending, summary(view, 9.0).ending, summary(view, 9.0).complete) == (*["0.6% given up"] * 2, False)
    failed = fold(submitted(), abandoned, JobFailed(job="a", reason="too many")).jobs["a"]
    assert summary(failed, 9.0).samples_given_up == 6
    assert [(one.start, one.length, one.reason) for one in failed.data.given_up_last] == [(0, 6, "no column 0")]
    both = fold(submitted(), completed, FINISHED, full).jobs["a"]
    assert both.ending == "not stored, 0.6% given up"
    assert both.reason.startswith("the trained parameters are lost and ")
    assert both.reason.endswith(f"; {text}")


def test_a_finished_job_says_what_the_event_of_its_end_says() -> None:
    again = Shortfall(kind="trained-again", words="9 samples trained again", detail="from a-000001", lacking=False)
    view = fold(submitted(), COMPLETED, replace(FINISHED, shortfalls=(again,))).jobs["a"]
    assert (view.status, view.ending, view.complete, view.reason) == ("finished", again.words, True, again.detail)
    assert (summary(view, 9.0).ending, summary(view, 9.0).complete) == (again.words, True)
    whole = fold(submitted(), COMPLETED, FINISHED).jobs["a"]
    assert (whole.ending, whole.complete, whole.shortfalls) == ("", True, [])


def test_leases_and_pods_that_nothing_ends_are_bounded() -> None:
    """At most fifty shard events of a job are published a second: a lease may be there without its completion."""

    def leased(number: int, pod: str) -> ShardLeased:
        shard = Shard(id=number, attempt=1, epoch=0, start=0, length=1)
        return ShardLeased(job="a", shard=shard, pod=pod)

    view = fold(submitted(), *(leased(number, f"worker-{number % 3}") for number in range(1000))).jobs["a"]
    assert view.shards.leased == {"997": "worker-1", "998": "worker-2", "999": "worker-0"}
    view = fold(submitted(), *(leased(number, f"worker-{number}") for number in range(LEASED_KEPT + 50))).jobs["a"]
    assert len(view.shards.leased) == LEASED_KEPT
    exits = [
        PodExited(job="a", pod=f"ps-{number}", role="ps", reason="image-pull", exit_code=None)
        for number in range(PODS_KEPT + 50)
    ]
    assert len(fold(submitted(), *exits).jobs["a"].pods) == PODS_KEPT


def test_a_return_to_a_checkpoint_takes_every_lease_back() -> None:
    """Nothing requeues the shard of a worker that died with the servers: its number may never come again."""

    def leased(number: int, pod: str) -> ShardLeased:
        return ShardLeased(job="a", shard=Shard(id=number, attempt=1, epoch=0, start=0, length=1), pod=pod)

    change = LedgerReturn(checkpoint="a-000001", samples_before=200, samples_gained=0, samples_undone=100)
    view = fold(
        submitted(),
        leased(1, "worker-0"),
        leased(2, "worker-1"),
        replace(progressed(100), returned=change),
        leased(3, "worker-2"),
        leased(4, "worker-3"),
    ).jobs["a"]
    assert view.shards.leased == {"3": "worker-2", "4": "worker-3"}


def test_a_job_has_stopped_when_it_stands_still_for_longer_than_the_objective_allows() -> None:
    view = fold(submitted(), decided(1, "initial", plan(), None), started("worker-0"), progressed(100)).jobs["a"]
    assert view.started_at_s is not None
    assert start_s(view) == view.started_at_s - view.submitted_at_s > 0
    assert not has_stopped(view, view.started_at_s + STOPPED_S)
    assert has_stopped(view, view.started_at_s + STOPPED_S + 0.1)
    waiting = fold(submitted()).jobs["a"]
    assert start_s(waiting) is None
    assert not has_stopped(waiting, 1e6)


def test_a_job_that_is_not_training_never_stalls() -> None:
    projection = fold(submitted(), decided(1, "initial", plan(), None))
    assert as_of(projection.jobs["a"], 1e6).progress.stalled_since_s is None
    projection.apply(progressed(1), 3, 3.0)
    projection.apply(JobCancelled(job="a", by="user", reason=""), 4, 4.0)
    assert as_of(projection.jobs["a"], 1e6).progress.stalled_since_s is None


def test_a_pod_that_cannot_run_yet_is_the_reason_of_a_job_that_starts() -> None:
    pending = PodPending(job="a", pod="worker-1", role="worker", reason="no-room", detail="2 cores lack")
    again = replace(pending, reason="image-pull", detail="not there")
    projection = fold(submitted(), decided(1, "initial", plan(), None), pending, again)
    view = projection.jobs["a"]
    pod = view.pods["worker-1"]
    assert (pod.state, pod.pending_since_s, pod.pending_reason) == ("pending", 3.0, "image-pull")
    assert view.reason == "worker-1 cannot run yet (image-pull): not there"
    assert summary(view, 5.0).pods_pending == 1
    projection.apply(started("worker-1"), 5, 5.0)
    assert (view.pods["worker-1"].state, view.reason, summary(view, 5.0).pods_pending) == ("running", "", 0)
    projection.apply(pending, 6, 6.0)
    assert view.pods["worker-1"].state == "running", "told late"


@pytest.mark.parametrize(
    ("windows", "before", "after"),
    [
        pytest.param([(0, 1, 110.0)] * 2 + [(4, 1, 390.0), (4, 1, 410.0)], 110.0, 400.0, id="what they brought"),
        pytest.param(
            [(0, 1, 900.0)] * 2 + [(4, 1, 905.0), (4, 1, 915.0)], 900.0, 910.0, id="the store recovered before"
        ),
        pytest.param([(4, 1, 400.0), (4, 1, 420.0), (4, 1, 3400.0)], 100.0, 410.0, id="the store recovered later"),
        pytest.param([(2, 1, 250.0), (4, 1, 400.0), (4, 1, 420.0)], 100.0, 410.0, id="all of them have to serve"),
        pytest.param([(4, 1, 400.0)], 100.0, None, id="one window tells nothing"),
        pytest.param([(4, 2, 400.0), (4, 2, 420.0)], None, 410.0, id="another plan"),
        pytest.param([(0, 2, 190.0), (4, 2, 400.0), (4, 2, 420.0)], 190.0, 410.0, id="another plan before"),
    ],
)
def test_data_workers_get_credit_only_for_what_lies_beside_their_coming(
    windows: list[tuple[int, int, float]], before: float, after: float | None
) -> None:
    feed = example_of(ProfileMeasured).feed
    assert feed is not None

    def window(lanes: int, version: int, rate: float) -> Message:
        return replace(profile(version, plan(), rate), feed=replace(feed, lanes=lanes))

    decided_on = replace(example_of(DataWorkersDecided), job="a", count=2, wanted=2, cpu_cores=2.5)
    told = [
        window(0, 1, 50.0),
        window(0, 1, 95.0),
        window(0, 1, 105.0),
        decided_on,
        *(window(*each) for each in windows),
    ]
    [decision] = fold(submitted(), *told).jobs["a"].feeding.decisions
    assert (decision.throughput_before, decision.throughput) == (before, after)


def test_what_users_ask_for_and_the_replacement_of_a_hot_server_are_kept() -> None:
    view = fold(
        submitted(),
        PlanRequested(job="a", plan=plan(3), by="ada"),
        DataWorkersRequested(job="a", count=None, by="bob"),
        ReplacementAsked(job="a", pod="ps-1"),
        ReplacementDecided(job="a", pod="ps-1", granted=False, reasons=("no room",)),
        ReplacementAsked(job="a", pod="ps-1"),
        ReplacementDecided(job="a", pod="ps-1", granted=True, reasons=()),
        ReplacementEnded(job="a", pod="ps-1"),
    ).jobs["a"]
    assert [(one.by, one.kind, one.plan, one.data) for one in view.requests] == [
        ("ada", "plan", plan(3), None), ("bob", "data-workers", None, None),
    ]  # fmt: skip
    assert [(one.granted, one.asked_at_s, one.decided_at_s, one.ended_at_s) for one in view.replacements] == [
        (False, 4.0, 5.0, None), (True, 6.0, 7.0, 8.0),
    ]  # fmt: skip


@pytest.mark.proof
def test_histories_span_the_whole_job_and_are_bounded() -> None:
    """Goal: neither beginning nor end fades. Method: far more fits and forecasts than are kept, of a job with one
    server and of one with so many that their figures are the bound; no two neighbours are far apart."""
    fitted, forecast = replace(example_of(ModelFitted), job="a"), replace(example_of(OomForecast), job="a")
    wide = replace(forecast, ps=forecast.ps[:1] * 1000)
    for message, most in ((forecast, HISTORY_POINTS), (wide, MEMORY_POINTS_MIN)):
        projection, count = fold(submitted()), 20 * most
        for number in range(count):
            projection.apply(fitted, 2 * number + 2, float(number))
            projection.apply(message, 2 * number + 3, float(number))
        view = projection.jobs["a"]
        for history, limit in ((view.memory, most), (view.fits, FITS)):
            assert limit // 4 <= len(history) <= limit
            times = [point.time_s for point in history]
            assert (times[0], times[-1]) == (0, count - 1)
            gaps = [after - before for before, after in pairwise(times)]
            assert 0 < min(gaps) <= max(gaps) <= 8 * count / limit


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=60), st.integers(4, 20))
def test_a_history_of_any_times_stays_within_its_bound(gaps_s: list[float], limit: int) -> None:
    history: list[ThroughputPoint] = []
    for at_s in accumulate(gaps_s):
        record(history, ThroughputPoint(at_s, 1, 1, 1, 1.0, 1.0, True), limit)
        assert len(history) <= limit
        assert history[0].time_s == gaps_s[0]
        assert history[-1].time_s == at_s
        assert history == sorted(history, key=lambda point: point.time_s)


def test_the_present_front_is_known_between_decisions() -> None:
    computed = replace(example_of(CandidatesComputed), job="a")
    view = fold(submitted(), computed, decided(1, "initial", plan(), None)).jobs["a"]
    assert view.front is not None
    assert (view.front.candidates, view.decisions[0].front) == (computed.candidates, None)
    better = fold(submitted(), computed, decided(1, "improve", plan(), None)).jobs["a"]
    assert better.decisions[0].front == better.front


def test_the_present_model_has_what_a_prediction_needs_and_decisions_its_summary() -> None:
    message = replace(example_of(ModelFitted), job="a")
    view = fold(submitted(), message, decided(1, "improve", plan(), None)).jobs["a"]
    assert view.model is not None
    for name in ("covariance", "overlap", "degrees_of_freedom", "measured", "batch_size", "log_sd"):
        assert getattr(view.model, name) == getattr(message, name)
    assert type(view.decisions[0].fitted) is Fitted
    assert view.decisions[0].fitted == view.model.basis()


def test_a_line_says_when_a_job_ends_and_when_a_server_is_full() -> None:
    forecast = replace(example_of(OomForecast), job="a")
    ps = replace(forecast.ps[0], oom_in_s=100.0)
    forecast = replace(forecast, ps=(replace(ps, pod="ps-1", oom_in_s=None), ps, replace(ps, oom_in_s=300.0)))
    projection = fold(submitted(), decided(1, "initial", plan(), None), forecast, progressed(500))
    line = summary(projection.jobs["a"], 8.0)
    assert line.ends_at_s == 8.0 + 1500 / line.samples_per_s
    assert (line.oom_in_s, line.cost_per_hour) == (95.0, 0.1)
    assert summary(projection.jobs["a"], 1000.0).oom_in_s == 0.0
    assert summary(projection.jobs["a"], 1000.0).ends_at_s is None, "stalled"
    projection.apply(JobCancelled(job="a", by="ada"), 5, 9.0)
    ended = summary(projection.jobs["a"], 10.0)
    assert (ended.ends_at_s, ended.oom_in_s, ended.cost_per_hour) == (None, None, None)


def test_a_job_is_billed_by_the_hours_of_each_size_beside_what_its_first_plan_would_have_cost() -> None:
    """Method: 0.36 an hour for 100 s, then 0.72 for 50 s; 300 samples took 10 s under the first plan, after 20 s of
    start: all 1,000 would have taken 10 s x 1000 / 300 more. A data worker of a core and 2 GiB costs 0.05 an hour."""
    projection, first, second = Projection(), plan(1), plan(2)
    lanes = replace(example_of(DataWorkersDecided), job="a", count=1, cpu_cores=1.0, memory_bytes=2 * 2**30)
    shard = Shard(id=3, attempt=1, epoch=0, start=0, length=100)
    course: list[tuple[float, Message]] = [
        (0.0, submitted()),
        (10.0, decided(1, "initial", first, None, cost_per_hour=0.36)),
        (30.0, ShardLeased(job="a", shard=shard, pod="worker-0")),
        *((at_s, profile(1, first, rate)) for at_s, rate in ((40.0, 20.0), (50.0, 30.0), (60.0, 40.0))),
        (100.0, live_bus.progressed("a", 300, 1000)),
        (110.0, decided(2, "improve", second, first, cost_per_hour=0.72)),
        (140.0, lanes),
        (150.0, profile(1, first, 900.0)),
        (160.0, live_bus.completed("a", 1000)),
        (160.0, finished("a", 1000, evaluation=Evaluation(samples=10, loss=0.4, auc=0.8, loss_name="log loss"))),
        (999.0, lanes),
    ]
    seen = {}
    for seq, (at_s, message) in enumerate(course, 1):
        projection.apply(message, seq, at_s)
        seen[at_s] = replace(projection.jobs["a"].cost)
    view = projection.jobs["a"]
    assert seen[100.0].so_far == pytest.approx(0.36 * 90 / 3600)
    assert seen[100.0].as_first_planned is None, "it still has its first plan"
    assert view.cost.so_far == pytest.approx((0.36 * 100 + 0.72 * 50 + 0.05 * 20) / 3600)
    assert view.cost.as_first_planned == pytest.approx(0.36 * (20 + 1000 / 30) / 3600)
    assert view.cost.as_first_planned_s == pytest.approx(20 + 1000 / 30)
    assert (view.cost.first_plan, view.cost.per_hour, view.cost.until_s) == (first, 0.0, 160.0)
    assert view.progress.mean_samples_per_s == pytest.approx(1000 / 130)
    watched = Projection()
    spec = wire.JobSpec.parse({"name": "a", "program": {"command": ["report"]}})
    for seq, (at_s, message) in enumerate([(0.0, wire.JobSubmitted(job="a", spec=spec)), *course[1:9]], 1):
        watched.apply(message, seq, at_s)
    assert watched.jobs["a"].cost.as_first_planned is None, "its one sample is the run itself"
    line = summary(view, 2000.0)
    assert [(one.name, one.value) for one in line.quality] == [("log loss", 0.4), ("AUC", 0.8)]
    assert (line.cost_so_far, line.mean_samples_per_s) == (view.cost.so_far, view.progress.mean_samples_per_s)


def test_a_job_that_stands_still_costs_on() -> None:
    projection = Projection()
    for seq, message in enumerate((submitted(), decided(1, "initial", plan(), None, cost_per_hour=3.6))):
        projection.apply(message, seq + 1, float(seq))
    projection.apply(live_bus.progressed("a", 300, 1000), 3, 2.0)
    assert as_of(projection.jobs["a"], 1002.0).cost.so_far == pytest.approx(1.001)
    assert projection.jobs["a"].cost.so_far == pytest.approx(0.001)
