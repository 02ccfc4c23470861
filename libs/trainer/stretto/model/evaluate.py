"""Exact evaluation over a range of samples: mean log loss and area under the ROC curve. It changes no parameter.

Samples are judged in batches of the training's size: the loss of a batch need not be a mean over its samples, and one
that compares the samples of a batch with each other grows with it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stretto_messages.values import SCORE_BINS, Evaluation, MetricSum, MetricValue, PartialEvaluation

from ..engine.layout import F32, KeyBatch
from ..errors import DataError, ModelRefused
from .program import Judged, Metrics, Program

_EPSILON = 1e-7
_LOGIT_MOST = 12.0
LOSS_SUM_MAX = 1e15
METRICS_MAX, NAME_MAX = 63, 200
"""Limits of Evaluation.metrics; one of its 64 is the model's own loss."""

Pull = Callable[["KeyBatch"], "tuple[tuple[F32, ...], F32, F32]"]
"""Unique keys -> rows, dense, state. It must not create rows: a key without a row has its initial value."""


@dataclass(frozen=True, slots=True)
class Quality:
    """The quality of a model over a number of samples.

    loss: mean log loss, and auc (0.5 if only one label occurs), of the first output with probabilities of 0/1 labels.
    Without such an output, loss is the mean of the model's own loss, and auc NaN, as for labels that are fractions.
    metrics: the metrics that the user compiled, by name. loss_name: what the loss is.
    """

    samples: int
    loss: float
    auc: float
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    loss_name: str = ""


def log_loss(label: NDArray[Any], probability: NDArray[Any]) -> float:
    """Return the mean binary cross-entropy; probabilities are kept 1e-7 away from 0 and 1."""
    p = np.clip(probability.astype(np.float64), _EPSILON, 1 - _EPSILON)
    y = label.astype(np.float64)
    return float(-np.mean(y * np.log(p) + (1 - y) * np.log1p(-p)))


def _is_binary(label: NDArray[Any]) -> bool:
    return bool(((label == 0) | (label == 1)).all())


def auc(label: NDArray[Any], score: NDArray[Any]) -> float:
    """Return the exact area under the ROC curve: the Mann-Whitney statistic with mean ranks for ties."""
    positive = label > 0.5
    n_positive = int(positive.sum())
    n = len(label)
    if n_positive in (0, n):
        return 0.5
    _, inverse, counts = np.unique(score, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks = (last - (counts - 1) / 2.0)[inverse]
    total = float(ranks[positive].sum()) - n_positive * (n_positive + 1) / 2.0
    return total / (n_positive * (n - n_positive))


def evaluate(
    program: Program,
    pull: Pull,
    start: int,
    length: int,
    batch_size: int,
    partition: str = "",
) -> Quality:
    """Evaluate samples [start, start + length), exactly. Raises DataError."""
    if length < 1:
        raise DataError(f"evaluate = {length} samples: at least 1")
    judged: list[Judged] = []
    with _metrics_of(program) as metrics:
        for each in _judged(program, pull, range(start, start + length), batch_size, partition):
            if metrics is not None:
                metrics.add(each)
            judged.append(replace(each, labels=None, outputs=None, weights=None, inputs=None))
        found = metrics.results() if metrics is not None else {}
    name = _loss_name(judged[0])
    if judged[0].label is None:
        mean = sum(each.loss * each.samples for each in judged) / length
        return Quality(length, mean, float("nan"), found, name)
    label, score = (np.concatenate([getattr(each, name) for each in judged]) for name in ("label", "score"))
    area = auc(label, score) if _is_binary(label) else float("nan")
    return Quality(length, log_loss(label, score), area, found, name)


def evaluation_of(quality: Quality) -> Evaluation:
    """Return the quality as it is published: without a binary output the area is 0.5, and the loss not below 0."""
    metrics = quality.metrics
    if np.isnan(quality.auc):
        metrics = {**metrics, "loss": quality.loss}
    return Evaluation(
        samples=quality.samples,
        loss=max(0.0, quality.loss),
        auc=0.5 if np.isnan(quality.auc) else quality.auc,
        metrics=tuple(MetricValue(name=name, value=value) for name, value in metrics.items() if np.isfinite(value)),
        loss_name=quality.loss_name,
    )


def evaluate_part(
    program: Program,
    pull: Pull,
    samples: range,
    batch_size: int,
    partition: str = "",
    go_on: Callable[[int], bool] = lambda passed: True,
) -> PartialEvaluation | None:
    """Evaluate a part of the samples; the parts that several workers return add up to one evaluation.

    go_on: called after each batch with the number of samples evaluated so far; if it returns False, evaluation stops
    and returns None.

    The bins of scores are equal steps of the logit, which spreads the small probabilities of rare clicks. The area
    under the curve that is computed from bins treats scores of one bin as ties. A model without a binary output,
    or with labels that are fractions, has its samples in the middle bin, and an area of 0.5. Without a binary output
    the metric `loss` is the mean of the model's own loss. Raises DataError.
    """
    passed = 0
    loss_sum, is_own, name = 0.0, False, ""
    counts = np.zeros((2, SCORE_BINS), np.int64)
    with _metrics_of(program) as metrics:
        for each in _judged(program, pull, samples, batch_size, partition):
            if metrics is not None:
                metrics.add(each)
            loss, added = _share(each)
            loss_sum += loss * each.samples
            is_own, name = each.score is None, _loss_name(each)
            counts += added
            passed += each.samples
            if not go_on(passed):
                return None
        sums = dict(metrics.sums()) if metrics is not None else {}
    if is_own:
        sums["loss"] = (loss_sum, passed)  # it may be negative, which the field does not take
    return PartialEvaluation(
        samples=len(samples),
        loss_sum=min(max(0.0, loss_sum), LOSS_SUM_MAX),
        positives=tuple(counts[1].tolist()),
        negatives=tuple(counts[0].tolist()),
        metrics=tuple(
            MetricSum(name=name, total=total, count=count)
            for name, (total, count) in sums.items()
            if np.isfinite(total) and np.isfinite(count) and count >= 0  # no message has others
        ),
        loss_name=name,
    )


def _loss_name(judged: Judged) -> str:
    return f"loss {judged.loss_name}".strip()[:NAME_MAX] if judged.score is None else "log loss"


def _share(judged: Judged) -> tuple[float, NDArray[np.int64]]:
    """Return the mean loss of a batch, and its samples in the bins of scores."""
    middle = np.zeros((2, SCORE_BINS), np.int64)
    middle[0, SCORE_BINS // 2] = judged.samples
    if judged.label is None or judged.score is None:
        return judged.loss, middle
    bins = _bins(judged.label, judged.score) if _is_binary(judged.label) else middle
    return log_loss(judged.label, judged.score), bins


def _bins(label: NDArray[Any], score: NDArray[Any]) -> NDArray[np.int64]:
    """Return how many samples of label 0 and of label 1 have a score in each bin: [2, SCORE_BINS]."""
    p = np.clip(score.astype(np.float64), _EPSILON, 1 - _EPSILON)
    bins = ((np.log(p) - np.log1p(-p) + _LOGIT_MOST) * (SCORE_BINS / (2 * _LOGIT_MOST))).astype(np.int64)
    counts = np.zeros((2, SCORE_BINS), np.int64)
    np.add.at(counts, ((label > 0.5).astype(np.int64), np.clip(bins, 0, SCORE_BINS - 1)), 1)
    return counts


def check_metrics(names: Collection[str]) -> None:
    """Raise ModelRefused for metrics of a model that the message with an evaluation has no place for."""
    if len(names) > METRICS_MAX:
        raise ModelRefused(f"the model has {len(names)} metrics: at most {METRICS_MAX}; compile it with fewer")
    bad = next((name for name in names if not 1 <= len(name) <= NAME_MAX or name == "loss"), None)
    if bad is not None:
        raise ModelRefused(
            f"the metric {bad[:80]!r} has a name of {len(bad)} characters: give it one of 1 to {NAME_MAX}, other than "
            "'loss', which is that of the evaluation (name=…)"
        )


@contextlib.contextmanager
def _metrics_of(program: Program) -> Generator[Metrics | None]:
    metrics = program.metrics()
    try:
        yield metrics
    finally:
        if metrics is not None:
            metrics.close()


def _judged(program: Program, pull: Pull, samples: range, batch_size: int, partition: str) -> Iterator[Judged]:
    """Yield predictions beside their labels, batch after batch."""
    for position in samples[::batch_size]:
        batch = program.read(position, min(batch_size, samples.stop - position), partition)
        keys = program.index(batch)
        rows, dense, state = pull(keys)
        judged = program.judge(rows, keys, dense, state, batch)
        values = judged.loss if judged.score is None else judged.score
        if not np.isfinite(values).all():
            bad = int((~np.isfinite(values)).sum())
            raise DataError(f"{bad} of {np.size(values)} predictions are not finite: the model diverged")
        yield judged
