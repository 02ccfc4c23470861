"""How pods import frameworks: in less time, and in data workers not before their first use."""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.abc
import importlib.util
import sys
import threading
from collections.abc import Generator
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_FRAMEWORKS = ("keras", "tensorflow", "torch")


@contextlib.contextmanager
def lighter_imports() -> Generator[None]:
    """Import TensorFlow, and Keras with it, in 2.9 s of CPU time instead of 4.1 s (two cores, quiet).

    Keras imports matplotlib for its own plots where it is installed, and the collector walks the modules again and
    again. A pod does without Keras' plots; the user's own code imports matplotlib as ever. What is imported now is
    never freed, so the collector need not look at it again.
    """
    finder = _KerasWithoutPlots()
    sys.meta_path.insert(0, finder)
    gc.disable()
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        gc.enable()
        gc.freeze()


class _KerasWithoutPlots(importlib.abc.MetaPathFinder):
    """Finds no matplotlib for Keras, which then goes on without it."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname != "matplotlib":
            return
        frame = sys._getframe(1)
        while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("importlib."):
            frame = frame.f_back
        if str(frame.f_globals.get("__name__")).startswith("keras."):
            raise ModuleNotFoundError("Keras does without its plots here", name=fullname)


def defer_frameworks() -> None:
    """Let this process, and its forks, import a framework at the first use of what is in it.

    A module that reads data often stands in the file of its model, which imports a framework at its top; who only
    reads then has the memory and the start of a process without one. `import keras` and `from keras import layers` are
    deferred, `class Net(torch.nn.Module)` is a use.
    """
    sys.meta_path.insert(0, _DEFERRING)


class _Deferred(ModuleType):
    """Stands for a module of a framework, and imports it when it is asked for more than its submodules."""

    def __getattr__(self, name: str) -> Any:
        if name in ("__path__", "__file__", "__cached__"):  # which importing looks for, and sets
            raise AttributeError(name)
        if (module := vars(self).get("_real")) is None:
            path = f"{self.__name__}.{name}"
            if self is sys.modules.get(self.__name__) and PathFinder.find_spec(path, getattr(self, "__path__", ())):
                return importlib.import_module(path)
            module = vars(self)["_real"] = _DEFERRING.imported(self.__name__)
        if name == "__all__" and not hasattr(module, name):  # of `import *`, which would take the names here otherwise
            return [each for each in vars(module) if not each.startswith("_")]
        return getattr(module, name)

    def __call__(self, *given: Any, **named: Any) -> Any:
        """Call the function that hides this module, as some of PyTorch do."""
        parent, _, name = self.__name__.rpartition(".")
        return getattr(_DEFERRING.imported(parent), name)(*given, **named)


class _Deferring(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules of frameworks, and loads nothing in their place, until one of them is used."""

    def __init__(self) -> None:
        self._importing = threading.RLock()

    def find_spec(self, fullname: str, path: Any = None, target: object = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in _FRAMEWORKS:
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is None and "." in fullname:  # made by the framework itself, when it is imported
            self.imported(fullname.partition(".")[0])
            return importlib.util.find_spec(fullname)
        if spec is not None:
            spec.loader = self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Deferred(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass

    def imported(self, name: str) -> ModuleType:
        """Return a module as it is: nothing is deferred from now on."""
        with self._importing:  # threads of a lane: the second one finds what the first has imported
            if self in sys.meta_path:
                self._stop()
                with lighter_imports():
                    return importlib.import_module(name)
            return importlib.import_module(name)

    def _stop(self) -> None:
        sys.meta_path.remove(self)
        for deferred in [each for each in [*sys.modules.values()] if isinstance(each, _Deferred)]:
            sys.modules.pop(deferred.__name__, None)
            for child in [child for child, of in vars(deferred).items() if isinstance(of, _Deferred)]:
                delattr(deferred, child)  # who holds the parent finds the real one from now on


_DEFERRING = _Deferring()
