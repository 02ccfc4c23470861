"""How a finished job ended: what its result lacks, and what only took longer."""

from __future__ import annotations

from dataclasses import replace

from actuator_builders import (
    checkpoint_failed,
    counts_taken,
    job_completed,
    job_progressed,
    plan,
)
from actuator_cluster import SimulatedCluster, started
from stretto_core.actuator.data_workers import FAILURES_MAX
from stretto_core.actuator.state import JobOpened
from stretto_messages.actuator import JobFailed, JobFinished
from stretto_messages.books import GivenUp, Shortfall
from stretto_messages.dispatcher import EvaluationMeasured, LedgerReturn
from stretto_messages.values import Evaluation, MetricValue


def ended(cluster: SimulatedCluster, evaluation: Evaluation | None = None, failure: str = "") -> tuple[Shortfall, ...]:
    cluster.tell(replace(counts_taken(), evaluation=evaluation, evaluation_failure=failure))
    (finished,) = cluster.told(JobFinished)
    return finished.shortfalls


def returned(samples_undone: int) -> LedgerReturn:
    return LedgerReturn(checkpoint="job-000002", samples_before=600, samples_gained=0, samples_undone=samples_undone)


def test_a_job_that_trained_stored_and_evaluated_all_is_just_finished() -> None:
    cluster = started(plan(), JobOpened("job", samples_total=1000, evaluate=50, restores=True, final_checkpoint=True))
    cluster.tell(replace(job_progressed(700), returned=returned(0)))  # the books of the checkpoint it starts from
    cluster.tell(job_completed(samples=1000))
    assert ended(cluster, Evaluation(samples=50, loss=0.5, auc=0.7)) == ()


def test_each_half_success_has_its_words_its_reason_and_its_place() -> None:
    cluster = started(plan(), JobOpened("job", samples_total=1000, evaluate=50, final_checkpoint=True))
    cluster.tell(job_progressed(100))
    cluster.tell(replace(job_progressed(300), returned=returned(200)))
    cluster.state.failures_in_row["data"] = FAILURES_MAX
    cluster.state.data_failure = "data-4 ended with exit code 3 (failed): no module named pandas"
    lost = GivenUp(shard=7, offset=4, epoch=1, start=704, length=4, reason="row 704", partition="day=1")
    done = job_completed(4, fingerprint=0, samples=996, samples_recomputed=64)
    assert done.books is not None
    why = "the last 3 evaluations were not above the best auc, 0.78 at 640 samples (best.patience = 3)"
    cluster.tell(replace(done, books=replace(done.books, given_up=(lost,)), stopped=why, samples_left=4000))
    cluster.tell(checkpoint_failed("job-000002-final", "not stored: no room", next_try_at_s=8.0))
    assert cluster.state.final_checkpoint_due, "it is tried again"
    cluster.tell(checkpoint_failed("job-000003-final", "not stored: no room"))
    assert not cluster.state.final_checkpoint_due
    found = ended(cluster, failure="worker-0: DataError: row 1003")
    assert [(each.kind, each.words, each.lacking) for each in found] == [
        ("not-stored", "not stored", True),
        ("given-up", "0.4% given up", True),
        ("not-evaluated", "not evaluated", True),
        ("trained-again", "264 samples trained again", False),
        ("no-data-workers", "without data workers", False),
        ("stopped-early", "stopped early", False),
    ]
    unstored, given_up, unevaluated, again, alone, early = (each.detail for each in found)
    assert "final checkpoint not stored: no room; mend the store and submit the job under another name" in unstored
    assert given_up == (
        "4 of 1,000 samples (0.40%) were given up: `stretto audit job` lists them; the last, samples 704 to 707 of "
        "day=1 in epoch 1: row 704"
    )
    assert unevaluated == "the model was not evaluated on its 50 held-out samples: worker-0: DataError: row 1003"
    assert (
        "returned to checkpoint job-000002; known to have been trained again, and to count once: 264 samples" in again
    )
    assert alone.endswith("data-4 ended with exit code 3 (failed): no module named pandas")
    assert early == f"{why}; 4,000 samples were left out"


def test_a_return_of_which_nobody_knows_how_many_samples_it_repeats_is_told() -> None:
    """A job that comes from a backup: its ledger is as old as the checkpoint, or older."""
    cluster = started(plan(), JobOpened("job", samples_total=1000, final_checkpoint=True))
    cluster.tell(job_progressed(100))
    cluster.tell(replace(job_progressed(300), returned=returned(0)))
    cluster.tell(job_completed(samples=1000))
    assert [each.words for each in ended(cluster)] == ["returned to a checkpoint"]


def test_a_job_without_the_metric_of_its_best_model_fails_at_its_first_evaluation_and_names_what_there_is() -> None:
    found = Evaluation(
        samples=50, loss=0.5, auc=0.5, metrics=(MetricValue(name="mae", value=1), MetricValue(name="loss", value=0.5))
    )
    measured = EvaluationMeasured(job="job", samples_done=10, samples_done_after=10, evaluation=found)
    for metric in ("loss", "mae"):
        cluster = started(plan(), JobOpened("job", evaluate=50, best_metric=metric))
        cluster.tell(measured)
        cluster.tell(replace(measured, evaluation=replace(found, metrics=())))  # a later one may lack it
        assert not cluster.told(JobFailed)
    cluster = started(plan(), JobOpened("job", evaluate=50, best_metric="auc"))
    cluster.tell(measured)
    (failed,) = cluster.told(JobFailed)
    assert failed.reason == "best.metric is 'auc'; name one that evaluations of this model have: mae, loss"


def test_data_workers_that_died_and_came_back_are_no_shortfall() -> None:
    cluster = started(plan(), JobOpened("job", samples_total=1000, final_checkpoint=True))
    cluster.state.failures_in_row["data"] = FAILURES_MAX - 1
    cluster.tell(job_completed(samples=1000))
    assert ended(cluster) == ()


def test_a_job_that_takes_no_final_checkpoint_says_that_it_cannot_be_exported() -> None:
    cluster = started(plan(), JobOpened("job", samples_total=1000))
    cluster.tell(job_completed(samples=1000))
    (found,) = ended(cluster)
    assert (found.kind, found.words, found.lacking) == ("no-export", "cannot be exported", False)
    assert "checkpoint.every_s is null" in found.detail
