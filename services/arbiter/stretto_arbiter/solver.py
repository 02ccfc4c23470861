"""``python -m stretto_arbiter.solver``: a process that solves one problem after another, as long as its parent lives.

A plug-in's solver may block the interpreter for seconds, print, or crash: none of these may happen to a service.
Problems arrive on the standard input, answers leave on the standard output, both pickled.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from queue import SimpleQueue
from threading import Thread
from typing import BinaryIO

from stretto_core.algorithms import SELECT
from stretto_core.arbiter.selection import Selection, SelectionProblem

Question = tuple[str, SelectionProblem]
"""Algorithm and problem."""
NICENESS = 10
"""The service, which decides meanwhile, goes first."""
SIZE_BYTES = 8
"""Before each answer stands its length, big-endian, in so many bytes."""


def main() -> None:
    """Answer until the standard input ends."""
    os.nice(NICENESS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which ends this process
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # HiGHS prints to the standard output
    questions = SimpleQueue[Question]()
    Thread(target=_listen, args=(sys.stdin.buffer, questions), daemon=True).start()
    while True:
        _send(answers, _answer(*questions.get()))


def _listen(source: BinaryIO, questions: SimpleQueue[Question]) -> None:
    """Queue the problems. End the process with its parent, even while a problem is being solved."""
    try:
        while True:
            questions.put(pickle.load(source))
    except (EOFError, pickle.UnpicklingError):  # the parent may have been killed in the middle of a problem
        os._exit(0)


def _answer(algorithm: str, problem: SelectionProblem) -> Selection | str:
    """Return the selection, or a sentence that says why there is none."""
    try:
        return SELECT.named(algorithm)(problem)
    except Exception as error:  # a plug-in's
        return f"{type(error).__name__}: {error}"


def _send(answers: BinaryIO, answer: Selection | str) -> None:
    data = pickle.dumps(answer)
    answers.write(len(data).to_bytes(SIZE_BYTES) + data)
    answers.flush()


if __name__ == "__main__":
    main()
