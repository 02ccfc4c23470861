"""Sessions of TensorFlow 1: a program that opens one runs without data workers, and a line says so."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

from ..import_hooks import Hook, replace_method

ALONE = "sessions of TensorFlow 1 run as alone: nothing of them moves to data workers, and --resume keeps no place"


class Sessions:
    """The hook for new sessions. say: writes a line to people. was_asked: the program has opened a session."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self.was_asked = False

    def hooks(self) -> dict[str, Hook]:
        """Return the hook, by the module after whose import it belongs."""
        return {"tensorflow.python.client.session": self._hook}

    def _hook(self, module: ModuleType) -> None:
        def opening(original: Any) -> Any:
            @wraps(original)
            def init(session: Any, *args: Any, **kwargs: Any) -> None:
                if not self.was_asked:
                    self.was_asked = True
                    self._say(ALONE)
                original(session, *args, **kwargs)

            return init

        replace_method(module.BaseSession, "__init__", opening)
