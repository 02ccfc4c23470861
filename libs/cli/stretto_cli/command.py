"""How a command is declared: its place in the help, its examples, and the options that it shares with others."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from typing import Any, TypeVar, get_type_hints

import typer

from .options import GatewayOptions, example

_Function = TypeVar("_Function", bound=Callable[..., None])
_DECLARED: dict[str, Callable[[typer.Typer], object]] = {}
"""Function that adds a module's command, or group of commands, by the module's name."""


def register(module: str, app: typer.Typer) -> None:
    """Add the command, or the group of commands, that a module declares."""
    _DECLARED[module](app)


def command(panel: str, *examples: str, name: str | None = None) -> Callable[[_Function], _Function]:
    """Declare the command of a module, in a panel of the help. Default name: the function's."""

    def declared(function: _Function) -> _Function:
        _DECLARED[function.__module__] = lambda app: app.command(
            name, rich_help_panel=panel, epilog=example(*examples)
        )(_with_options(function))
        return function

    return declared


class CommandGroup:
    """A group of commands, declared by a module in a panel of the help."""

    def __init__(self, module: str, name: str, panel: str, text: str) -> None:
        self._group = typer.Typer(no_args_is_help=True)
        _DECLARED[module] = lambda app: app.add_typer(self._group, name=name, rich_help_panel=panel, help=text)

    def command(self, *examples: str, name: str | None = None) -> Callable[[_Function], _Function]:
        """Declare a command of this group. Default name: the function's."""

        def declared(function: _Function) -> _Function:
            self._group.command(name, epilog=example(*examples))(_with_options(function))
            return function

        return declared


def _with_options(function: Callable[..., None]) -> Callable[..., None]:
    """Replace a parameter `options: GatewayOptions` by the single options, behind the function's own ones."""
    signature = inspect.signature(function, eval_str=True)
    own = [each for name, each in signature.parameters.items() if name != "options"]
    if len(own) == len(signature.parameters):
        return function
    hints = get_type_hints(GatewayOptions, include_extras=True)
    shared = [
        inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=hints[each.name])
        for each in fields(GatewayOptions)
    ]

    @wraps(function)
    def run(**given: Any) -> None:
        function(options=GatewayOptions(**{each.name: given.pop(each.name) for each in shared}), **given)

    run.__signature__ = signature.replace(parameters=[*own, *shared])  # type: ignore[attr-defined]
    return run
