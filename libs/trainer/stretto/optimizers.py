"""The update that the parameter servers apply: from the specification, a name, or an unused Keras optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from stretto_parameters import InputRefused
from stretto_parameters.optimizers import SGD, Adagrad, Adam, AdamW, Ftrl, Optimizer, RMSprop

from .errors import ModelRefused

_NAMED: dict[str, Callable[[float], Optimizer]] = {
    "sgd": SGD, "adagrad": Adagrad, "adam": Adam, "adamw": AdamW, "rmsprop": RMSprop, "ftrl": Ftrl,
}  # fmt: skip
SUPPORTED = tuple(_NAMED)

_DEFAULTS: dict[str, Any] = {
    "weight_decay": None, "clipnorm": None, "global_clipnorm": None, "clipvalue": None, "use_ema": False,
    "loss_scale_factor": None, "gradient_accumulation_steps": None, "amsgrad": False, "centered": False,
    "learning_rate_power": -0.5,
}  # fmt: skip
_REMEDY = f"use {', '.join(SUPPORTED)}, or a fresh Keras optimizer of these with a constant learning rate"

_FROM_KERAS: dict[str, Callable[[float, dict[str, Any]], Optimizer]] = {
    "SGD": lambda rate, c: SGD(rate, c["momentum"], c["nesterov"]),
    "Adagrad": lambda rate, c: Adagrad(rate, c["initial_accumulator_value"], c["epsilon"]),
    "Adam": lambda rate, c: Adam(rate, c["beta_1"], c["beta_2"], c["epsilon"]),
    "AdamW": lambda rate, c: AdamW(rate, c["beta_1"], c["beta_2"], c["epsilon"], c["weight_decay"]),
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


def resolve(given: object, kind: str, learning_rate: float) -> Optimizer:
    """Return the optimizer of a model: ``given`` (a name, a Keras optimizer, or None), else the specification's.

    Raises ModelRefused for an optimizer that the parameter servers would not apply exactly.
    """
    if given is None:
        return _named(kind, learning_rate)
    if isinstance(given, str):
        return _named(given.lower(), learning_rate)
    return _from_keras(given)


def _named(kind: str, learning_rate: float) -> Optimizer:
    if kind not in _NAMED:
        raise ModelRefused(f"optimizer = {kind!r} is not supported: {_REMEDY}")
    return _made(kind, lambda: _NAMED[kind](learning_rate))


def _made(name: str, make: Callable[[], Optimizer]) -> Optimizer:
    try:
        return make()
    except InputRefused as error:
        raise ModelRefused(f"optimizer = {name}: {error}") from error


def _from_keras(given: object) -> Optimizer:
    name = type(given).__name__
    if not hasattr(given, "get_config"):
        raise ModelRefused(f"optimizer = {given!r} is neither a name nor a Keras optimizer: {_REMEDY}")
    if name not in _FROM_KERAS:
        raise ModelRefused(f"optimizer = {name} is not supported: {_REMEDY}")
    keras_optimizer = cast("Any", given)
    if getattr(keras_optimizer, "built", False) or int(keras_optimizer.iterations) > 0:
        raise ModelRefused(
            f"the {name} object has been used already ({int(keras_optimizer.iterations)} steps), but slots live on the "
            "parameter servers: give a fresh one, or only its name"
        )
    config: dict[str, Any] = keras_optimizer.get_config()
    rate = config["learning_rate"]
    if not isinstance(rate, (int, float)):
        raise ModelRefused(f"the learning rate of {name} is a schedule ({rate!r}); give a constant one")
    for option, default in _DEFAULTS.items():
        value = config.get(option, default)
        accepted = option == "weight_decay" and (name == "AdamW" or not value)
        if value != default and not accepted:
            raise ModelRefused(
                f"{name}({option}={value!r}) is not supported on the parameter servers: leave {option} out"
            )
    return _made(name, lambda: _FROM_KERAS[name](float(rate), config))
