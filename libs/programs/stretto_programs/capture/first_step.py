"""A script, run as `python script.py` runs it, up to its first step."""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

from ..errors import HookMissing, ProgramRefused
from .captured import HookFailed, StepReached, ours

T = TypeVar("T")
NO_STEP = (
    "{script} ended without a step of training: one of Keras `fit`, of a `tf.function` that writes trainable "
    "variables, or three batches of a PyTorch DataLoader. Sessions of TensorFlow 1 are not explained: run the step in "
    "a `tf.function`"
)
_REACHED_AGAIN_MAX = 3
"""Most times that a program may catch the end at its first step; at the next one its process is ended."""


def first_step(
    script: Path,
    arguments: Sequence[str],
    *,
    use: Callable[[T], None],
    install: Callable[[Callable[[T], None]], Callable[[], None]],
    stop: Callable[[], None] = lambda: None,
) -> None:
    """Run a script until its first step, and call `use` with the step while everything that the step needs is alive.

    install: puts hooks in place that take a step, and returns a function that removes them. The program ends at its
    step. If it catches that end again and again, `stop` is called, and the process is ended. Raises ProgramRefused: the
    script cannot be run, fails, or has no step.
    """
    reached = 0

    def take(captured: T) -> None:
        nonlocal reached
        reached += 1
        if reached > _REACHED_AGAIN_MAX:
            stop()
            sys.stdout.flush()
            os._exit(0)
        if reached == 1:
            with ours():
                use(captured)
        raise StepReached

    before = sys.argv, sys.path[:]
    sys.argv, sys.path[0:0] = [str(script), *arguments], [str(script.resolve().parent)]
    try:
        with ExitStack() as hooks:
            hooks.callback(install(take))
            runpy.run_path(str(script), run_name="__main__")
    except StepReached:
        pass
    except HookMissing:
        raise
    except HookFailed as error:
        raise error.error from error
    except SystemExit as error:
        if not reached and error.code not in (None, 0):
            raise ProgramRefused(f"{script} ended with {error.code} before its first step") from error
    except Exception as error:
        if not reached:
            raise ProgramRefused(f"{script} failed before its first step: {_place(error, script)}") from error
    finally:
        sys.argv, sys.path[:] = before[0], before[1]
    if not reached:
        raise ProgramRefused(NO_STEP.format(script=script))


def _place(error: Exception, script: Path) -> str:
    """Return the text of an error of the program, with the line of the script that raised it."""
    lines = [each.lineno for each in traceback.extract_tb(error.__traceback__) if each.filename == str(script)]
    where = f" (line {lines[-1]})" if lines else ""
    text = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {text}{where}"
