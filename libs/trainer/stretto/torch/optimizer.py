"""The updates of unused PyTorch optimizers, in the terms of the parameter servers. Other settings are refused."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import torch

from ..errors import ModelRefused
from ..optimizers import (
    DENSE,
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
    if not _has_one_rule(given):
        raise ModelRefused(
            f"{type(given).__name__} has groups with options of their own, and nothing says whose they are: give the "
            "optimizer itself, or a function optimizer(model) that makes it"
        )
    return _update(given, _groups_of(given)[0], origin)


def divided(given: Any, model: Any, tables: Mapping[int, str]) -> Any:
    """Return a rule for each table and one for the dense parameters where a task gives several optimizers, groups with
    options of their own, or a function of the module that makes them; what else it gives as it is.

    tables: the tables of the module by the ids of their parameters. Raises ModelRefused.
    """
    is_made = _takes_module(given)
    if is_made:
        try:
            given = given(model)
        except Exception as error:
            raise ModelRefused(f"optimizer({type(model).__name__}) failed: {type(error).__name__}: {error}") from error
    if isinstance(given, (list, tuple)):
        optimizers = [*cast("list[Any]", given)]
    elif isinstance(given, torch.optim.Optimizer) and (is_made or not _has_one_rule(given)):
        optimizers = [given]
    else:
        return given
    return _by_parameter(optimizers, model, tables)


def _takes_module(given: Any) -> bool:
    """Return whether a function makes optimizers of a module, by the name of its parameter; others take parameters."""
    if inspect.isclass(given) or not callable(given):
        return False
    try:
        return [*inspect.signature(given).parameters] in (["model"], ["module"])
    except (TypeError, ValueError):  # a builtin
        return False


def _by_parameter(optimizers: list[Any], model: Any, tables: Mapping[int, str]) -> Any:
    """Return the rules of tables by name, and that of all dense parameters; this alone for a module without tables."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    updates: dict[int, Update] = {}
    for parameter, update in _members(optimizers):
        if parameter in updates:
            raise ModelRefused(f"the parameter {names.get(parameter, '')} is in two optimizers: leave one of them")
        updates[parameter] = update
    found: dict[str, tuple[str, Update]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        update = updates.get(id(parameter))
        if update is None:
            raise ModelRefused(
                f"the parameter {name} is in no group of the optimizers: add it, or freeze it by "
                "requires_grad_(False); a function optimizer(model) of the task gets the module that build() returned, "
                "and makes them of its parameters"
            )
        first, other = found.setdefault(tables.get(id(parameter), DENSE), (name, update))
        if other.told() != update.told():
            raise ModelRefused(
                f"the parameters {first} and {name} have the rules {other.told()} and {update.told()}: parameter "
                "servers have one rule for each table, and one for all other parameters; put these into one group"
            )
    rules = {part: update for part, (_, update) in found.items()}
    return rules if tables else rules.get(DENSE, rules)


def _members(optimizers: list[Any]) -> Iterator[tuple[int, Update]]:
    """Yield the id of each parameter with its rule."""
    for optimizer in optimizers:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ModelRefused(
                f"optimizer has {optimizer!r} in a list, which says not of which parameters: give unused optimizers of "
                f"PyTorch there, or a mapping by table and {DENSE!r}"
            )
        for group, options in zip(optimizer.param_groups, _groups_of(optimizer), strict=True):
            update = _update(optimizer, options, "")
            yield from ((id(parameter), update) for parameter in group["params"])


def _groups_of(optimizer: Any) -> list[dict[str, Any]]:
    """Return the options of each group of an optimizer."""
    left_out = ("params", "param_names")
    return [{key: each for key, each in group.items() if key not in left_out} for group in optimizer.param_groups]


def _has_one_rule(optimizer: Any) -> bool:
    groups = _groups_of(optimizer)
    return all(group == groups[0] for group in groups)


def _update(given: Any, options: dict[str, Any], origin: str) -> Update:
    """Return the update of an unused optimizer for parameters with these options."""
    name, module = type(given).__name__, type(given).__module__
    if name not in _RULES or not module.startswith("torch.optim."):
        raise ModelRefused(f"optimizer = {module}.{name} is not supported: {REMEDY}")
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
    kind: Any = type(given)
    taken = inspect.signature(kind).parameters
    stated = {option: value for option, value in options.items() if option in taken}
    # an optimizer of sparse gradients takes no dense parameters
    fresh = None if name == "SparseAdam" else functools.partial(kind, **stated)
    return Update(made(name, lambda: rule(float(options["lr"]), options)), origin=origin, given=fresh)
