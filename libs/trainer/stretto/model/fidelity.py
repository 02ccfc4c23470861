"""Checks that a model with its tables on the servers computes and trains as the original does, in any framework."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stretto_parameters.optimizers import AdamW, Ftrl

from ..engine.layout import F32
from ..errors import DataError, ModelRefused
from ..optimizers import Updates
from .program import EmbeddingRows

_TOLERANCE = 1e-4
"""Relative difference of outputs that counts as float noise: sums in another order, fused operations."""


def is_close(found: NDArray[Any], expected: NDArray[Any] | None) -> bool:
    """Return whether an output equals the expected one up to float noise; where None is expected, every output does."""
    if expected is None:
        return True
    if found.shape != expected.shape:
        return False
    scale = float(np.max(np.abs(expected), initial=0.0))
    return bool(np.allclose(found, expected, rtol=_TOLERANCE, atol=_TOLERANCE * max(1e-3, scale) / 10, equal_nan=True))


def differs(
    found: Sequence[NDArray[Any]], expected: Sequence[NDArray[Any] | None], layers: Sequence[str]
) -> ModelRefused:
    """Return the refusal of an adapted model with other outputs than expected. layers: the cause, where it is known."""
    pairs = [(a, b) for a, b in zip(found, expected, strict=True) if b is not None and a.shape == b.shape]
    largest = max((float(np.max(np.abs(a - b))) for a, b in pairs), default=float("inf"))
    named = f"layer {', '.join(layers)}" if layers else "no single layer is the cause"
    return ModelRefused(
        f"the adapted model differs from the original by up to {largest:.3g} on the first samples: {named}; "
        "its ids must be the same in every call, and follow from the inputs alone"
    )


def check_numbers(outputs: Sequence[NDArray[Any]], names: Sequence[str], samples: int, example: str) -> None:
    """Raise ModelRefused for outputs of the user's own model that are NaN.

    samples: how many it was called with. example: a division of the framework that may be by zero.
    """
    for name, output in zip(names, outputs, strict=True):
        bad = np.argwhere(np.isnan(output)) if output.dtype.kind == "f" else np.zeros((0, 0))
        if len(bad):
            where = f"sample {int(bad[0, 0])}" if output.shape[:1] == (samples,) else "the first samples"
            raise ModelRefused(
                f"the model itself, as build() made it, gives NaN for {where}: output {name}; its loss would be NaN, "
                f"too. Look for a division by zero: {example} without its padding, so give an empty list one id, such "
                "as that of 'unknown'"
            )


def check_updates(embeddings: Sequence[EmbeddingRows], updates: Updates, remedy: str) -> None:
    """Raise ModelRefused for an optimizer that decays weights, where differences to initial values are kept."""
    for each in embeddings:
        rule = updates.rules[updates.rule_of(each.layer)].optimizer
        decays = isinstance(rule, Ftrl) or (isinstance(rule, AdamW) and rule.weight_decay != 0)
        if decays and each.initial is not None:
            raise ModelRefused(
                f"layer {each.layer} has initial values of its own, and the servers keep the differences to them, "
                f"which {type(rule).__name__} would decay in the place of the weights; {remedy}, or an optimizer "
                "without decay of weights"
            )


def probability(output: NDArray[Any], *, is_logit: bool) -> F32:
    """Return the probabilities of label 1 in an output: [n]. is_logit: the output is the logit of them."""
    flat: F32 = output.reshape(-1).astype(np.float32)
    return (1 / (1 + np.exp(-flat))).astype(np.float32) if is_logit else flat


@contextlib.contextmanager
def refusing(told: str, reason: Callable[[Exception], str] = str) -> Generator[None]:
    """Turn whatever a user's model raises in a block into ModelRefused. told: what failed; reason: the error's text."""
    try:
        yield
    except (ModelRefused, DataError):
        raise
    except Exception as error:
        raise ModelRefused(f"{told}: {type(error).__name__}: {reason(error)}") from error
