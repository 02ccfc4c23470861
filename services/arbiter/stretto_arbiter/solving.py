"""``python -m stretto_arbiter.solving``: a process that solves one problem after another, while its parent lives.

A solver may hold the interpreter for seconds, print, or die: none of that may happen to a service. Problems come on the
standard input, answers leave on the standard output, both pickled.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from queue import SimpleQueue
from threading import Thread
from typing import Any, BinaryIO

from stretto_core.algorithms import SELECT
from stretto_core.arbiter.selection import SelectionProblem

Question = tuple[str, SelectionProblem]
"""algorithm and problem"""
NICENESS = 10
"""whoever decides at the moment goes first"""
SIZE_BYTES = 8
"""before each answer, big-endian: how long it is"""


def main() -> None:
    """Answer until the standard input ends."""
    os.nice(NICENESS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal tells the parent, too, who ends this process
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # HiGHS tells the standard output what nobody asked
    questions = SimpleQueue[Question]()
    Thread(target=_listen, args=(sys.stdin.buffer, questions), daemon=True).start()
    while True:
        _say(answers, _answer(*questions.get()))


def _listen(source: BinaryIO, questions: SimpleQueue[Question]) -> None:
    """Also while a problem is being solved: nobody waits for the answer any more once the parent is gone."""
    try:
        while True:
            questions.put(pickle.load(source))
    except (EOFError, pickle.UnpicklingError):  # it may have been killed in the middle of a problem
        os._exit(0)


def _answer(algorithm: str, problem: SelectionProblem) -> Any:
    """A ``Selection``, or in words why there is none."""
    try:
        return SELECT.named(algorithm)(problem)
    except Exception as error:  # a plug-in's
        return f"{type(error).__name__}: {error}"


def _say(answers: BinaryIO, answer: Any) -> None:
    data = pickle.dumps(answer)
    answers.write(len(data).to_bytes(SIZE_BYTES) + data)
    answers.flush()


if __name__ == "__main__":
    main()
