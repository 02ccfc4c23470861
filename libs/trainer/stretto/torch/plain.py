"""Steps of a PyTorch module by PyTorch alone, on a batch, with which the steps of Stretto are compared."""

from __future__ import annotations

import contextlib
import inspect
import random
from collections.abc import Callable, Generator, Mapping
from typing import Any

import numpy as np
import torch

from ..engine.layout import F32
from ..model.one_step import Plain, Reference, Stepped
from ..optimizers import Clipping

_clip = torch.nn.utils


class PlainTorch(Plain):
    """A copy of the user's module with parameters of its own, as a loop of `backward` and `step` trains it."""

    def __init__(
        self,
        loss: Callable[[], Any],
        trained: Mapping[str, Any],
        states: Callable[[], Mapping[str, Any]],
        rule: Any | Reference,
        clipping: Clipping,
    ) -> None:
        """Take a module. loss: calls it. trained: parameters by name; states: returns buffers by name.

        rule: an optimizer of PyTorch over all parameters, or the reference of the servers' own.
        """
        self.largest: dict[str, F32] = {}
        self._loss = loss
        self._trained = trained
        self._states = states
        self._rule = rule
        self._clipping = clipping

    def step(self) -> Stepped:
        """Train the batch once."""
        loss = self._loss()
        for each in self._trained.values():
            each.grad = None
        loss.backward()
        gradients = {name: _array(each) for name, each in self._trained.items()}
        for name, gradient in gradients.items():
            self.saw(name, gradient)
        if isinstance(self._rule, Reference):
            weights = {name: each.detach().numpy() for name, each in self._trained.items()}
            with torch.no_grad():
                for name, value in self._rule.apply(weights, gradients).items():
                    self._trained[name].copy_(torch.from_numpy(value))
        else:
            _limit(self._clipping, [*self._trained.values()])
            self._rule.step()
        found = {**self._trained, **self._states()}
        return Stepped(float(loss.detach()), {name: each.detach().cpu().numpy().copy() for name, each in found.items()})


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


def fresh(given: Any, made: Any, parameters: list[Any]) -> Any:
    """Return an unused optimizer of parameters as a task gave it: an object, a class, or a function that makes one.

    made: an unused one of those.
    """
    if not isinstance(given, torch.optim.Optimizer) and not inspect.isclass(given):
        return given(parameters)
    kind: Any = type(made)
    taken = inspect.signature(kind).parameters
    return kind(
        parameters,
        **{name: value for name, value in made.param_groups[0].items() if name in taken and name != "params"},
    )


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
