"""Evidence that Python code is not a pure function: random numbers that it draws, objects that it changes.

A mark shows whether an object has changed without reading all of it: attributes by identity, the version of a tensor,
the length of a list. Contents of NumPy arrays and of containers with many members are not looked at.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, cast

OBJECTS_MAX = 256
"""Most objects that are looked at: more would cost more than a batch (taste)."""
MEMBERS_MAX = 64
PLAIN = (bool, int, float, complex, str, bytes, type(None))

Marks = list[tuple[str, Any]]


class Watch:
    """A watch over code that uses some objects, from its creation on.

    Looking at an object of the program may raise anything.
    """

    def __init__(self, roots: Sequence[Any]) -> None:
        self._roots = roots
        self._states, self._marks = _states(), marks_of(roots)

    def reason(self) -> str:
        """Return why the code since then is not a pure function, "" if nothing shows it."""
        for (name, before), (_, after) in zip(self._states, _states(), strict=False):
            if not _is_equal(before, after):
                return f"its items draw random numbers of {name}"
        changed = change_between(self._marks, marks_of(self._roots))
        return f"its items change the data set: {changed}" if changed else ""


def marks_of(roots: Sequence[Any]) -> Marks:
    """Return the marks of objects, and of objects that they refer to, nearest first."""
    found: Marks = []
    seen: set[int] = set()
    waiting = deque(("", each) for each in roots)
    while waiting and len(seen) < OBJECTS_MAX:
        name, each = waiting.popleft()
        found.append((name, each))
        if type(each) in PLAIN or id(each) in seen:
            continue
        seen.add(id(each))
        found.extend((name, mark) for mark in _own_marks(each))
        waiting.extend((child or name, value) for child, value in _children(each))
    return found


def change_between(one: Marks, other: Marks) -> str:
    """Return the name of the first changed object, "" if nothing has changed."""
    for (old, before), (name, after) in zip(one, other, strict=False):
        if old != name or (before is not after and not _is_equal(before, after)):
            return name or "an object"
    return "" if len(one) == len(other) else "an object"


def _is_equal(one: Any, other: Any) -> bool:
    """Return whether two plain values, or two states of generators, are equal."""
    return type(one) is type(other) and type(one) in (*PLAIN, tuple) and one == other


def _states() -> list[tuple[str, Any]]:
    """Return the states of all random generators that the whole process shares."""
    found: list[tuple[str, Any]] = [("random", random.getstate())]
    if "numpy" in sys.modules:
        numpy = sys.modules["numpy"]
        state = cast("dict[str, Any]", numpy.random.get_state(legacy=False))
        found.append(("numpy.random", _state_of(state)))
    if "torch" in sys.modules:
        found.append(("torch", sys.modules["torch"].get_rng_state().numpy().tobytes()))
    return found


def _state_of(state: Any) -> Any:
    """Return the state of a NumPy generator as a value that can be compared."""
    if isinstance(state, Mapping):
        return tuple((key, _state_of(value)) for key, value in cast("Mapping[str, Any]", state).items())
    return state.tobytes() if hasattr(state, "tobytes") else state


def _own_marks(each: Any) -> Iterator[Any]:
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(each, torch.Tensor):
        yield 0 if each.is_inference() else each._version
    elif torch is not None and isinstance(each, torch.Generator):
        yield each.get_state().numpy().tobytes()
    elif isinstance(each, random.Random):
        yield each.getstate()
    elif numpy is not None and isinstance(each, numpy.random.Generator):
        yield _state_of(each.bit_generator.state)
    elif numpy is not None and isinstance(each, numpy.random.RandomState):
        yield _state_of(each.get_state(legacy=False))
    elif isinstance(each, list | dict | set | deque | bytearray):
        yield len(cast("list[Any]", each))


def _children(each: Any) -> Iterator[tuple[str, Any]]:
    """Yield the objects that an object refers to, with their names."""
    if isinstance(each, ModuleType | type):
        return
    if isinstance(each, FunctionType):
        yield from _of_function(each)
    elif isinstance(each, MethodType):
        yield from (("", each.__self__), ("", each.__func__))
    elif isinstance(each, partial):
        yield from (("", value) for value in (each.func, *each.args, *each.keywords.values()))
    elif isinstance(each, list | tuple):
        yield from (("", value) for value in cast("Sequence[Any]", each)[:MEMBERS_MAX])
    elif isinstance(each, dict):
        pairs = cast("dict[Any, Any]", each)
        if len(pairs) <= MEMBERS_MAX:
            yield from ((str(key), value) for key, value in pairs.items())
    else:
        yield from getattr(each, "__dict__", {}).items()
        if type(each).__module__ == "__main__":
            methods = (value for value in vars(type(each)).values() if isinstance(value, FunctionType))
            yield from ((value.__name__, value) for value in methods)


def _of_function(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the objects that a function refers to: closure, defaults, and global names of a function of the script."""
    for cell, name in zip(function.__closure__ or (), function.__code__.co_freevars, strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not set yet
            continue
    yield from (("", value) for value in function.__defaults__ or ())
    if function.__module__ == "__main__":
        for name in _names(function.__code__):
            if name in function.__globals__:
                yield name, function.__globals__[name]


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _names(each)
