"""Clipping of gradients, as Keras does it. A worker clips before it pushes: it alone has the whole gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import InputRefused

F32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Clipping:
    """At most one limit of a batch's gradients: of each value, of each array's norm, or of the norm of all together.

    A table counts as one array, as if it were one variable. Where a batch has a row several times, Keras limits each of
    its gradients before they are added up: `squares` are theirs, added up.
    """

    value: float | None = None
    norm: float | None = None
    global_norm: float | None = None

    def __post_init__(self) -> None:
        stated = {name: limit for name, limit in asdict(self).items() if limit is not None}
        if len(stated) > 1:
            raise InputRefused(f"clipping by {' and by '.join(stated)}: give one of them")
        for limit in stated.values():
            if not (math.isfinite(limit) and limit > 0):
                raise InputRefused(f"limit = {limit} of a gradient must be a positive number")

    def __bool__(self) -> bool:
        return any(limit is not None for limit in asdict(self).values())

    def apply(self, gradients: Sequence[F32]) -> list[F32]:
        """Return the gradients within the limit."""
        if self.value is not None:
            limit = np.float32(self.value)
            return [np.clip(each, -limit, limit) for each in gradients]
        return [each * scale for each, scale in zip(gradients, self.scales(gradients), strict=True)]

    def scales(self, gradients: Sequence[F32], squares: Sequence[F32 | None] = ()) -> list[np.float32]:
        """Return what a limit of norms multiplies each gradient by. squares: where they are not the gradient's own."""
        known = squares or [None] * len(gradients)
        of_each = [_squared(*pair) for pair in zip(gradients, known, strict=True)]
        if self.norm is not None:
            return [_scale(each, self.norm) for each in of_each]
        whole = np.float32(1) if self.global_norm is None else _scale(sum(of_each), self.global_norm)
        return [whole] * len(gradients)


def _squared(gradient: F32, squares: F32 | None = None) -> float:
    """Return the square of a gradient's norm. squares: of its elements, where they are not its own."""
    return float((np.square(gradient, dtype=np.float64) if squares is None else squares).sum(dtype=np.float64))


def _scale(squared: float, limit: float) -> np.float32:
    norm = math.sqrt(squared)
    return np.float32(1) if norm <= limit else np.float32(limit / norm)  # a gradient with a NaN stays one, and is seen
