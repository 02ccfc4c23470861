"""Clipping of gradients, as Keras does it. A worker clips before it pushes: it alone has the whole gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from .errors import InputRefused

F32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Clipping:
    """At most one limit of a batch's gradients: of each value, of each array's norm, or of the norm of all together.

    The gradient of a table counts as one array: that of its unique rows, as if the table were one variable.
    """

    value: float | None = None
    norm: float | None = None
    global_norm: float | None = None

    def __post_init__(self) -> None:
        stated = {name: limit for name, limit in asdict(self).items() if limit is not None}
        if len(stated) > 1:
            raise InputRefused(f"clipping by {' and by '.join(stated)}: give one of them")
        for limit in stated.values():
            _check(limit)

    def __bool__(self) -> bool:
        return any(limit is not None for limit in asdict(self).values())

    def apply(self, gradients: Sequence[F32]) -> list[F32]:
        """Return the gradients within the limit."""
        if self.value is not None:
            return [by_value(each, self.value) for each in gradients]
        if self.norm is not None:
            return [by_norm(each, self.norm) for each in gradients]
        return list(gradients) if self.global_norm is None else by_global_norm(gradients, self.global_norm)


def by_value(gradient: F32, limit: float) -> F32:
    """Return the gradient with each element between -limit and limit (Keras: clipvalue)."""
    _check(limit)
    return np.clip(gradient, np.float32(-limit), np.float32(limit))


def by_norm(gradient: F32, limit: float) -> F32:
    """Return the gradient, scaled down to a Euclidean norm of at most `limit` (Keras: clipnorm)."""
    return by_global_norm([gradient], limit)[0]


def by_global_norm(gradients: Sequence[F32], limit: float) -> list[F32]:
    """Return the gradients, scaled down together to a norm of at most `limit` (Keras: global_clipnorm)."""
    _check(limit)
    norm = math.sqrt(sum(float(np.square(each, dtype=np.float64).sum()) for each in gradients))
    if norm <= limit:
        return list(gradients)
    scale = np.float32(limit / norm)  # a gradient with a NaN stays one, and is seen
    return [each * scale for each in gradients]


def _check(limit: float) -> None:
    if not (math.isfinite(limit) and limit > 0):
        raise InputRefused(f"limit = {limit} of a gradient must be a positive number")
