"""A process of the trainer, which imports the user's code and framework: the command line imports neither."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import IO

from rich.progress import BarColumn, Progress, TextColumn
from stretto_client.documents import Json
from stretto_wire import JobSpec

from .errors import BadInput, CliError
from .options import complaints

_REFUSED = 2
"""Exit status of the process for whatever its user can mend."""
_LAST_LINES = 20


def trial_of(spec: JobSpec) -> Json:
    """Return the trial of a job's model and data, as `stretto.trial.check` reads it. Raises BadInput for a program."""
    if spec.program is not None:
        raise BadInput(f"{spec.name} runs a program: `stretto check` tries a model only; the job file itself is right")
    model, data = spec.model, spec.dataset
    part = next((each for each in data.partitions if each.samples), None) if data.partitioned else None
    return {
        "entry": model.entry,
        "path": model.path or "",
        "arguments": model.arguments,
        "name": spec.name,
        "samples": part.samples if part else data.samples,
        "partition": part.name if part else "",
        "batch_size": data.batch_size,
        "job": spec.model_dump(mode="json", exclude_unset=True),
    }


def run(arguments: Sequence[str], given: str, *, quiet: bool, what: str, python: str = sys.executable) -> Json:
    """Run ``python -m`` with these arguments and ``given`` as its input; return the result that it tells.

    It prints a document a line: {"progress": [stage, done, total]}, at the end {"result": …} or {"error": …}.
    Raises BadInput and CliError, which begin with ``what``.
    """
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ}
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as notes:
        try:
            process = subprocess.Popen(
                [python, "-m", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=notes, text=True,
                encoding="utf-8", env=environment,
            )  # fmt: skip
        except OSError as error:
            raise BadInput(f"{python} cannot be started: {error.strerror or error}; name a Python") from error
        last: Json = {}
        with process:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(given)
                process.stdin.close()
                last = _followed(process.stdout, quiet)
            except BrokenPipeError:  # it ended at once: its notes say why
                pass
            except KeyboardInterrupt:
                process.terminate()
                raise
        if "result" in last:
            return last["result"]
        if "error" in last:
            kind = BadInput if process.returncode == _REFUSED else CliError
            raise kind(f"{what}: {last['error']}")
        notes.seek(0)
        told = notes.read().strip().splitlines()[-_LAST_LINES:]
    if any("No module named stretto" in line or "No module named 'stretto" in line for line in told):
        raise BadInput(f"{python} has no stretto[train]: install it there, or run the command where it is")
    raise CliError("\n  ".join([f"{what}: the process ended with status {process.returncode}", *told]))


def _followed(lines: IO[str], quiet: bool) -> Json:
    """Show the progress that the process tells; return its last document."""
    last: Json = {}
    columns = (TextColumn("{task.description}"), BarColumn())
    is_shown = complaints.is_terminal and not quiet
    with Progress(*columns, console=complaints, transient=True, disable=not is_shown) as drawn:
        task = drawn.add_task("starting", total=None)
        for line in lines:
            last = json.loads(line)
            if "progress" in last:
                stage, done, total = last["progress"]
                drawn.update(task, description=stage, completed=done, total=total if total > 1 else None)
    return last
