"""The common part of the example models: the source of their samples, and the ids of their embedding rows."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stretto import field_keys
from stretto.errors import DataError
from stretto.readers import Batch, Reader
from stretto.readers.arrow import Arrow
from stretto.readers.criteo import Criteo
from stretto.readers.synthetic import Synthetic

FIELDS = 26
INTEGERS = 13


class CriteoTask:
    """Samples from a file (``data``: Criteo text, Parquet or Arrow), or else from the seeded generator.

    samples, categories, new_categories: settings of the generator (stretto.readers.synthetic). hidden: units of the
    deep layers, as in "64,32". samples_per_s: the most that one reader gets, as from a slow remote store; 0: no limit.
    samples_per_s_file: a file that states this number, read for each batch: a store that turns slow, and fast again.
    """

    def __init__(
        self,
        *,
        data: str | None = None,
        seed: int = 0,
        samples: int = 1_000_000,
        categories: int = 50_000,
        new_categories: int = 0,
        embedding_dim: int = 16,
        hidden: str = "64,32",
        samples_per_s: float = 0.0,
        samples_per_s_file: str = "",
    ) -> None:
        self.embedding_dim = embedding_dim
        if samples_per_s < 0:
            raise DataError(f"samples_per_s = {samples_per_s:g}: give the most that a reader gets, or 0 for no limit")
        self._samples_per_s, self._samples_per_s_file = samples_per_s, samples_per_s_file
        try:
            self.hidden = [int(units) for units in str(hidden).split(",")]
        except ValueError as error:
            raise DataError(f"hidden = {hidden!r}: give numbers of units separated by commas, as in '64,32'") from error
        self.reader: Reader
        if data is None:
            self.reader = Synthetic(seed, categories=categories, new_categories=new_categories, samples=samples)
        elif data.endswith((".parquet", ".arrow", ".feather")):
            self.reader = Arrow(data, log_dense=True)
        else:
            self.reader = Criteo(data)

    def read(self, start: int, length: int) -> Batch:
        began_s = time.monotonic()
        batch = self.reader.read(start, length)
        samples_per_s = self._store_samples_per_s()
        takes_s = length / samples_per_s if samples_per_s > 0 else 0.0
        time.sleep(max(0.0, takes_s - (time.monotonic() - began_s)))
        return batch

    def _store_samples_per_s(self) -> float:
        """Return the most that one reader gets now; 0: no limit."""
        if not self._samples_per_s_file:
            return self._samples_per_s
        try:
            return float(Path(self._samples_per_s_file).read_text())
        except (OSError, ValueError) as error:
            name = f"samples_per_s_file = {self._samples_per_s_file!r}"
            raise DataError(f"{name}: give a file of one number: {error}") from None

    def keys(self, batch: Batch) -> NDArray[np.int64]:
        return field_keys(batch["categorical"])
