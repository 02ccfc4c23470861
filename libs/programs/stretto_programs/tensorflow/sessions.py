"""Sessions of TensorFlow 1 get no data workers: a program that opens one runs as alone, and people are told so once."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

from ..import_hooks import Hook, replace_method

ALONE = "sessions of TensorFlow 1 run as alone: nothing of them moves to data workers, and --resume keeps no place"


class Sessions:
    """The hook where sessions are opened. say: writes a line to people. was_asked: the program opened one."""

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
