"""The samples of a program that Stretto runs, for the program itself: ``for batch in stretto.agent.samples(): …``.

Nothing but the standard library is needed here: the process that runs the program, :mod:`stretto.program`, leases
shards, sends heartbeats and reports, and the program asks it for one batch after the other over a socket.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

from .errors import StrettoError

ADDRESS_VARIABLE = "STRETTO_AGENT"
"""Variable of a program with the path of the socket at which it asks for batches."""
BATCH, END, LEAVE, REFUSED = "batch", "end", "leave", "refused"
"""The first words of an answer; after ``batch`` follow the first number and the one behind the last."""

_GONE = "the process that runs this program is gone; end, and Stretto runs it again"


def samples() -> Iterator[range]:
    """Yield the numbers of the samples of one batch after the other, until all epochs are over.

    A batch counts as trained once the next one is asked for. Which batches a worker gets is decided while the job
    runs: each sample goes to one worker, and that of a lost worker to another one. A worker that is to leave ends its
    program here, by SystemExit, so that ``finally`` and ``atexit`` still run.

    Raises:
        StrettoError: the program is not run by Stretto, another process of the pod takes its samples, or the process
            that runs the program is gone.
    """
    path = os.environ.get(ADDRESS_VARIABLE)
    if not path:
        raise StrettoError(
            f"{ADDRESS_VARIABLE} is not set: submit a job file with program.command and a dataset, and Stretto runs "
            "this program with it"
        )
    try:
        link = connected(path)
    except OSError as error:
        raise StrettoError(f"{ADDRESS_VARIABLE} = {path} cannot be reached: {error.strerror}; {_GONE}") from error
    with link, link.makefile("r", encoding="ascii") as answers:
        while True:
            try:
                link.sendall(b"next\n")
                word, _, rest = answers.readline().strip().partition(" ")
            except OSError as error:
                raise StrettoError(_GONE) from error
            if word == BATCH:
                first, stop = rest.split()
                yield range(int(first), int(stop))
            elif word == END:
                return
            elif word == LEAVE:
                raise SystemExit(0)
            else:
                raise StrettoError(rest or _GONE)


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
