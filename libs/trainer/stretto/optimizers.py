"""The updates that the parameter servers apply: from the specification, names, or unused Keras or PyTorch optimizers.

Their formulas are the store's (libs/parameters), term by term; a setting without a place there is refused. A schedule
counts samples trained: one step of Keras is one batch, so that n of its steps are n · batch_size samples.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
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
    "RowWiseAdagrad", "Update", "Updates", "Warmup", "resolve",
]  # fmt: skip

F32 = NDArray[np.float32]
DENSE, ROWS = "dense", "rows"
"""Keys of a mapping of rules: of all dense parameters, and of the tables without a rule of their own."""
Rate = float | Constant | Exponential | Cosine | Warmup
REMEDY = f"use {', '.join(OPTIMIZERS)}, an optimizer of stretto.optimizers, or a fresh one of Keras or PyTorch"
_TOLD_MAX = 20
"""Most tables that a refusal lists."""


@dataclass(frozen=True, slots=True)
class Update:
    """An update rule, and the limits of the gradients that workers push for the parameters that have it."""

    optimizer: Optimizer
    clipping: Clipping = field(default_factory=Clipping)
    origin: str = ""
    """Where the rate comes from, if not from the optimizer itself."""
    given: Any = field(default=None, compare=False, repr=False)
    """An unused optimizer of Keras, or a function that makes one of PyTorch from parameters; None: neither has it."""

    def told(self) -> str:
        """Return the rule in a line: its name, its rate and all of its settings."""
        limits = {name: limit for name, limit in asdict(self.clipping).items() if limit is not None}
        clipped = [f"; {name.replace('_', ' ')} of gradients at most {limit:g}" for name, limit in limits.items()]
        return f"{self.optimizer!r}{''.join(clipped)}{'; ' if self.origin else ''}{self.origin}"


@dataclass(frozen=True, slots=True)
class Updates:
    """The update rules of a model, and by their numbers which parameters have which.

    dense: the rule of all dense parameters, None if none was given. rows: of the tables that have their own, by name;
    others: of all other tables, None if there are none. global_norm: the largest norm of the gradients of several rules
    together; limits of a rule are of its own gradients alone.
    """

    rules: tuple[Update, ...]
    dense: int | None = 0
    rows: Mapping[str, int] = field(default_factory=dict[str, int])
    others: int | None = 0
    global_norm: float | None = None

    def rule_of(self, table: str) -> int:
        """Return the number of a table's rule."""
        return self.rows[table] if self.others is None else self.rows.get(table, self.others)

    @property
    def of_dense(self) -> int:
        """The number of the rule of the dense vector, which is empty if `dense` is None."""
        return self.dense or 0

    def limits_of(self, rule: int) -> Clipping:
        """Return the limits of the gradients of a rule, also where it shares them with all others."""
        return self.rules[rule].clipping if self.global_norm is None else Clipping(global_norm=self.global_norm)

    @property
    def limits_norms(self) -> bool:
        """True if the norm of any gradients has a limit."""
        limits = [self.limits_of(rule) for rule in range(len(self.rules))]
        return any(each.norm is not None or each.global_norm is not None for each in limits)

    def within(self, rule: int, gradient: F32) -> F32:
        """Return a gradient whose values are within the limit of its rule."""
        limits = self.rules[rule].clipping
        return gradient if limits.value is None else limits.apply([gradient])[0]

    def scales(self, rules: Sequence[int], gradients: Sequence[F32], squares: Sequence[F32 | None]) -> list[np.float32]:
        """Return what limits of norms multiply each gradient by. rules: of each gradient; squares: see `Clipping`."""
        if self.global_norm is not None:
            return self.limits_of(0).scales(gradients, squares)
        found = [np.float32(1)] * len(rules)
        for number, rule in enumerate(self.rules):
            mine = [place for place, each in enumerate(rules) if each == number and rule.clipping]
            scales = rule.clipping.scales([gradients[place] for place in mine], [squares[place] for place in mine])
            for place, scale in zip(mine, scales, strict=True):
                found[place] = scale
        return found

    def told(self) -> str:
        """Return the rules in a line; a single one as `Update.told`."""
        if len(self.rules) == 1:
            return self.rules[0].told()
        parts = [
            f"rows of {', '.join(name for name, each in self.rows.items() if each == rule)}: {self.rules[rule].told()}"
            for rule in dict.fromkeys(self.rows.values())
        ]
        if self.others is not None:
            parts.append(f"{'all other rows' if self.rows else 'rows'}: {self.rules[self.others].told()}")
        if self.dense is not None:
            parts.append(f"dense parameters: {self.rules[self.dense].told()}")
        if self.global_norm is not None:
            parts.append(f"global norm of all gradients together at most {self.global_norm:g}")
        return "; ".join(parts)


def resolve(
    given: object,
    foreign: Callable[[Any], Update],
    tables: Sequence[str],
    *,
    clipping: object,
    kind: str | Mapping[str, object],
    learning_rate: float,
    batch_size: int,
) -> Updates:
    """Return the updates of a model with these tables.

    given: a name, an optimizer of the store, an `Update`, one that `foreign` understands, a mapping of these by table
    (or `DENSE`, `ROWS`), or None for `kind` (the specification's). clipping: the task's own, or None. Raises
    ModelRefused for what the parameter servers would not apply exactly.
    """
    stated = kind if given is None else given
    is_mapping = isinstance(stated, Mapping)
    parts = cast("Mapping[str, object]", stated) if is_mapping else {DENSE: stated, ROWS: stated}
    _check_parts(parts, tables)
    rules: list[Update] = []
    numbers: dict[str, int] = {}
    for name, part in parts.items():
        numbered = (numbers[other] for other in numbers if parts[other] is part)
        if (number := next(numbered, None)) is None:
            try:
                number = _number(rules, _read(part, foreign, learning_rate, batch_size))
            except ModelRefused as error:
                if not is_mapping:
                    raise
                raise ModelRefused(f"optimizer[{name!r}]: {error}") from error
        numbers[name] = number
    return _limited(_divided(rules, numbers, tables), clipping)


def _check_parts(parts: Mapping[str, object], tables: Sequence[str]) -> None:
    """Raise ModelRefused for a rule of a table that there is not, and for a table without a rule."""
    known = [*dict.fromkeys((DENSE, ROWS, *tables))]
    if unknown := [name for name in parts if name not in known]:
        near = difflib.get_close_matches(str(unknown[0]), known, n=1)
        listed = f"{', '.join(tables[:_TOLD_MAX])}{', …' if len(tables) > _TOLD_MAX else ''}" or "there is none"
        raise ModelRefused(
            f"optimizer has a rule for {unknown[0]!r}, which is no table on the parameter servers"
            f"{f'; did you mean {near[0]!r}?' if near else ''}: give {DENSE!r}, {ROWS!r}, or a table ({listed})"
        )
    if ROWS not in parts and (left := [name for name in tables if name not in parts]):
        raise ModelRefused(
            f"optimizer has rules for {', '.join(map(repr, parts)) or 'nothing'}, not for the rows of {left[0]!r}: "
            f"add {ROWS!r}, for all tables without one of their own"
        )


def _read(given: object, foreign: Callable[[Any], Update], learning_rate: float, batch_size: int) -> Update:
    if isinstance(given, str):
        update = Update(_named(given.lower(), learning_rate), origin="the rate is model.learning_rate")
    elif isinstance(given, Update):
        update = given
    else:
        update = Update(given) if isinstance(given, Optimizer) else foreign(given)
    in_steps = update.optimizer.in_steps_of(batch_size)  # rows make every step, as those of Keras and PyTorch
    return replace(update, optimizer=in_steps)


def _number(rules: list[Update], update: Update) -> int:
    """Return the number of a rule, which is added unless an equal one is there; one with a global norm has its own."""
    if update.clipping.global_norm is None:
        for number, each in enumerate(rules):
            if each.told() == update.told():
                return number
    rules.append(update)
    return len(rules) - 1


def _divided(rules: Sequence[Update], numbers: Mapping[str, int], tables: Sequence[str]) -> Updates:
    """Return which parameters have which rule. numbers: of rules by what they are for; a rule of nothing goes out."""
    own = {name: numbers[name] for name in tables if name in numbers}
    others = numbers[ROWS] if len(own) < len(tables) else None
    if others is None and len(set(own.values())) == 1:
        others = next(iter(own.values()))
    own = {name: number for name, number in own.items() if number != others}
    dense = numbers.get(DENSE)
    used = [*dict.fromkeys(each for each in (*own.values(), others, dense) if each is not None)] or [0]
    new = {old: number for number, old in enumerate(used)}
    return Updates(
        tuple(rules[old] for old in used),
        None if dense is None else new[dense],
        {name: new[old] for name, old in own.items()},
        None if others is None else new[others],
    )


def _limited(updates: Updates, clipping: object) -> Updates:
    """Return updates within the limits of the task."""
    if clipping is None:
        return updates
    if not isinstance(clipping, Clipping):
        raise ModelRefused(f"clipping = {clipping!r}: give stretto.optimizers.Clipping(value=, norm= or global_norm=)")
    if own := [each.clipping for each in updates.rules if each.clipping]:
        raise ModelRefused(f"clipping = {clipping} beside {own[0]} of the optimizer: give one of them")
    if clipping.global_norm is not None and len(updates.rules) > 1:
        return replace(updates, global_norm=clipping.global_norm)
    return replace(updates, rules=tuple(replace(each, clipping=clipping) for each in updates.rules))


def check_dense(updates: Updates, parameters: Iterable[str]) -> None:
    """Raise ModelRefused for dense parameters without a rule. parameters: their names."""
    if updates.dense is None and (name := next(iter(parameters), None)) is not None:
        raise ModelRefused(f"optimizer has no rule for the dense parameters, such as {name}: add {DENSE!r}")


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
