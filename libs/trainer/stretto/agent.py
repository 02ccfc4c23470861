"""The samples of a program that Stretto runs, for the program itself: ``for batch in stretto.agent.samples(): …``.

Nothing but the standard library is needed here: the process that runs the program, :mod:`stretto.program`, leases
shards, sends heartbeats and reports, and the program asks it for one batch after the other over a socket.

Items of :func:`prepared` travel as pickles: data workers and workers run one user's program, in pods of one job.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

from .errors import StrettoError
from .items import GONE, SharedItems, likely, reached, serve

ADDRESS_VARIABLE = "STRETTO_AGENT"
"""Variable of a program with the path of the socket at which it asks for batches."""
SEVERAL_VARIABLE = "STRETTO_AGENT_SEVERAL"
"""Variable of a program whose requests for batches may be :data:`SEVERAL`; an earlier Stretto knows NEXT alone."""
NEXT, SEVERAL, CHECKPOINT, SAVED, UNSAVED = "next", "several", "checkpoint", "saved", "unsaved"
RESTORED, LEFT = "restored", "left"
"""Requests of a program, a line each: for one batch, or for several. Behind an answer of several batches, the request
that comes next states the first number of the batch that was taken last, and the one behind it."""
BATCH, BATCHES, END, LEAVE, REFUSED = "batch", "batches", "end", "leave", "refused"
"""The first words of an answer; after ``batch`` follow the first number and the one behind the last, and where data
workers could use them, those two of the batch that most likely follows; after ``batches`` those of all, and the size
of each but the last."""
AHEAD_S = 0.1
"""Seconds for which the batches of one answer may be taken: no worker leaves, and no heartbeat tells of them, sooner.
A tenth of the time between heartbeats, so that a lost worker repeats hardly more, and ten requests a second."""
SAVE, LOAD, DONE = "save", "load", "done"
"""First words of answers about checkpoints; after the first two follows a folder, after the last a name or nothing."""
PREPARES_VARIABLE = "STRETTO_AGENT_PREPARES"
"""Variable of a program in a data worker: the number of processes that are to compute items."""


class _Line:
    """The connection of this program to the process that runs it."""

    def __init__(self) -> None:
        path = os.environ.get(ADDRESS_VARIABLE)
        if not path:
            raise StrettoError(
                f"{ADDRESS_VARIABLE} is not set: submit a job file with program.command and a dataset, and Stretto "
                "runs this program with it"
            )
        if PREPARES_VARIABLE in os.environ:
            raise StrettoError(
                "this program runs in a data worker, which has no samples: call stretto.agent.prepared(dataset) before "
                "samples, restored and checkpoint, and before torch.distributed is initialised"
            )
        self._process = os.getpid()
        self._taken: range | None = None
        """The batch that was taken last of an answer of several; None: the process that runs the program knows it."""
        self._link = reached(path)
        self._answers = self._link.makefile("r", encoding="utf-8")

    def ask(self, request: str) -> tuple[str, str]:
        """Return the first word of the answer, and the rest. Raises SystemExit for a worker that is to leave."""
        if self._taken is not None:
            request, self._taken = f"{request} {self._taken.start} {self._taken.stop}", None
        try:
            self._link.sendall(f"{request}\n".encode())
            word, _, rest = self._answers.readline().rstrip("\n").partition(" ")
        except OSError as error:
            raise StrettoError(GONE) from error
        if word == LEAVE:
            raise SystemExit(0)
        if word in ("", REFUSED):
            raise StrettoError(rest or GONE)
        return word, rest

    def several(self, first: int, stop: int, size: int) -> Iterator[range]:
        """Yield the batches of one answer, until its time is over or another request has told how far they are."""
        until_s = time.monotonic() + AHEAD_S
        while True:
            self._taken = range(first, min(first + size, stop))
            yield self._taken
            first = first + size
            if first >= stop or self._taken is None or time.monotonic() >= until_s:
                return

    def close(self) -> None:
        """Close the connection; the batch that was taken last does not count as trained."""
        if self._taken is not None and os.getpid() == self._process:  # else the loop is that of a fork's parent
            with contextlib.suppress(StrettoError, SystemExit):
                self.ask(LEFT)
        self._answers.close()
        self._link.close()


_lines: list[_Line] = []
"""The open connection, if there is one."""


def _line(*, anew: bool = False) -> _Line:
    if anew:
        _hang_up()
    if not _lines:
        _lines.append(_Line())
    return _lines[0]


def _hang_up() -> None:
    while _lines:
        _lines.pop().close()


def samples(save: Callable[[str], object] | None = None) -> Iterator[range]:
    """Yield the numbers of the samples of one batch after the other, until all epochs are over.

    A batch counts as trained once the next one is asked for. Which batches a worker gets is decided while the job
    runs: each sample goes to one worker, and that of a lost worker to another one. A worker that is to leave ends its
    program here, by SystemExit, so that ``finally`` and ``atexit`` still run.

    ``save``: of a program of level 2 whose parameters have all of a batch once the next one is asked for. Where it is
    to leave, this becomes a checkpoint as of :func:`checkpoint`, and nothing is trained again. A program that gathers
    the gradients of several batches states none.

    Raises:
        StrettoError: the program is not run by Stretto, another process of the pod takes its samples, or the process
            that runs the program is gone.
    """
    line, is_over = _line(anew=True), False
    asks = SEVERAL if SEVERAL_VARIABLE in os.environ else NEXT
    try:
        while True:
            try:
                word, rest = line.ask(asks)
            except SystemExit:
                if save is not None:
                    with contextlib.suppress(StrettoError):
                        checkpoint(save)
                raise
            is_over = word == END
            if is_over:
                return
            first, stop, *more = map(int, rest.split())
            if word == BATCHES:
                yield from line.several(first, stop, *more)
                continue
            likely[:] = [range(*more)] if more else []
            yield range(first, stop)
    finally:
        if not is_over and line in _lines:  # the batch that the loop was left in does not count as trained
            _hang_up()


def checkpoint(save: Callable[[str], object]) -> str:
    """Save the parameters as they are now; a program of level 2 goes on from here if its worker is lost.

    The step of the batch that was yielded last is over, and no other one has begun. ``save`` gets an empty folder and
    writes all that :func:`restored` needs there. Samples up to here are never handed out again once this function has
    returned; those after the last checkpoint are, after a loss, to parameters that lack them. Of several ranks, rank 0
    alone calls ``save``, and the others wait for it if they call this function at the same step. Returns the
    checkpoint's name.

    Raises:
        StrettoError: as :func:`samples` does, or the job file states no ``program.level`` of 2, or no batch was
            yielded since the loop began.
    """
    line = _line()
    word, rest = line.ask(CHECKPOINT)
    if word == DONE:  # rank 0 has saved
        return rest
    try:
        save(rest)
    except BaseException:
        line.ask(UNSAVED)
        raise
    return line.ask(SAVED)[1]


def restored(load: Callable[[str], object]) -> bool:
    """Load the parameters of the last checkpoint, before the first batch is asked for; False: there is none yet.

    ``load`` gets the folder that ``save`` has filled. Raises StrettoError as :func:`checkpoint` does.
    """
    word, folder = _line().ask(RESTORED)
    if word != LOAD:
        return False
    load(folder)
    return True


def prepared(dataset: Any) -> Any:
    """Return the data set with its items computed by data workers as well (``resources.data``), a batch ahead.

    A PyTorch ``DataLoader`` takes the data set that is returned in place of ``dataset``, whose ``dataset[number]`` has
    to depend on the number alone. The numbers that are trained stay the same, since any item that no data worker gives
    in time is computed here. Data workers run this program, too: there this function never returns, and its process
    ends once its data worker leaves. Without Stretto the data set itself is returned.

    Raises:
        StrettoError: the data set has no items by number, or the program has called this function before.
    """
    path = os.environ.get(ADDRESS_VARIABLE)
    if not path:
        return dataset
    if not hasattr(dataset, "__getitem__"):
        raise StrettoError(f"{type(dataset).__name__} has no items by number: give a data set with __getitem__")
    if PREPARES_VARIABLE in os.environ:
        serve(dataset, path, int(os.environ[PREPARES_VARIABLE]))
    if _prepared:
        raise StrettoError("prepared was called before: data workers know of one data set; read others without it")
    _prepared.append(SharedItems(dataset, path))
    return _prepared[0]


_prepared: list[SharedItems] = []
"""The data set that data workers know, if there is one."""
