"""Evaluation while training goes on: shards that are in no book, and sums that count each sample once."""

import pytest
from ledger_builders import arrival, data_arrived, evaluation, heartbeat, mark_ledger, next_shard, pod_exited, release
from ledger_harness import LedgerHarness
from stretto_core.dispatcher.evaluating import Best, HeldOut
from stretto_core.dispatcher.events import LedgerRestored
from stretto_core.dispatcher.source import DataSpec, LedgerError
from stretto_core.dispatcher.state import faults_of
from stretto_messages.dispatcher import EvaluationMeasured, JobCompleted, JobProgressed, NextShardReply, ShardRequeued
from stretto_messages.values import MetricSum, MetricValue, PartialEvaluation, Shard

HELD_OUT = HeldOut(samples=100, every=160, start=800)


def found(shard: Shard, loss: float = 0.5) -> PartialEvaluation:
    return evaluation(shard.length, loss * shard.length, (0,), (shard.length,))


class Evaluated(LedgerHarness):
    def __init__(self) -> None:
        super().__init__(DataSpec(800, 10, 8), held_out=HELD_OUT)
        shard = self.lease("worker-0")
        for _ in range(2):  # the second completion reaches 160
            shard = self.lease("worker-0", shard)
        self.first = shard

    def report(self, worker: str, shard: Shard, what: PartialEvaluation | None) -> NextShardReply:
        self.requests += 1
        return self.tell(next_shard(worker, f"r{self.requests}", shard.id, shard.attempt, what))


def test_held_out_shards_go_round_once_so_many_more_samples_are_done_and_enter_no_book() -> None:
    harness = Evaluated()
    assert (harness.first.kind, harness.first.start, harness.first.length) == ("evaluate", 800, 80)
    second = harness.lease("worker-1")
    assert (second.kind, second.start, second.length) == ("evaluate", 880, 20)
    training = harness.lease("worker-2")
    assert training.kind == "train"
    told = harness.audit()
    assert [name for name, _ in told.leased] == ["worker-2"]
    assert told.book.samples_waiting + training.length + 160 == 800
    mark = harness.tell(mark_ledger("m")).book
    assert [shard.id for shard in mark.requeued] == [training.id]
    assert not harness.report("worker-1", second, found(second, loss=0.9)).stale
    assert not harness.said(EvaluationMeasured)
    harness.lease("worker-2", training)  # training goes on meanwhile
    harness.report("worker-0", harness.first, found(harness.first, loss=0.4))
    (measured,) = harness.said(EvaluationMeasured)
    assert (measured.samples_done, measured.samples_done_after, measured.evaluation.samples) == (160, 240, 100)
    assert measured.evaluation.loss == pytest.approx(0.5)


def test_metrics_that_are_means_are_those_of_all_samples() -> None:
    harness = Evaluated()
    second = harness.lease("worker-1")
    for worker, shard, total in (("worker-1", second, 5.0), ("worker-0", harness.first, 71.0)):
        sums = (MetricSum(name="accuracy", total=total, count=float(shard.length)),)
        harness.report(worker, shard, evaluation(shard.length, 1.0, (0,), (shard.length,), metrics=sums))
    (measured,) = harness.said(EvaluationMeasured)
    assert measured.evaluation.metrics == (MetricValue(name="accuracy", value=pytest.approx(0.76)),)


def trained(best: Best, losses: list[float]) -> LedgerHarness:
    """Train until the end with one worker, whose evaluations find these losses, and then the last one again."""
    harness = LedgerHarness(DataSpec(800, 10, 4), epochs=2, held_out=HeldOut(samples=20, every=200, start=800))
    harness.ledger.state.best = best
    shard: Shard | None = harness.lease("worker-0")
    while shard is not None:
        harness.requests += 1
        part = None
        if shard.kind == "evaluate":
            part = found(shard, losses.pop(0) if len(losses) > 1 else losses[0])
        shard = harness.tell(next_shard("worker-0", f"r{harness.requests}", shard.id, shard.attempt, part)).shard
    return harness


def test_training_stops_after_so_many_evaluations_that_are_not_better_and_its_books_balance() -> None:
    harness = trained(Best("loss", False, least_gain=0.01, patience=2), [0.5, 0.4, 0.395, 0.2, 0.3, 0.2])
    told = [(one.samples_done, one.best) for one in harness.said(EvaluationMeasured)]
    assert told == [(200, True), (400, True), (600, False), (800, True), (1000, False), (1200, False)]
    (completed,) = harness.said(JobCompleted)
    assert (completed.samples, completed.samples_left) == (1200, 400)
    assert completed.stopped == (
        "the last 2 evaluations were not below the best loss, 0.2 at 800 samples by more than 0.01 (best.patience = 2)"
    )
    assert harness.said(JobProgressed)[-1].samples_total == 1200
    assert not faults_of(harness.ledger.state)


def test_a_return_forgets_evaluations_of_models_that_are_gone_and_another_job_goes_on_from_a_stopped_one() -> None:
    stopped = trained(Best("loss", False, patience=1), [0.5, 0.4, 0.6])
    mark = stopped.tell(mark_ledger("m")).book
    assert (mark.source.stopped != "", mark.samples_done) == (True, 600)
    other = LedgerHarness(mark.data, epochs=2)
    other.tell(LedgerRestored(mark))
    assert other.lease("worker-0").length
    assert other.audit().book.samples_waiting == 1600 - 600 - 40
    best = Best("loss", False, value=0.4, samples_done=400, not_better=1)
    best.return_to(500)
    assert (best.value, best.not_better) == (0.4, 0)
    best.return_to(300)
    assert (best.value, best.samples_done) == (None, 0)


def test_without_patience_or_gain_all_is_trained_and_another_metric_is_never_the_best() -> None:
    for best in (Best("loss", False), Best("mae", False, patience=1)):
        (completed,) = trained(best, [0.5, 0.6]).said(JobCompleted)
        assert (completed.samples, completed.samples_left, completed.stopped) == (1600, 0, "")


def test_a_part_that_takes_long_stays_with_who_gets_on_with_it_and_not_with_who_hangs() -> None:
    harness = Evaluated()
    hangs = harness.lease("worker-1")
    harness.lease("worker-2")
    answers: list[str] = []
    for passed in range(1, 80):
        parts = (("worker-0", harness.first, passed), ("worker-1", hangs, 0))
        answers = [harness.tell(heartbeat(name, part.id, part.attempt, at)).answer for name, part, at in parts]
        harness.pass_time(2)
    assert answers == ["ok", "stale"]
    assert not harness.report("worker-0", harness.first, found(harness.first)).stale


def test_a_lost_workers_part_is_evaluated_again_and_its_late_word_counts_for_nothing() -> None:
    harness = Evaluated()
    second = harness.lease("worker-1")
    harness.pass_time(20)
    harness.tell(heartbeat("worker-0", harness.first.id, 1, 0))
    harness.pass_time(20)  # worker-1 is silent for longer than the timeout
    assert not harness.said(ShardRequeued)
    again = harness.lease("worker-2")
    assert (again.id, again.attempt) == (second.id, 2)
    assert harness.report("worker-1", second, found(second)).stale
    harness.tell(pod_exited("worker-0"))
    last = harness.lease("worker-3")
    assert (last.id, last.attempt) == (harness.first.id, 2)
    harness.report("worker-2", again, found(again))
    reply = harness.report("worker-3", last, found(last))
    assert not reply.stale
    repeated = harness.report("worker-3", last, found(last))
    assert not repeated.stale
    (measured,) = harness.said(EvaluationMeasured)
    assert measured.evaluation.samples == 100


def test_what_cannot_be_of_the_shard_is_refused_and_what_cannot_be_read_is_left_out() -> None:
    harness = Evaluated()
    for wrong, named in (
        (None, "evaluation is None; give what was found: shard 2 is to be evaluated"),
        (evaluation(79, 1.0, (0,), (79,)), "evaluation.samples is 79; give 80"),
        (evaluation(80, 1.0, (1,), (80,)), "in bins"),
    ):
        with pytest.raises(LedgerError, match=named):
            harness.report("worker-0", harness.first, wrong)
    second = harness.lease("worker-1")
    harness.report("worker-1", second, found(second))
    for attempt in (1, 2, 3):
        harness.tell(release("worker-0", harness.first.id, attempt, 0, "no such file"))
        if attempt < 3:
            assert harness.lease("worker-0").id == harness.first.id
    (measured,) = harness.said(EvaluationMeasured)
    assert measured.evaluation.samples == 20
    assert harness.ledger.state.book.samples_abandoned == 0


def test_an_evaluation_on_its_way_holds_up_neither_completion_nor_restore() -> None:
    harness = Evaluated()
    mark = harness.tell(mark_ledger("m")).book
    second = harness.lease("worker-1")
    harness.tell(LedgerRestored(mark))
    assert harness.report("worker-1", second, found(second)).stale
    harness.tell(pod_exited("worker-1"))
    shard = harness.lease("worker-2")
    assert shard.kind == "train"
    while shard.kind == "train":
        shard = harness.lease("worker-2", shard)
    # it falls silent with a part of the next evaluation; another one evaluates the rest, and trains what is left
    part = harness.lease("worker-3")
    assert part.kind == "evaluate"
    reply = harness.report("worker-3", part, found(part))
    while reply.shard is not None:
        reply = harness.next("worker-3", reply.shard)
    assert reply.answer == "end"
    assert [fact.samples for fact in harness.said(JobCompleted)] == [800]
    assert not harness.said(EvaluationMeasured)
    assert harness.ledger.state.evaluating is None
    assert all(worker.lease is None for worker in harness.ledger.state.workers.values())


def test_what_waits_of_an_evaluation_goes_before_the_end_of_a_job_whose_data_are_closed_meanwhile() -> None:
    """evaluation by ``test_model``: by its books the job is over already. Who then finds nothing to do ends it."""
    harness = LedgerHarness(DataSpec(0, 10, 8, growing=True), 1, (arrival("a", 160),), HeldOut(200, 80, 0, "test"))
    last = harness.lease("worker-1")
    parts = [harness.lease("worker-0", harness.lease("worker-0")), harness.lease("worker-1", last)]
    harness.tell(data_arrived((), closed=True))
    parts.append(harness.lease("worker-2"))
    assert [part.kind for part in parts] == ["evaluate"] * 3
    assert not harness.said(JobCompleted)
    assert harness.next("worker-3").answer == "end"
    assert [fact.samples for fact in harness.said(JobCompleted)] == [160]
    assert not harness.said(EvaluationMeasured)


def test_the_curve_is_that_of_the_scores() -> None:
    harness = Evaluated()
    second = harness.lease("worker-1")
    harness.report("worker-0", harness.first, evaluation(80, 0.0, (0, 10, 20), (30, 20, 0)))
    harness.report("worker-1", second, evaluation(20, 0.0, (10, 0, 0), (0, 0, 10)))
    (measured,) = harness.said(EvaluationMeasured)
    positives, negatives = (10, 10, 20), (30, 20, 10)
    pairs = sum(p * (sum(negatives[:i]) + negatives[i] / 2) for i, p in enumerate(positives))
    assert measured.evaluation.auc == pytest.approx(pairs / (40 * 60))
