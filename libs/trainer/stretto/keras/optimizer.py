"""The update of a fresh Keras optimizer, in terms of the parameter servers. A setting without a place is refused."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from stretto_parameters import InputRefused

from ..errors import ModelRefused
from ..optimizers import (
    REMEDY,
    SGD,
    Adagrad,
    Adam,
    AdamW,
    Clipping,
    Cosine,
    Exponential,
    Ftrl,
    Optimizer,
    Rate,
    RMSprop,
    Update,
    Warmup,
    made,
    refuse_options,
)
from .private import excludes_from_decay

_ONLY: dict[str, Any] = {
    "use_ema": False, "loss_scale_factor": None, "gradient_accumulation_steps": None, "amsgrad": False,
    "centered": False, "learning_rate_power": -0.5,
}  # fmt: skip

_RULES: dict[str, Callable[[Any, dict[str, Any]], Optimizer]] = {
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
        raise ModelRefused(f"optimizer = {given!r} is neither a name nor a Keras optimizer: {REMEDY}")
    if name not in _RULES or not type(given).__module__.startswith("keras."):
        raise ModelRefused(f"optimizer = {name} is not supported: {REMEDY}")
    if getattr(given, "built", False) or int(given.iterations) > 0:
        raise ModelRefused(
            f"the {name} object has been used already ({int(given.iterations)} steps), but slots live on the "
            "parameter servers: give a fresh one, or only its name"
        )
    if own := [each for each in vars(given) if callable(getattr(type(given), each, None))]:
        raise ModelRefused(f"the {name} object has its own {', '.join(own)}(), which no server calls: leave it out")
    config: dict[str, Any] = given.get_config()
    refuse_options(name, config, _ONLY if name == "AdamW" else _ONLY | {"weight_decay": None})
    if excludes_from_decay(given):
        raise ModelRefused(f"{name}.exclude_from_weight_decay(…) is not supported: all parameters have one update rule")
    try:
        rate = _rate(name, config["learning_rate"], batch_size)
        clipping = Clipping(config.get("clipvalue"), config.get("clipnorm"), config.get("global_clipnorm"))
    except InputRefused as error:
        raise ModelRefused(f"optimizer = {name}: {error}") from error
    return Update(made(name, lambda: _RULES[name](rate, config)), clipping, given=given)


def _rate(name: str, given: Any, batch_size: int) -> Rate:
    """Return a learning rate by samples trained."""
    if isinstance(given, (int, float)):
        return float(str(np.float32(given)))  # Keras keeps it as float32: 0.001, not 0.0010000000474974513
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
