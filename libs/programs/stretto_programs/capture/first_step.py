"""A script, run as `python script.py` runs it, up to a step."""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

from ..errors import HookMissing, ProgramRefused
from ..import_hooks import AfterImport
from .captured import HookFailed, StepReached, ours

T = TypeVar("T")
NO_STEP = (
    "{script} ended {how} of training: one of Keras `fit`, or of a `tf.function` that writes trainable "
    "variables. Sessions of TensorFlow 1 are not explained: run the step in a `tf.function`"
)
TORCH = (
    "it trains with PyTorch: explain-graph explains steps of TensorFlow, and `stretto run` moves nothing of it. "
    "A PyTorch DataLoader has data workers of its own: give it num_workers"
)
_REACHED_AGAIN_MAX = 3
"""Most times that a program may catch the end at its step; at the next one its process is ended."""


def first_step(
    script: Path,
    arguments: Sequence[str],
    *,
    use: Callable[[T], None],
    install: Callable[[Callable[[T], None]], Callable[[], None]],
    stop: Callable[[], None] = lambda: None,
    number: int = 1,
) -> None:
    """Run a script until its step of a number, and call `use` with it while everything that the step needs is alive.

    install: puts hooks in place that take a step, and returns a function that removes them. The program ends at its
    step. If it catches that end again and again, `stop` is called, and the process is ended. Raises ProgramRefused: the
    script cannot be run, fails, or has no step.
    """
    reached = 0
    step = "its first step" if number == 1 else f"its step {number}"

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
            raise ProgramRefused(f"{script} ended with {error.code} before {step}") from error
    except Exception as error:
        if not reached:
            raise ProgramRefused(f"{script} failed before {step}: {_place(error, script)}") from error
    finally:
        sys.argv, sys.path[:] = before[0], before[1]
    if not reached:
        raise ProgramRefused(
            NO_STEP.format(script=script, how="without a step" if number == 1 else f"before its step {number}")
        )


def refuse_torch() -> Callable[[], None]:
    """Let the first gradient of PyTorch end the program, before anything is trained; return a function that ends this.

    Loaders are let run: Keras takes them, too.
    """

    def refusing(original: Any) -> Any:  # a function for each: torch.compile tells them apart
        @wraps(original)
        def refuse(*arguments: Any, **named: Any) -> None:
            raise HookFailed(ProgramRefused(TORCH))

        return refuse

    def hook(autograd: Any) -> None:
        originals.append((autograd, autograd.backward, autograd.grad))
        autograd.backward, autograd.grad = refusing(autograd.backward), refusing(autograd.grad)

    def end() -> None:
        sys.meta_path.remove(finder)
        for autograd, backward, grad in originals:
            autograd.backward, autograd.grad = backward, grad

    originals: list[tuple[Any, Any, Any]] = []
    finder = AfterImport([{"torch.autograd": hook}], lambda error: None)
    return end


def _place(error: Exception, script: Path) -> str:
    """Return the text of an error of the program, with the line of the script that raised it."""
    lines = [each.lineno for each in traceback.extract_tb(error.__traceback__) if each.filename == str(script)]
    where = f" (line {lines[-1]})" if lines else ""
    text = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {text}{where}"
