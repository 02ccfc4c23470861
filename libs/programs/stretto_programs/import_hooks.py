"""Hooks that run right after the import of a framework's module.

The program decides when it imports its framework, and with which environment; so nothing is imported for a hook.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from .errors import HookMissing

Hook = Callable[[ModuleType], None]


class AfterImport(MetaPathFinder):
    """Finder that calls hooks right after the import of a module, in their order.

    A module imported earlier is hooked at once. Looking for a module (`find_spec`) calls no hook. missing: called with
    the error of a hook whose method does not exist.
    """

    def __init__(self, hooks: Sequence[Mapping[str, Hook]], missing: Callable[[HookMissing], None]) -> None:
        self._missing = missing
        self._finding: set[str] = set()
        self._hooks: dict[str, list[Hook]] = {}
        for name, hook in (item for each in hooks for item in each.items()):
            self._hooks.setdefault(name, []).append(hook)
        sys.meta_path.insert(0, self)
        for name in [each for each in self._hooks if each in sys.modules]:
            self._run(name, sys.modules[name])

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's own spec, whose loader calls the hooks once the module has been executed."""
        if fullname not in self._hooks or fullname in self._finding:
            return None
        self._finding.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._finding.discard(fullname)
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self._run(fullname, module)

        loader.exec_module = exec_module
        return spec

    def _run(self, name: str, module: ModuleType) -> None:
        for hook in self._hooks.pop(name, []):
            try:
                hook(module)
            except HookMissing as error:
                self._missing(error)


def replace_method(owner: Any, name: str, made: Callable[[Any], Any]) -> None:
    """Replace a method of a class, or a function of a module, by what `made` returns for it. Raises HookMissing."""
    original = vars(owner).get(name)
    if original is None:
        where = ".".join([*filter(None, [getattr(owner, "__module__", "")]), owner.__name__])
        raise HookMissing(f"{where} has no {name}: TensorFlow 2.21 with Keras 3 is known")
    setattr(owner, name, made(original))
