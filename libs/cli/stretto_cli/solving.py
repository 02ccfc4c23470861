"""Run a chosen algorithm: silent, timed, and whatever it refuses is said in one line."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

from stretto_core.algorithms import AlgorithmError, Kind
from stretto_core.machine import CoreError

from .reading import BadData

Problem = TypeVar("Problem")
Answer = TypeVar("Answer")


def algorithm(kind: Kind, name: str) -> Any:
    """The algorithm of that name. Raises BadData."""
    try:
        with silent():  # some libraries greet whoever imports them
            return kind.named(name)
    except AlgorithmError as error:
        raise BadData(str(error)) from error


def solved(solve: Callable[[Problem], Answer], problem: Problem) -> tuple[Answer, float]:
    """What ``solve`` makes of the problem, and the seconds that it took. Raises BadData for what it refuses."""
    with silent():
        begun_s = time.perf_counter()
        try:
            answer = solve(problem)
        except CoreError as error:
            raise BadData(" ".join(str(error).split())) from error
        return answer, time.perf_counter() - begun_s


@contextmanager
def silent() -> Generator[None]:
    """Solvers written in C print to file descriptor 1, past Python: what they say is dropped."""
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
    """(bound - value) / bound of a maximisation, 0 where both are 0."""
    return (bound - value) / bound if bound else 0.0


def gap_to_lower(value: float, bound: float) -> float:
    """(value - bound) / bound of a minimisation, 0 where both are 0."""
    return (value - bound) / bound if bound else 0.0
