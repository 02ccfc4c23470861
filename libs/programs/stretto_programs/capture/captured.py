"""The first step of a program, as `explain-graph` captures it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ..partition.pipelines import DatasetOp


class StepReached(BaseException):
    """Exception that ends the program at its first step. `except Exception` in the program does not catch it."""


class HookFailed(BaseException):
    """Exception that carries an error of this package through the program, which must not take it for its own."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@contextmanager
def ours() -> Generator[None]:
    """Raise an error of the code within as HookFailed: it is not an error of the program."""
    try:
        yield
    except Exception as error:
        raise HookFailed(error) from error


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The tf.data pipeline behind a source of the step.

    source: operation of the graph that takes the pipeline's elements; "" if Python code of the program takes them.
    sample: returns the bytes of an element's components at the entry of an operation, given its place in `ops`; None if
    they were not measured.
    """

    source: str
    ops: tuple[DatasetOp, ...]
    sample: Callable[[int], Sequence[int] | None] = lambda place: None


@dataclass(frozen=True)
class Captured:
    """A captured step.

    kind: `Keras fit`, `tf.function` or `eager loop`. graph_def: the step's graph, without calls. targets, fetched:
    operations and tensors that a run of the step asks for. given: resource of each placeholder that stands for one.
    arguments: placeholders of constants. written: resources that other code than the step writes, too, with its name.
    step: the function whose graph this is. iterators: the program's iterators that the step takes. refusals: reasons
    for which nothing may move. run: runs the step. values: computes tensors, and returns their bytes.
    """

    kind: str
    title: str
    graph_def: Any
    targets: tuple[str, ...]
    fetched: tuple[str, ...]
    run: Callable[[], None]
    values: Callable[[Sequence[str]], Mapping[str, int]]
    given: Mapping[str, str] = field(default_factory=dict[str, str])
    arguments: frozenset[str] = frozenset()
    written: Mapping[str, str] = field(default_factory=dict[str, str])
    pipelines: tuple[Pipeline, ...] = ()
    step: Any = None
    iterators: tuple[Any, ...] = ()
    refusals: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
