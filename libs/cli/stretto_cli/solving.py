"""Run a chosen algorithm: silence its library, take its time, turn its refusal into one line."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

from stretto_core.algorithms import AlgorithmError, DecisionKind
from stretto_core.machine import CoreError
from stretto_messages.base import InvalidValue

from .reading import BadData

Problem = TypeVar("Problem")
Answer = TypeVar("Answer")


def algorithm(kind: DecisionKind, name: str) -> Any:
    """Return the algorithm ``name``. Raises BadData."""
    try:
        with silent():  # some libraries print when they are imported
            return kind.named(name)
    except AlgorithmError as error:
        raise BadData(str(error)) from error


def solved(solve: Callable[[Problem], Answer], problem: Problem) -> tuple[Answer, float]:
    """Return the solution and the seconds that it took. Raises BadData for a problem that ``solve`` refuses."""
    with silent():
        begun_s = time.perf_counter()
        try:
            answer = solve(problem)
        except (CoreError, InvalidValue) as error:
            raise BadData(" ".join(str(error).split())) from error
        return answer, time.perf_counter() - begun_s


@contextmanager
def silent() -> Generator[None]:
    """Drop what is printed to file descriptor 1: solvers written in C bypass Python's stdout."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def gap_to_upper(value: float, bound: float) -> float:
    """Return (bound - value) / bound, for a maximisation; 0 where both are 0."""
    return (bound - value) / bound if bound else 0.0


def gap_to_lower(value: float, bound: float) -> float:
    """Return (value - bound) / bound, for a minimisation: how far above the bound; 0 where both are 0."""
    return (value - bound) / bound if bound else 0.0
