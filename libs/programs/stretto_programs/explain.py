"""Explain which part of a training program data workers could prepare: `python -m stretto_programs.explain`.

The process reads a `Request` as JSON from standard input. It prints one JSON document a line: {"progress": [stage,
done, total]}, and at the end {"result": …}, or {"error": …} with exit status 2. What the program prints goes to stderr.
`stretto explain-graph` starts this module.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stretto_pipeline.errors import PipelineError

from .errors import ProgramRefused

REFUSED = 2
"""Exit status where the user can mend the cause."""


@dataclass(frozen=True, slots=True)
class ExplainRequest:
    """The program to explain. dot: the answer has a drawing, too. step: the number of the step to explain, from 1."""

    script: str
    arguments: tuple[str, ...] = ()
    dot: bool = False
    step: int = 1


def explain(
    request: ExplainRequest,
    tell: Callable[[str], None] = lambda stage: None,
    stop: Callable[[dict[str, Any]], None] = lambda found: None,
) -> dict[str, Any]:
    """Run a program up to a step and return its partition as a document. Raises PipelineError.

    stop: called with the document instead, if the program does not end by itself and its process has to be ended.
    """
    script = Path(request.script)
    if not script.is_file():
        raise ProgramRefused(f"{script} is no file: name a Python script")
    tell("starting")
    from .capture.analysis import explained
    from .capture.captured import Captured
    from .capture.first_step import first_step, refuse_torch
    from .capture.report import document, dot
    from .partition.cut import Prices

    found: dict[str, Any] = {}

    def use(captured: Captured) -> None:
        told = explained(captured, Prices(), tell)
        found.update(document(told), script=str(script))
        if request.dot:
            found["dot"] = dot(told)

    tell(f"running {script.name}")

    def install(take: Callable[[Captured], None]) -> Callable[[], None]:
        with ExitStack() as hooks:
            hooks.callback(refuse_torch())
            if importlib.util.find_spec("tensorflow") is not None:
                from .capture import hooks as tensorflow

                hooks.callback(tensorflow.install(take, request.step))
            return hooks.pop_all().close

    first_step(script, request.arguments, use=use, install=install, stop=lambda: stop(found), number=request.step)
    if not found:  # the program has caught the exception that ends it
        raise ProgramRefused(f"{script} caught an error of its explanation: let its step end it")
    return found


def main() -> None:
    """Explain the program that standard input names."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(document: dict[str, Any]) -> None:
        answers.write(json.dumps(document) + "\n")
        answers.flush()

    given = json.load(sys.stdin)
    request = ExplainRequest(given["script"], tuple(given["arguments"]), given["dot"], given["step"])
    try:
        found = explain(request, lambda stage: say({"progress": [stage, 0, 1]}), lambda found: say({"result": found}))
        say({"result": found})
    except PipelineError as error:
        say({"error": str(error)})
        sys.exit(REFUSED)


if __name__ == "__main__":
    main()
