"""Steps of a PyTorch module by PyTorch alone, on a batch, with which the steps of Stretto are compared."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ..engine.layout import F32
from ..model.one_step import Plain, Reference, Ruled, Stepped
from ..optimizers import Clipping

_clip = torch.nn.utils


class PlainTorch(Plain):
    """A copy of the user's module with parameters of its own, as a loop of `backward` and `step` trains it."""

    def __init__(
        self,
        loss: Callable[[], Any],
        trained: Mapping[str, Any],
        states: Callable[[], Mapping[str, Any]],
        rules: Sequence[Ruled],
        together: Clipping,
    ) -> None:
        """Take a module. loss: calls it; states: returns buffers by name; trained, rules, together: as in `Plain`."""
        super().__init__(trained, rules, together)
        self._loss = loss
        self._states = states

    def step(self) -> Stepped:
        """Train the batch once."""
        loss = self._loss()
        for each in self._trained.values():
            each.grad = None
        loss.backward()
        for name, each in self._trained.items():
            self.saw(name, _array(each))
        _limit(self._together, [*self._trained.values()])
        for each in self._rules:
            self._update(each)
        found = {**self._trained, **self._states()}
        return Stepped(float(loss.detach()), {name: each.detach().cpu().numpy().copy() for name, each in found.items()})

    def _update(self, ruled: Ruled) -> None:
        parameters = {name: self._trained[name] for name in ruled.names}
        if not isinstance(ruled.rule, Reference):
            _limit(ruled.limits, [*parameters.values()])
            ruled.rule.step()
            return
        weights = {name: each.detach().numpy() for name, each in parameters.items()}
        found = ruled.rule.apply(weights, {name: _array(each) for name, each in parameters.items()})
        with torch.no_grad():
            for name, value in found.items():
                parameters[name].copy_(torch.from_numpy(value))


def _array(parameter: Any) -> F32:
    gradient = parameter.grad
    if gradient is None:
        return np.zeros(tuple(parameter.shape), np.float32)
    return (gradient.to_dense() if gradient.is_sparse else gradient).numpy()


def _limit(clipping: Clipping, parameters: list[Any]) -> None:
    """Clip gradients in place, as PyTorch does."""
    if clipping.value is not None:
        _clip.clip_grad_value_(parameters, clipping.value)
    if clipping.norm is not None:
        for each in parameters:
            _clip.clip_grad_norm_([each], clipping.norm)
    if clipping.global_norm is not None:
        _clip.clip_grad_norm_(parameters, clipping.global_norm)


@contextlib.contextmanager
def same_draws() -> Generator[None]:
    """Let what draws at random within the block draw the same in each such block, and go on afterwards as before it."""
    own, of_numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        try:
            yield
        finally:
            random.setstate(own)
            np.random.set_state(of_numpy)
