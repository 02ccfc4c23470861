"""The update that the parameter servers apply: from the specification, a name, or an unused Keras optimizer."""

from __future__ import annotations

from typing import Any, cast

from .engine.layout import Optimizer
from .errors import ModelRefused

SUPPORTED = ("adagrad", "adam")

_DEFAULTS: dict[str, Any] = {
    "weight_decay": None, "clipnorm": None, "global_clipnorm": None, "clipvalue": None, "use_ema": False,
    "loss_scale_factor": None, "gradient_accumulation_steps": None, "amsgrad": False,
}  # fmt: skip
_REMEDY = "use 'adagrad', 'adam', or keras.optimizers.Adagrad / Adam with a constant learning rate"


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
    if kind not in SUPPORTED:
        raise ModelRefused(f"optimizer = {kind!r} is not supported: {_REMEDY}")
    return Optimizer(kind, learning_rate)  # type: ignore[arg-type]


def _from_keras(given: object) -> Optimizer:
    name = type(given).__name__
    if not hasattr(given, "get_config"):
        raise ModelRefused(f"optimizer = {given!r} is neither a name nor a Keras optimizer: {_REMEDY}")
    if name.lower() not in SUPPORTED:
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
        if value != default and not (option == "weight_decay" and not value):
            raise ModelRefused(
                f"{name}({option}={value!r}) is not supported on the parameter servers: leave {option} out"
            )
    if name.lower() == "adagrad":
        accumulator = float(config["initial_accumulator_value"])
        return Optimizer("adagrad", float(rate), initial_accumulator=accumulator, epsilon=float(config["epsilon"]))
    return Optimizer(
        "adam",
        float(rate),
        beta_1=float(config["beta_1"]),
        beta_2=float(config["beta_2"]),
        epsilon=float(config["epsilon"]),
    )
