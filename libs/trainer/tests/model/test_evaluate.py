"""Evaluation is exact, and leaves the parameters as they are."""

from __future__ import annotations

from contextlib import nullcontext
from threading import Event
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stretto.errors import DataError, ModelRefused
from stretto.model.evaluate import auc, check_metrics, evaluate, evaluate_part, log_loss
from stretto.model.program import Judged, Metrics
from stretto.worker.agent import Worker
from stretto_core.dispatcher.evaluating import Evaluating
from stretto_messages.values import Shard
from stretto_wire.codec import encode

scored = st.lists(st.tuples(st.booleans(), st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9, 1.0])), min_size=2, max_size=60)


@given(scored)
def test_auc_is_the_share_of_pairs_in_order(samples: list[tuple[bool, float]]):
    label = np.array([int(y) for y, _ in samples])
    score = np.array([s for _, s in samples])
    pairs = [(p, n) for p in score[label == 1] for n in score[label == 0]]
    expected = np.mean([1.0 if p > n else 0.5 if p == n else 0.0 for p, n in pairs]) if pairs else 0.5
    assert auc(label, score) == pytest.approx(expected, abs=1e-12)


@given(scored)
def test_auc_depends_on_the_order_only(samples: list[tuple[bool, float]]):
    label = np.array([int(y) for y, _ in samples])
    score = np.array([s for _, s in samples])
    assert auc(label, score) == auc(label, np.exp(3 * score) + 7)


def test_log_loss_is_the_mean_negative_log_likelihood():
    label, probability = np.array([1, 0, 1, 0]), np.array([0.9, 0.1, 0.5, 0.5], np.float32)
    assert log_loss(label, probability) == pytest.approx(-(2 * np.log(0.9) + 2 * np.log(0.5)) / 4, rel=1e-6)
    assert np.isfinite(log_loss(np.array([1, 0]), np.array([0.0, 1.0])))


def test_labels_that_are_fractions_are_not_rounded():
    """The first samples of some ratings may be all 0 or 1, so that the output was taken for binary."""
    label, score = np.array([0.25, 0.75, 1.0], np.float32), np.array([0.5, 0.5, 0.5], np.float32)
    program: Any = SimpleNamespace(
        read=lambda start, length, partition: {},
        index=lambda batch: batch,
        judge=lambda rows, keys, dense, state, batch: Judged(3, label, np.array([0.25, 0.75, 0.5], np.float32)),
        metrics=lambda: None,
    )
    entropy = -(0.25 * np.log(0.25) + 0.75 * np.log(0.75))
    whole = evaluate(program, lambda keys: (None, None, None), 0, 3, 3)
    assert whole.loss == pytest.approx((2 * entropy + np.log(2)) / 3, rel=1e-6)
    assert np.isnan(whole.auc)
    part = evaluate_part(program, lambda keys: (None, None, None), range(3), 3)
    assert part.loss_sum == pytest.approx(3 * whole.loss)
    assert (sum(part.positives), sum(part.negatives)) == (0, 3)
    assert log_loss(label, score) == pytest.approx(np.log(2))


class Sums(Metrics):
    """Metrics of which some have diverged."""

    def add(self, judged: Judged) -> None: ...

    def results(self) -> dict[str, float]:
        return {"mae": 0.5}

    def sums(self) -> dict[str, tuple[float, float]]:
        return {"mae": (1.0, 2.0), "rest": (float("nan"), 2.0), "ratio": (float("inf"), 2.0)}

    def close(self) -> None: ...


def judging(loss: float) -> Any:
    """Return a program with a loss of its own and no binary output."""
    return SimpleNamespace(
        read=lambda start, length, partition: {"length": length},
        index=lambda batch: batch,
        judge=lambda rows, keys, dense, state, batch: Judged(batch["length"], None, None, loss),
        metrics=Sums,
    )


def test_metrics_that_are_not_finite_do_not_reach_the_message():
    part = evaluate_part(judging(0.5), lambda keys: (None, None, None), range(3), 3)
    assert part is not None
    assert {"mae", "rest", "ratio"} & {each.name for each in part.metrics} == {"mae"}
    assert encode(part)


def test_a_loss_that_is_negative_in_some_parts_adds_up():
    """A similarity is one; only the field that is published is at least 0."""
    for losses, published, mean in (((-0.5, 0.75), 0.125, 0.125), ((-0.5, -0.25), 0.0, -0.375)):
        running = Evaluating(0, [], held=2)
        for loss in losses:
            part = evaluate_part(judging(loss), lambda keys: (None, None, None), range(4), 4)
            assert part is not None
            running.add(part)
        assert running.loss == published
        assert {each.name: each.value for each in running.metrics}["loss"] == mean


def test_a_loss_over_a_batch_is_that_of_batches_as_the_training_has_them():
    """In-batch negatives: the loss of a model that has learned nothing is the logarithm of the size of the batch."""
    program = SimpleNamespace(
        read=lambda start, length, partition: {"length": length},
        index=lambda batch: batch,
        judge=lambda rows, keys, dense, state, batch: Judged(
            batch["length"], None, None, float(np.log(batch["length"])), loss_name="TwoTower.compute_loss"
        ),
        metrics=lambda: None,
    )
    data = SimpleNamespace(partitioned=False, samples=100, batch_size=256, held_out=None)
    leases = SimpleNamespace(
        passed=lambda passed: None, current=True, found=[], completed=lambda it: leases.found.append(it)
    )
    worker: Any = SimpleNamespace(
        program=program,
        _pull=lambda keys: (None, None, None),
        _spec=SimpleNamespace(dataset=data),
        _leases=leases,
        _pod=SimpleNamespace(leaving=Event(), tracing=SimpleNamespace(span=lambda *told, **more: nullcontext())),
        _meter=SimpleNamespace(idle=lambda: None),
    )
    last = Worker.evaluate(worker, 1024)
    Worker._evaluate_shard(worker, Shard(id=1, attempt=1, epoch=0, start=100, length=1024, kind="evaluate"))
    assert last.loss == pytest.approx(np.log(256))
    (part,) = leases.found
    assert part.loss_sum == pytest.approx(1024 * np.log(256))
    assert last.loss_name == part.loss_name == "loss TwoTower.compute_loss"


@pytest.mark.parametrize("names", [[f"m{n}" for n in range(64)], ["m" * 201], ["loss"]])
def test_metrics_that_no_message_has_a_place_for_are_refused(names: list[str]):
    with pytest.raises(ModelRefused, match="metric"):
        check_metrics(names)


def test_parts_of_an_evaluation_add_up_to_the_whole():
    """In any order and cut: the loss is exact, the AUC exact except for ties within a bin."""
    rng = np.random.default_rng(5)
    logit = rng.normal(-3, 1.5, 20_000)
    score = (1 / (1 + np.exp(-logit))).astype(np.float32)
    label = (rng.uniform(size=20_000) < score).astype(np.float32)
    program: Any = SimpleNamespace(
        read=lambda start, length, partition: {"label": label[start : start + length], "place": start},
        index=lambda batch: batch,
        judge=lambda rows, keys, dense, state, batch: Judged(
            len(batch["label"]), batch["label"], score[batch["place"] : batch["place"] + len(batch["label"])]
        ),
        metrics=lambda: None,
    )

    def pull(keys: object) -> Any:
        return None, None, None

    whole = evaluate(program, pull, 0, 20_000, 4096)
    running = Evaluating(0, [], held=3)
    for samples in (range(12_000, 20_000), range(7000), range(7000, 12_000)):
        part = evaluate_part(program, pull, samples, batch_size=999)
        assert part is not None
        running.add(part)
    assert running.over
    assert (running.samples, running.loss) == (20_000, pytest.approx(whole.loss, rel=1e-6))
    assert running.auc == pytest.approx(whole.auc, abs=2e-4)
    assert evaluate_part(program, pull, range(9000), 4096, go_on=lambda passed: False) is None
    told: list[int] = []
    assert evaluate_part(program, pull, range(9000), 4096, go_on=lambda passed: not told.append(passed)) is not None
    assert told == [4096, 8192, 9000]  # what its lease is kept by
    score[17] = np.nan
    with pytest.raises(DataError, match="1 of 1000 predictions are not finite"):
        evaluate_part(program, pull, range(1000), 4096)
