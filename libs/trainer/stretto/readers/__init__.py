"""Readers with random access: ``read(start, length)`` returns the same samples in every process at any time.

Every reader returns the same kind of batch: ``label`` float32 [n], ``numeric`` float32 [n, 13] (log(1 + x), missing 0),
``categorical`` int64 [n, 26] (missing 0). Shards can be read by any worker, in any order, as often as needed.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError

Batch = dict[str, NDArray[Any]]


class Reader(Protocol):
    """Random access to the samples of a dataset."""

    def read(self, start: int, length: int) -> Batch:
        """Return samples [start, start + length) in the dataset's own order."""
        ...


def log_counts(integers: NDArray[Any], missing: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Compress counts with a heavy tail to log(1 + max(x, 0)); missing ones become 0."""
    values = np.where(missing, 0, np.maximum(integers, 0)).astype(np.float32)
    return np.log1p(values)


def check_range(start: int, length: int, size: int | None, where: str) -> None:
    """Raise DataError for a range that the data do not have."""
    if start < 0 or length < 0 or (size is not None and start + length > size):
        has = "unbounded" if size is None else f"{size} samples"
        raise DataError(
            f"samples [{start}, {start + length}) of {where} do not exist ({has}); "
            "lower dataset.samples or evaluate in the job's specification"
        )
