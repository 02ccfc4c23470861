"""Embedding keys of categorical values, in pure NumPy.

All rows of a model live in one table, yet every field of a sample has rows of its own: the field's number is part of
the key.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from ..readers.hashing import VALUE_BITS


def field_keys(values: NDArray[np.integer[Any]], field: int | None = None) -> NDArray[np.int64]:
    """Return the keys of ``values`` [n, fields]: the same value in two fields gets two keys.

    field: the one field of all columns, as of a list; any number below 2^15 that is no other column's.
    Values must lie in [0, 2^48): hash all others with `stretto.hash_values` or `stretto.hash_strings` first.
    """
    if values.ndim != 2:
        raise DataError(f"categorical values have shape {values.shape}; expected [samples, fields]")
    if values.shape[1] >= 2**15:
        raise DataError(f"{values.shape[1]} fields are too many; at most {2**15 - 1}")
    wide = values.astype(np.int64, copy=False)
    if wide.size and (int(wide.min()) < 0 or int(wide.max()) >> VALUE_BITS):
        raise DataError(
            f"categorical values range from {int(wide.min())} to {int(wide.max())}; keys take [0, 2^48): "
            "pass them through stretto.hash_values first"
        )
    if field is not None and not 0 <= field < 2**15:
        raise DataError(f"field = {field}: expected 0 to {2**15 - 1}")
    fields = np.arange(wide.shape[1], dtype=np.int64) if field is None else np.int64(field)
    return wide | (fields << VALUE_BITS)
