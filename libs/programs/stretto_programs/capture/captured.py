"""The first step of a program, taken before it runs."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ..partition.pipelines import DatasetOp


class StepReached(BaseException):
    """Ends the program at its first step. No `except Exception` of the program catches it."""


class HookFailed(BaseException):
    """Carries an error of ours through the program, which must not take it for one of its own."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@contextmanager
def ours() -> Generator[None]:
    """Mark the errors of what runs within as ours."""
    try:
        yield
    except Exception as error:
        raise HookFailed(error) from error


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The tf.data pipeline behind a source of the step.

    source: operation of the graph that takes its elements; "" where the program's Python code does.
    sample: bytes of one element that enters an operation of the pipeline, by its place; None: not measured.
    """

    source: str
    ops: tuple[DatasetOp, ...]
    sample: Callable[[int], Sequence[int] | None] = lambda place: None


@dataclass(frozen=True)
class Captured:
    """A step.

    kind: `Keras fit`, `tf.function` or `eager loop`. graph_def: its graph, without calls. targets, fetched: operations
    and tensors that a run asks for. given: resources of placeholders. arguments: placeholders that are constants.
    written: resources that the step does not write alone, with who does. step: the function whose graph it is;
    iterators: the program's own, that it takes.
    refusals: reasons for which nothing may move. run: runs the step once. values: runs what some tensors need, and
    returns their bytes.
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
