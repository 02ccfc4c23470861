"""The update of an unused PyTorch optimizer, in the terms of the parameter servers. Other settings are refused."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, cast

import torch

from ..errors import ModelRefused
from ..optimizers import (
    REMEDY,
    SGD,
    Adagrad,
    Adam,
    AdamW,
    Optimizer,
    RMSprop,
    Update,
    made,
    refuse_options,
)
from .private import has_step_hooks

_ONLY: dict[str, Any] = {
    "maximize": False, "amsgrad": False, "centered": False, "dampening": 0, "lr_decay": 0
}  # fmt: skip

_RULES: dict[str, Callable[[float, dict[str, Any]], Optimizer]] = {
    "SGD": lambda rate, c: SGD(rate, float(c["momentum"]), c["nesterov"]),
    "Adagrad": lambda rate, c: Adagrad(rate, float(c["initial_accumulator_value"]), 0.0, c["eps"]),
    "Adam": lambda rate, c: Adam(rate, c["betas"][0], c["betas"][1], c["eps"], True),
    "AdamW": lambda rate, c: AdamW(
        rate, c["betas"][0], c["betas"][1], c["eps"], True, weight_decay=float(c["weight_decay"])
    ),
    "RMSprop": lambda rate, c: RMSprop(rate, c["alpha"], float(c["momentum"]), 0.0, c["eps"]),
    "SparseAdam": lambda rate, c: Adam(rate, c["betas"][0], c["betas"][1], c["eps"], step_samples=0),
}


def made_of(given: Any, learning_rate: float) -> Any:
    """Return a PyTorch optimizer itself, or one of its class (with the specification's rate), or of a function that
    makes one from parameters, such as functools.partial(torch.optim.Adam, lr=0.01).
    """
    if isinstance(given, torch.optim.Optimizer):
        return given
    if not callable(given):
        raise ModelRefused(f"optimizer = {given!r} is neither a name nor a PyTorch optimizer: {REMEDY}")
    parameters = [torch.nn.Parameter(torch.zeros(1))]
    make = cast("Callable[..., Any]", given)
    try:
        return make(parameters, lr=learning_rate) if inspect.isclass(given) else make(parameters)
    except Exception as error:
        raise ModelRefused(f"optimizer = {given!r} failed: {type(error).__name__}: {error}") from error


def from_torch(given: Any, learning_rate: float) -> Update:
    """Return the update of an unused PyTorch optimizer, or of what `made_of` makes one of. Raises ModelRefused."""
    origin = "the rate is model.learning_rate, which a class of optimizers has" if inspect.isclass(given) else ""
    given = made_of(given, learning_rate)
    name, module = type(given).__name__, type(given).__module__
    if name not in _RULES or not module.startswith("torch.optim."):
        raise ModelRefused(f"optimizer = {module}.{name} is not supported: {REMEDY}")
    groups = [{key: value for key, value in group.items() if key != "params"} for group in given.param_groups]
    if any(group != groups[0] for group in groups):
        raise ModelRefused(f"{name} has groups with options of their own: all parameters have one update rule")
    options: dict[str, Any] = groups[0]
    steps = [state.get("step") for state in given.state.values()]  # Adagrad has slots from the beginning
    if any(step is None or float(step) > 0 for step in steps) or "initial_lr" in options:
        raise ModelRefused(
            f"the {name} object has been used already, or has a scheduler: slots live on the parameter servers; give a "
            "fresh one, and a schedule as in stretto.optimizers.Adam(Cosine(0.01, over_samples=10**6))"
        )
    if has_step_hooks(given):
        raise ModelRefused(f"the {name} object has hooks on its steps, which no server calls: leave them out")
    decoupled = bool(options.get("decoupled_weight_decay"))
    refuse_options(name, options, _ONLY if decoupled else _ONLY | {"weight_decay": 0})
    rule = _RULES["AdamW" if decoupled else name]
    return Update(made(name, lambda: rule(float(options["lr"]), options)), origin=origin)
