"""The samples of a program that Stretto runs, for the program itself: ``for batch in stretto.agent.samples(): …``.

Nothing but the standard library is needed here: the process that runs the program, :mod:`stretto.program`, leases
shards, sends heartbeats and reports, and the program asks it for one batch after the other over a socket.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator

from .errors import StrettoError

ADDRESS_VARIABLE = "STRETTO_AGENT"
"""Variable of a program with the path of the socket at which it asks for batches."""
NEXT, CHECKPOINT, SAVED, UNSAVED, RESTORED = "next", "checkpoint", "saved", "unsaved", "restored"
"""Requests of a program, a line each."""
BATCH, END, LEAVE, REFUSED = "batch", "end", "leave", "refused"
"""The first words of an answer; after ``batch`` follow the first number and the one behind the last."""
SAVE, LOAD, DONE = "save", "load", "done"
"""First words of answers about checkpoints; after the first two follows a folder, after the last a name or nothing."""

_GONE = "the process that runs this program is gone; end, and Stretto runs it again"


class _Line:
    """The connection of this program to the process that runs it."""

    def __init__(self) -> None:
        path = os.environ.get(ADDRESS_VARIABLE)
        if not path:
            raise StrettoError(
                f"{ADDRESS_VARIABLE} is not set: submit a job file with program.command and a dataset, and Stretto "
                "runs this program with it"
            )
        try:
            self._link = connected(path)
        except OSError as error:
            raise StrettoError(f"{ADDRESS_VARIABLE} = {path} cannot be reached: {error.strerror}; {_GONE}") from error
        self._answers = self._link.makefile("r", encoding="utf-8")

    def ask(self, request: str) -> tuple[str, str]:
        """Return the first word of the answer, and the rest. Raises SystemExit for a worker that is to leave."""
        try:
            self._link.sendall(f"{request}\n".encode())
            word, _, rest = self._answers.readline().rstrip("\n").partition(" ")
        except OSError as error:
            raise StrettoError(_GONE) from error
        if word == LEAVE:
            raise SystemExit(0)
        if word in ("", REFUSED):
            raise StrettoError(rest or _GONE)
        return word, rest

    def close(self) -> None:
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
    try:
        while True:
            try:
                word, rest = line.ask(NEXT)
            except SystemExit:
                if save is not None:
                    with contextlib.suppress(StrettoError):
                        checkpoint(save)
                raise
            is_over = word == END
            if is_over:
                return
            first, stop = rest.split()
            yield range(int(first), int(stop))
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


def connected(path: str) -> socket.socket:
    """Return a connection to the socket at ``path``, which may be longer than the address of a socket."""
    link = socket.socket(socket.AF_UNIX)
    folder = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY)
    try:
        link.connect(f"/proc/self/fd/{folder}/{os.path.basename(path)}")
    except OSError:
        link.close()
        raise
    finally:
        os.close(folder)
    return link
