"""The update that the parameter servers apply: from the specification, a name, or an unused Keras or PyTorch optimizer.

Their formulas are the store's (libs/parameters), term by term; a setting without a place there is refused. A schedule
counts samples trained: one step of Keras is one batch, so that n of its steps are n · batch_size samples.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from stretto_parameters import Clipping, InputRefused
from stretto_parameters.optimizers import (
    OPTIMIZERS,
    SGD,
    Adagrad,
    Adam,
    AdamW,
    Ftrl,
    Optimizer,
    RMSprop,
    RowWiseAdagrad,
)
from stretto_parameters.schedules import Constant, Cosine, Exponential, Warmup

from .errors import ModelRefused

__all__ = [
    "SGD", "Adagrad", "Adam", "AdamW", "Clipping", "Constant", "Cosine", "Exponential", "Ftrl", "RMSprop",
    "RowWiseAdagrad", "Update", "Warmup", "from_keras", "from_torch", "resolve",
]  # fmt: skip

Rate = float | Constant | Exponential | Cosine | Warmup
_REMEDY = f"use {', '.join(OPTIMIZERS)}, an optimizer of stretto.optimizers, or a fresh one of Keras or PyTorch"


@dataclass(frozen=True, slots=True)
class Update:
    """The update rule of all parameters, and the limits of the gradients that workers push."""

    optimizer: Optimizer
    clipping: Clipping = field(default_factory=Clipping)


def resolve(
    given: object,
    foreign: Callable[[Any], Update],
    *,
    clipping: object,
    kind: str,
    learning_rate: float,
    batch_size: int,
) -> Update:
    """Return the update of a model.

    given: a name, an optimizer of the store, one that `foreign` understands, or None for `kind` (the specification's).
    clipping: the task's own, or None. Raises ModelRefused for what the parameter servers would not apply exactly.
    """
    name = kind if given is None else given
    if isinstance(name, str):
        update = Update(_named(name.lower(), learning_rate))
    else:
        update = Update(name) if isinstance(name, Optimizer) else foreign(name)
    in_steps = update.optimizer.in_steps_of(batch_size)  # rows make every step, as those of Keras and PyTorch
    update = Update(in_steps, update.clipping)
    if clipping is None:
        return update
    if not isinstance(clipping, Clipping):
        raise ModelRefused(f"clipping = {clipping!r}: give stretto.optimizers.Clipping(value=, norm= or global_norm=)")
    if update.clipping:
        raise ModelRefused(f"clipping = {clipping} beside {update.clipping} of the optimizer: give one of them")
    return Update(update.optimizer, clipping)


def _named(kind: str, learning_rate: float) -> Optimizer:
    if kind not in OPTIMIZERS:
        raise ModelRefused(f"optimizer = {kind!r} is not supported: {_REMEDY}")
    return _made(kind, lambda: OPTIMIZERS[kind](learning_rate))


def _made(name: str, make: Callable[[], Optimizer]) -> Optimizer:
    try:
        return make()
    except InputRefused as error:
        raise ModelRefused(f"optimizer = {name}: {error}") from error


def _refuse_options(name: str, options: Mapping[str, Any], only: Mapping[str, Any]) -> None:
    """Raise ModelRefused for an option that has another value than the one that the servers apply."""
    for option, value in only.items():
        if option in options and options[option] != value:
            raise ModelRefused(
                f"{name}({option}={options[option]!r}) is not supported on the parameter servers: leave {option} out"
            )


# --- Keras --------------------------------------------------------------------------------------------------

_KERAS_ONLY: dict[str, Any] = {
    "use_ema": False, "loss_scale_factor": None, "gradient_accumulation_steps": None, "amsgrad": False,
    "centered": False, "learning_rate_power": -0.5,
}  # fmt: skip

_KERAS: dict[str, Callable[[Any, dict[str, Any]], Optimizer]] = {
    "SGD": lambda rate, c: SGD(rate, c["momentum"], c["nesterov"]),
    "Adagrad": lambda rate, c: Adagrad(rate, c["initial_accumulator_value"], c["epsilon"]),
    "Adam": lambda rate, c: Adam(rate, c["beta_1"], c["beta_2"], c["epsilon"]),
    "AdamW": lambda rate, c: AdamW(rate, c["beta_1"], c["beta_2"], c["epsilon"], weight_decay=c["weight_decay"]),
    "RMSprop": lambda rate, c: RMSprop(rate, c["rho"], c["momentum"], c["epsilon"]),
    "Ftrl": lambda rate, c: Ftrl(
        rate,
        c["initial_accumulator_value"],
        c["l1_regularization_strength"],
        c["l2_regularization_strength"],
        c["l2_shrinkage_regularization_strength"],
        c["beta"],
    ),
}


def from_keras(given: Any, batch_size: int) -> Update:
    """Return the update of a fresh Keras optimizer. Raises ModelRefused."""
    name = type(given).__name__
    if not hasattr(given, "get_config") or inspect.isclass(given):
        raise ModelRefused(f"optimizer = {given!r} is neither a name nor a Keras optimizer: {_REMEDY}")
    if name not in _KERAS or not type(given).__module__.startswith("keras."):
        raise ModelRefused(f"optimizer = {name} is not supported: {_REMEDY}")
    if getattr(given, "built", False) or int(given.iterations) > 0:
        raise ModelRefused(
            f"the {name} object has been used already ({int(given.iterations)} steps), but slots live on the "
            "parameter servers: give a fresh one, or only its name"
        )
    config: dict[str, Any] = given.get_config()
    _refuse_options(name, config, _KERAS_ONLY if name == "AdamW" else _KERAS_ONLY | {"weight_decay": None})
    if getattr(given, "_exclude_from_weight_decay", None) or getattr(given, "_exclude_from_weight_decay_pattern", None):
        raise ModelRefused(f"{name}.exclude_from_weight_decay(…) is not supported: all parameters have one update rule")
    try:
        rate = _rate_of_keras(name, config["learning_rate"], batch_size)
        clipping = Clipping(config.get("clipvalue"), config.get("clipnorm"), config.get("global_clipnorm"))
    except InputRefused as error:
        raise ModelRefused(f"optimizer = {name}: {error}") from error
    return Update(_made(name, lambda: _KERAS[name](rate, config)), clipping)


def _rate_of_keras(name: str, given: Any, batch_size: int) -> Rate:
    """Return a learning rate by samples trained."""
    if isinstance(given, (int, float)):
        return float(given)
    kind, options = "", cast("dict[str, Any]", {})
    if isinstance(given, dict) and given.get("module") == "keras.optimizers.schedules":
        kind, options = str(given["class_name"]), cast("dict[str, Any]", given["config"])

    def samples(steps: str) -> int:
        return round(options[steps] * batch_size)

    if kind == "ExponentialDecay":
        first = float(options["initial_learning_rate"])
        return Exponential(first, float(options["decay_rate"]), samples("decay_steps"), bool(options["staircase"]))
    if kind == "CosineDecay":
        first, target = float(options["initial_learning_rate"]), options["warmup_target"]
        peak = first if target is None else float(target)
        wave = Cosine(peak, samples("decay_steps"), float(options["alpha"]))
        if target is None or not options["warmup_steps"]:
            return wave
        return Warmup(wave, samples("warmup_steps"), first / peak)
    raise ModelRefused(
        f"the learning rate of {name} is {kind or repr(given)}: give a number, ExponentialDecay, or CosineDecay "
        "with or without its warm-up"
    )


# --- PyTorch ------------------------------------------------------------------------------------------------

_TORCH_ONLY: dict[str, Any] = {
    "maximize": False, "amsgrad": False, "centered": False, "dampening": 0, "lr_decay": 0
}  # fmt: skip

_TORCH: dict[str, Callable[[float, dict[str, Any]], Optimizer]] = {
    "SGD": lambda rate, c: SGD(rate, float(c["momentum"]), c["nesterov"]),
    "Adagrad": lambda rate, c: Adagrad(rate, float(c["initial_accumulator_value"]), 0.0, c["eps"]),
    "Adam": lambda rate, c: Adam(rate, c["betas"][0], c["betas"][1], c["eps"], True),
    "AdamW": lambda rate, c: AdamW(
        rate, c["betas"][0], c["betas"][1], c["eps"], True, weight_decay=float(c["weight_decay"])
    ),
    "RMSprop": lambda rate, c: RMSprop(rate, c["alpha"], float(c["momentum"]), 0.0, c["eps"]),
    "SparseAdam": lambda rate, c: Adam(rate, c["betas"][0], c["betas"][1], c["eps"], step_samples=0),
}


def from_torch(given: Any, learning_rate: float) -> Update:
    """Return the update of an unused PyTorch optimizer, of its class (with the specification's rate), or of a function
    that makes one from parameters, such as functools.partial(torch.optim.Adam, lr=0.01). Raises ModelRefused.
    """
    import torch

    if not isinstance(given, torch.optim.Optimizer):
        if not callable(given):
            raise ModelRefused(f"optimizer = {given!r} is neither a name nor a PyTorch optimizer: {_REMEDY}")
        parameters = [torch.nn.Parameter(torch.zeros(1))]
        make = cast("Callable[..., Any]", given)
        given = make(parameters, lr=learning_rate) if inspect.isclass(given) else make(parameters)
    name, module = type(given).__name__, type(given).__module__
    if name not in _TORCH or not module.startswith("torch.optim."):
        raise ModelRefused(f"optimizer = {module}.{name} is not supported: {_REMEDY}")
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
    decoupled = bool(options.get("decoupled_weight_decay"))
    _refuse_options(name, options, _TORCH_ONLY if decoupled else _TORCH_ONLY | {"weight_decay": 0})
    rule = _TORCH["AdamW" if decoupled else name]
    return Update(_made(name, lambda: rule(float(options["lr"]), options)))
