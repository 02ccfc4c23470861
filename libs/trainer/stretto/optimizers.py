"""The update that the parameter servers apply: from the specification, a name, or an unused Keras or PyTorch optimizer.

Their formulas are the store's (libs/parameters), term by term; a setting without a place there is refused. A schedule
counts samples trained: one step of Keras is one batch, so that n of its steps are n · batch_size samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

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
from stretto_parameters.optimizers.schedules import Constant, Cosine, Exponential, Warmup

from .errors import ModelRefused

__all__ = [
    "SGD", "Adagrad", "Adam", "AdamW", "Clipping", "Constant", "Cosine", "Exponential", "Ftrl", "RMSprop", "Rate",
    "RowWiseAdagrad", "Update", "Warmup", "resolve",
]  # fmt: skip

Rate = float | Constant | Exponential | Cosine | Warmup
REMEDY = f"use {', '.join(OPTIMIZERS)}, an optimizer of stretto.optimizers, or a fresh one of Keras or PyTorch"


@dataclass(frozen=True, slots=True)
class Update:
    """The update rule of all parameters, and the limits of the gradients that workers push."""

    optimizer: Optimizer
    clipping: Clipping = field(default_factory=Clipping)
    origin: str = ""
    """Where the rate comes from, if not from the optimizer itself."""

    def told(self) -> str:
        """Return the rule in a line: its name, its rate and all of its settings."""
        limits = {name: limit for name, limit in asdict(self.clipping).items() if limit is not None}
        clipped = [f"; {name.replace('_', ' ')} of gradients at most {limit:g}" for name, limit in limits.items()]
        return f"{self.optimizer!r}{''.join(clipped)}{'; ' if self.origin else ''}{self.origin}"


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
        update = Update(_named(name.lower(), learning_rate), origin="the rate is model.learning_rate")
    else:
        update = Update(name) if isinstance(name, Optimizer) else foreign(name)
    in_steps = update.optimizer.in_steps_of(batch_size)  # rows make every step, as those of Keras and PyTorch
    update = replace(update, optimizer=in_steps)
    if clipping is None:
        return update
    if not isinstance(clipping, Clipping):
        raise ModelRefused(f"clipping = {clipping!r}: give stretto.optimizers.Clipping(value=, norm= or global_norm=)")
    if update.clipping:
        raise ModelRefused(f"clipping = {clipping} beside {update.clipping} of the optimizer: give one of them")
    return replace(update, clipping=clipping)


def _named(kind: str, learning_rate: float) -> Optimizer:
    if kind not in OPTIMIZERS:
        raise ModelRefused(f"optimizer = {kind!r} is not supported: {REMEDY}")
    return made(kind, lambda: OPTIMIZERS[kind](learning_rate))


def made(name: str, make: Callable[[], Optimizer]) -> Optimizer:
    try:
        return make()
    except InputRefused as error:
        raise ModelRefused(f"optimizer = {name}: {error}") from error


def refuse_options(name: str, options: Mapping[str, Any], only: Mapping[str, Any]) -> None:
    """Raise ModelRefused for an option with another value than the servers apply."""
    for option, value in only.items():
        if option in options and options[option] != value:
            raise ModelRefused(
                f"{name}({option}={options[option]!r}) is not supported on the parameter servers: leave {option} out"
            )
