"""Inputs of a policy (HeterPS §5.2), and the problems that one policy can read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from stretto_core.planner.placement import PlacementProblem
from stretto_messages.base import InvalidValue

Floats32 = NDArray[np.float32]
BYTES_SCALE = 20.0
"""Scale of the logarithms of sizes: e^20 bytes are half a GB."""
LEAST_SHARE = 1e-6
"""Least share of tau: the logarithm of a time of 0 would be infinite."""


@dataclass(frozen=True, slots=True)
class Form:
    """The meaning of a policy's inputs and outputs; ``layers`` is the most layers of a model."""

    layers: int
    kinds: tuple[str, ...]
    types: tuple[str, ...]

    @staticmethod
    def of(problem: PlacementProblem) -> Form:
        """Return the form of a policy that learns from this problem."""
        kinds = tuple(dict.fromkeys(layer.kind for layer in problem.layers))
        return Form(len(problem.layers), kinds, tuple(kind.name for kind in problem.types))

    @property
    def width(self) -> int:
        """Features of a layer."""
        return self.layers + len(self.kinds) + 2 + 2 * len(self.types)

    def check(self, problem: PlacementProblem) -> None:
        """Raise InvalidValue for a problem that the policy has no inputs or outputs for."""
        types = tuple(kind.name for kind in problem.types)
        if types != self.types:
            raise InvalidValue(f"types are {_shown(types)}; the model learned {_shown(self.types)}, in this order")
        if len(problem.layers) > self.layers:
            raise InvalidValue(f"layers are {len(problem.layers)}; the model learned at most {self.layers}")
        for index, layer in enumerate(problem.layers):
            if layer.kind not in self.kinds:
                raise InvalidValue(f"layers[{index}].kind is {layer.kind!r}; the model learned {_shown(self.kinds)}")

    def features(self, problem: PlacementProblem) -> Floats32:
        """Return by [layer, feature]: index and kind as one-hot, sizes, and times of transfer and computation per type.

        The paper has the first three and the transfer's time. A policy that is to place other data as well has to see
        computing times too, and times as shares of the largest tau. Sizes and shares as logarithms.
        """
        count = len(problem.layers)
        index = np.eye(self.layers)[:count]
        kind = np.eye(len(self.kinds))[[self.kinds.index(layer.kind) for layer in problem.layers]]
        sizes = np.array([[layer.input_bytes, layer.weight_bytes] for layer in problem.layers])
        times_s = np.array([[*layer.transfer_s, *layer.compute_s] for layer in problem.layers])
        shares = np.log(np.maximum(times_s / problem.slowest_s, LEAST_SHARE)) / -np.log(LEAST_SHARE)
        return np.concatenate([index, kind, np.log1p(sizes) / BYTES_SCALE, shares], axis=1).astype(np.float32)


def _shown(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:8])
    return shown + (f" … ({len(names)})" if len(names) > 8 else "")
