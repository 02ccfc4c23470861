"""Workers in their loader's own Python: forks of one process that has imported the loader, so that each begins at once.

    python -m tests.bench.programs.loaders.worker LOADER

Each line of the input asks for one worker: a socket at which it is asked for its steps, its variables, and the file of
its complaints. The answer is its process id.
"""

from __future__ import annotations

import importlib
import json
import os
import pickle
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from tests.bench.processes import answer
from tests.bench.programs.loaders import counting, loaders
from tests.bench.programs.loaders.schedule import SAMPLE_S, SAMPLES


def prepare(state: dict[str, Any], data: str) -> dict[str, Any]:
    """Write the data set of a loader that reads files of its own format."""
    getattr(loaders, f"{sys.argv[1]}_data")(data, SAMPLES)
    return {}


def begin(
    state: dict[str, Any], journal: str, origin: list[int] | None, checkpoint: list[str], **place: Any
) -> dict[str, Any]:
    """Open the loader at the checkpoint of all ranks of a group, or at the start of its data."""
    saved = [pickle.loads(Path(each).read_bytes()) for each in checkpoint]
    opened = getattr(loaders, sys.argv[1])(loaders.Place(**place, saved=saved))
    file = Path(journal).open("ab", buffering=0)  # noqa: SIM115 - as long as the process
    file.write(counting.first_line(None if origin is None else (origin[0], origin[1])))
    state.update(opened=opened, batches=iter(opened.batches), journal=file, step=0)
    return {}


def step(state: dict[str, Any]) -> dict[str, bool]:
    """Train the next batch; tell whether there was one."""
    batch = next(state["batches"], None)
    if batch is None:
        return {"more": False}
    samples = [int(each) for each in batch]
    time.sleep(len(samples) * SAMPLE_S)
    state["step"] += 1
    state["journal"].write(counting.line(state["step"], time.time(), samples))
    state["opened"].trained(len(samples))
    return {"more": True}


def save(state: dict[str, Any], path: str) -> dict[str, Any]:
    Path(path).write_bytes(pickle.dumps(state["opened"].state()))
    return {}


def run(state: dict[str, Any]) -> dict[str, Any]:
    """Train to the end."""
    while step(state)["more"]:
        pass
    return {}


def serve(address: str, complaints: str, environment: dict[str, str]) -> NoReturn:
    """Be a worker, until whoever asks hangs up."""
    os.environ |= environment
    link = socket.socket(socket.AF_UNIX)
    link.connect(address)
    os.dup2(link.fileno(), 0)
    os.dup2(link.fileno(), 1)
    os.dup2(os.open(complaints, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    link.close()
    sys.stdin = open(0)  # noqa: SIM115 - as long as the process
    answer({"prepare": prepare, "begin": begin, "step": step, "save": save, "run": run})


def main() -> None:
    for module in loaders.IMPORTS[sys.argv[1]]:
        importlib.import_module(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in iter(sys.stdin.readline, ""):
        if not (pid := os.fork()):
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            serve(**json.loads(line))
        print(pid, file=answers, flush=True)


if __name__ == "__main__":  # a loader may start processes that import this module
    main()
