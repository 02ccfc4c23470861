"""Clipping of gradients, as Keras does it. A worker clips before it pushes: it alone has the whole gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .errors import InputRefused

F32 = NDArray[np.float32]


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
