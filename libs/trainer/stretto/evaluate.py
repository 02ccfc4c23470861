"""Exact evaluation over a range of samples: mean log loss and area under the ROC curve. It changes no parameter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stretto_messages.values import SCORE_BINS, PartialEvaluation

from .engine.layout import F32, KeyBatch
from .errors import DataError
from .model import Program

_EPSILON = 1e-7
_LOGIT_MOST = 12.0

Pull = Callable[["KeyBatch"], "tuple[tuple[F32, ...], F32, F32]"]
"""Unique keys -> rows, dense, state. It must not create rows: a key without a row has its initial value."""


@dataclass(frozen=True, slots=True)
class Quality:
    """The quality of a model over a number of samples. loss: mean log loss. auc: 0.5 if only one label occurs."""

    samples: int
    loss: float
    auc: float


def log_loss(label: NDArray[Any], probability: NDArray[Any]) -> float:
    """Return the mean binary cross-entropy; probabilities are kept 1e-7 away from 0 and 1."""
    p = np.clip(probability.astype(np.float64), _EPSILON, 1 - _EPSILON)
    return float(-np.mean(np.where(label > 0.5, np.log(p), np.log1p(-p))))


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
    batch_size: int = 4096,
    partition: str = "",
) -> Quality:
    """Evaluate samples [start, start + length), exactly. Raises DataError."""
    if length < 1:
        raise DataError(f"evaluate = {length} samples: at least 1")
    found = list(_predictions(program, pull, range(start, start + length), batch_size, partition))
    label, score = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
    return Quality(length, log_loss(label, score), auc(label, score))


def evaluate_part(
    program: Program,
    pull: Pull,
    samples: range,
    partition: str = "",
    go_on: Callable[[int], bool] = lambda passed: True,
    batch_size: int = 4096,
) -> PartialEvaluation | None:
    """Evaluate a part of the samples; the parts that several workers return add up to one evaluation.

    go_on: called after each batch with the number of samples evaluated so far; if it returns False, evaluation stops
    and returns None.

    The bins of scores are equal steps of the logit, which spreads the small probabilities of rare clicks. The area
    under the curve that is computed from bins treats scores of one bin as ties. Raises DataError.
    """
    passed = 0
    loss_sum = 0.0
    counts = np.zeros((2, SCORE_BINS), np.int64)
    for label, score in _predictions(program, pull, samples, batch_size, partition):
        loss_sum += log_loss(label, score) * len(label)
        p = np.clip(score.astype(np.float64), _EPSILON, 1 - _EPSILON)
        bins = ((np.log(p) - np.log1p(-p) + _LOGIT_MOST) * (SCORE_BINS / (2 * _LOGIT_MOST))).astype(np.int64)
        np.add.at(counts, ((label > 0.5).astype(np.int64), np.clip(bins, 0, SCORE_BINS - 1)), 1)
        passed += len(label)
        if not go_on(passed):
            return None
    return PartialEvaluation(
        samples=len(samples),
        loss_sum=loss_sum,
        positives=tuple(counts[1].tolist()),
        negatives=tuple(counts[0].tolist()),
    )


def _predictions(
    program: Program, pull: Pull, samples: range, batch_size: int, partition: str
) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Yield labels and probabilities, batch after batch."""
    for position in samples[::batch_size]:
        batch = program.read(position, min(batch_size, samples.stop - position), partition)
        keys = program.index(batch)
        rows, dense, state = pull(keys)
        score = program.predict(rows, keys, dense, state, batch)
        if not np.isfinite(score).all():
            bad = int((~np.isfinite(score)).sum())
            raise DataError(f"{bad} of {len(score)} predictions are not finite: the model diverged")
        yield np.asarray(batch["label"], np.float32).reshape(-1), score
