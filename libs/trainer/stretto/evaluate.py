"""Exact evaluation: mean log loss and area under the ROC curve over a range of samples, without touching parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .engine.layout import F32, KeyBatch
from .errors import DataError

if TYPE_CHECKING:
    from .model import Program

_EPSILON = 1e-7


@dataclass(frozen=True, slots=True)
class Quality:
    """samples; loss: mean log loss; auc: 0.5 when only one label occurs."""

    samples: int
    loss: float
    auc: float


def log_loss(label: NDArray[Any], probability: NDArray[Any]) -> float:
    """Mean binary cross-entropy; probabilities are kept 1e-7 away from 0 and 1."""
    p = np.clip(probability.astype(np.float64), _EPSILON, 1 - _EPSILON)
    return float(-np.mean(np.where(label > 0.5, np.log(p), np.log1p(-p))))


def auc(label: NDArray[Any], score: NDArray[Any]) -> float:
    """Exact area under the ROC curve: the Mann-Whitney statistic with mean ranks for ties."""
    positive = label > 0.5
    n_positive, n = int(positive.sum()), len(label)
    if n_positive in (0, n):
        return 0.5
    _, inverse, counts = np.unique(score, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks = (last - (counts - 1) / 2.0)[inverse]
    total = float(ranks[positive].sum()) - n_positive * (n_positive + 1) / 2.0
    return total / (n_positive * (n - n_positive))


def evaluate(
    program: Program,
    pull: Callable[[KeyBatch], tuple[F32, F32, F32]],
    start: int,
    length: int,
    batch_size: int = 4096,
    progress: Callable[[int], None] | None = None,
) -> Quality:
    """Evaluate samples [start, start + length).

    pull: unique keys -> rows, dense, state; it must not create rows (a key without a row has its initial value).
    """
    if length < 1:
        raise DataError(f"evaluate = {length} samples: at least 1")
    labels: list[NDArray[Any]] = []
    scores: list[NDArray[Any]] = []
    for position in range(start, start + length, batch_size):
        batch = program.read(position, min(batch_size, start + length - position))
        keys = program.index(batch)
        rows, dense, state = pull(keys)
        scores.append(program.predict(rows, keys, dense, state, batch))
        labels.append(np.asarray(batch["label"], np.float32).reshape(-1))
        if progress is not None:
            progress(position - start)
    label, score = np.concatenate(labels), np.concatenate(scores)
    if not np.isfinite(score).all():
        raise DataError(
            f"{int((~np.isfinite(score)).sum())} of {length} predictions are not finite: the model diverged"
        )
    return Quality(length, log_loss(label, score), auc(label, score))
