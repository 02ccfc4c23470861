"""Negatives for retrieval models: a softmax over a few items that is corrected for how often each is among them.

A softmax over a whole catalogue is replaced by one over the items of a batch, which are positives of other samples, or
over items that are drawn. Popular items are among these more often than others: an uncorrected loss teaches a model to
give them lower scores. Each score s(x, j) becomes s(x, j) - log Q(j), where Q(j) is the share of draws that are j. Then
the sum of the exponentials is, in expectation, that over all items (Bengio and Senécal 2008; Yi et al.,
"Sampling-bias-corrected neural modeling for large corpus item recommendations", RecSys 2019).

Yi et al. estimate Q while they train. Here it is counted in the data beforehand, and read as an array of the batch: an
estimate that grows with the steps would depend on the order of asynchronous workers, and no replay would have it again.
"""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import Any, Self
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from .errors import DataError

_DRAWS_OF_A_BLOCK = 4
"""Numbers of 64 bits that Philox makes at a time, a block; each sample begins with a new block."""


class Popularity:
    """How often each item is the positive one of a sample.

    items: integers, each once, rising. counts: how often each was seen, at least 1. power: Q is proportional to
    count ** power, which must be 1 for items of the batch; 0.75 is usual for drawn ones, and 0 draws all alike.
    """

    def __init__(self, items: NDArray[np.int64], counts: NDArray[np.int64], power: float = 1.0) -> None:
        if not len(items) or len(items) != len(counts) or (np.diff(items) <= 0).any() or (counts < 1).any():
            raise DataError("popularity: items must be distinct and rising, each with a count of at least 1")
        self._items, self._counts = items, counts
        weights = counts.astype(np.float64) ** power
        self._log_q = np.log(weights / weights.sum())
        self._until = np.cumsum(weights / weights.sum())

    @classmethod
    def of(cls, parts: Iterable[NDArray[np.integer[Any]]], power: float = 1.0) -> Self:
        """Count the items of a dataset, given in parts, such as its reads. Raises DataError."""
        seen, counts = np.zeros(0, np.int64), np.zeros(0, np.int64)
        for part in parts:
            items = np.concatenate([seen, np.asarray(part, np.int64).reshape(-1)])
            weights = np.concatenate([counts, np.ones(len(items) - len(seen), np.int64)])
            seen, places = np.unique(items, return_inverse=True)
            counts = np.bincount(places, weights, len(seen)).astype(np.int64)
        return cls(seen, counts, power)

    @classmethod
    def load(cls, path: str | PathLike[str], power: float = 1.0) -> Self:
        """Read what :meth:`save` wrote. Raises DataError."""
        try:
            with np.load(path) as kept:
                return cls(kept["items"], kept["counts"], power)
        except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile) as error:
            raise DataError(f"{path} is no popularity: {error}; write it by Popularity.of(…).save(path)") from error

    def save(self, path: str | PathLike[str]) -> None:
        """Write items and counts as a file of NumPy (.npz)."""
        draft = Path(path).with_name(f"{Path(path).name}.tmp")
        with draft.open("wb") as file:
            np.savez(file, items=self._items, counts=self._counts)
        draft.replace(path)

    def log_q(self, items: NDArray[np.integer[Any]]) -> NDArray[np.float32]:
        """Return log Q of items, of any shape. An item that was not counted has the log Q of the rarest item."""
        places = np.minimum(np.searchsorted(self._items, items), len(self._items) - 1)
        found = np.where(self._items[places] == items, self._log_q[places], self._log_q.min())
        return found.astype(np.float32)

    def draw(self, start: int, length: int, each: int, seed: int = 0) -> NDArray[np.int64]:
        """Draw ``each`` items for every sample of [start, start + length), by Q, with replacement: [length, each].

        A sample's items depend on its number and the seed alone: whoever reads it, in whatever batch, has the same.
        """
        width = -(-each // _DRAWS_OF_A_BLOCK) * _DRAWS_OF_A_BLOCK
        generator = np.random.Philox(key=(seed & (2**64 - 1), 0x4E656761746976))
        generator.advance(start * (width // _DRAWS_OF_A_BLOCK))
        raw = generator.random_raw(length * width).reshape(length, width)[:, :each]
        uniform = (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53
        places = np.searchsorted(self._until, uniform, side="right")
        return self._items[np.minimum(places, len(self._items) - 1)]


def softmax_loss(scores: Any, log_q: Any, items: Any = None) -> Any:
    """Return the corrected softmax loss of each sample, [n], for tensors of Keras or PyTorch.

    scores: [n, m], of sample i with item j; item i is the positive one of sample i, those from n on are drawn for all.
    log_q: of the m items, each by the way in which it came here, [m]. items: their numbers, [m]; an item that is a
    sample's positive one is then none of its negatives (an accidental hit).
    """
    if type(scores).__module__.partition(".")[0] == "torch":
        import torch

        ops, count = torch, scores.shape[0]
        number = torch.arange(scores.shape[1], device=scores.device)
    else:
        from keras import ops

        count = ops.shape(scores)[0]
        number = ops.arange(ops.shape(scores)[1])
    corrected = scores - log_q[None, :]
    positive = ops.diagonal(corrected)
    if items is not None:
        hit = (items[None, :] == items[:count, None]) & (number[None, :] != number[:count, None])
        corrected = ops.where(hit, -1e30, corrected)
    return ops.logsumexp(corrected, 1) - positive
