"""States of Keras' random layers. No checkpoint has them, and a resumed program would draw the same numbers again.

Layers are numbered in the order in which the program creates them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from types import ModuleType
from typing import Any
from weakref import WeakValueDictionary

from ..errors import in_words
from ..import_hooks import Hook, replace_method

States = Mapping[int, Sequence[int]]


class Seeds:
    """The seed generators of a program. say: writes a line to people."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._numbers = itertools.count()
        self._made: WeakValueDictionary[int, Any] = WeakValueDictionary()
        self._waiting: dict[int, Sequence[int]] = {}

    def hooks(self) -> dict[str, Hook]:
        """Return the hooks, by the module after whose import they belong."""
        return {"keras.src.random.seed_generator": self._hook}

    def _hook(self, module: ModuleType) -> None:
        def made(original: Any) -> Any:
            @wraps(original)
            def init(generator: Any, *args: Any, **kwargs: Any) -> None:
                original(generator, *args, **kwargs)
                number = next(self._numbers)
                self._made[number] = generator
                self._go_on(number, generator)

            return init

        replace_method(module.SeedGenerator, "__init__", made)

    def states(self) -> States:
        """Return the state of each generator, by its number."""
        try:
            return {number: _values(each) for number, each in sorted(self._made.items())}
        except Exception as error:  # in a graph of TensorFlow 1 a state has no value
            self._say(f"resume: states of random layers are not kept: {in_words(error)}")
            return {}

    def restore(self, states: States) -> None:
        """Set generators to these states, including generators that are created later."""
        self._waiting = dict(states)
        for number, each in sorted(self._made.items()):
            self._go_on(number, each)

    def _go_on(self, number: int, generator: Any) -> None:
        import tensorflow as tf

        state = self._waiting.pop(number, None)
        if state is not None:
            try:
                with tf.init_scope():
                    generator.state.assign(state)
            except Exception as error:  # the file does not fit: the layer draws as it does alone
                self._say(f"resume: the state of random layer {number} is not restored: {in_words(error)}")


def _values(generator: Any) -> list[int]:
    return [int(each) for each in generator.state.numpy()]
