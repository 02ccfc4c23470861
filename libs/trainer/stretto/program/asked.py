"""The socket at which a program asks for its batches: one of its processes at a time, one line at a time.

Other connections, as those for items, are served beside."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TextIO

from ..agent import REFUSED

ASKING_S = 2.0
"""Seconds for which a connection of the program waits until the one before it is over."""
SILENT_S = 60.0
"""Seconds after which a program that has asked for nothing is told of in the pod's log."""

log = logging.getLogger("stretto.worker")


Served = Callable[[socket.socket, TextIO, str], None]
"""Serves a connection until its end, of which the first line was read."""


class AskedSocket:
    """Answers the program's processes by ``answer``; ``left`` is called when one of them has closed its connection.

    ``others``: by the first word of a first line, what serves connections that ask for no samples.
    """

    def __init__(
        self, answer: Callable[[str], str], left: Callable[[], None], others: Mapping[str, Served] | None = None
    ) -> None:
        self._answer, self._left, self._others = answer, left, others or {}
        self.asking = threading.Lock()
        """Held while a process of the program takes the samples."""
        self._links: set[socket.socket] = set()
        self._is_over = False
        """True once the program is gone: whatever was asked last gets no answer."""
        self._silence: threading.Timer | None = None

    def listen(self, folder: Path) -> str:
        """Listen for the program's processes; return the path of the socket."""
        path = folder / "agent.sock"
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        directory = os.open(folder, os.O_PATH | os.O_DIRECTORY)  # the path may be too long for an address
        listener.bind(f"/proc/self/fd/{directory}/{path.name}")
        os.close(directory)
        listener.listen()
        threading.Thread(target=self._accept, args=(listener,), name="agent", daemon=True).start()
        return str(path)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            link, _ = listener.accept()
            threading.Thread(target=self._serve, args=(link,), name="program", daemon=True).start()

    def _serve(self, link: socket.socket) -> None:
        """Answer one process of the program until it closes its connection."""
        self._links.add(link)
        try:
            self._answer_all(link)
        except OSError:  # the program was killed before it got its answer
            pass
        finally:
            self._links.discard(link)

    def _answer_all(self, link: socket.socket) -> None:
        with link, link.makefile("r", encoding="ascii") as asked:
            request = asked.readline().strip()  # before any answer, which an unread request would lose
            if not request:
                return
            if (serve := self._others.get(request.split()[0])) is not None:
                serve(link, asked, request)
                return
            self._end_silence()
            if not self.asking.acquire(timeout=ASKING_S):
                refused = "another process of this pod takes its samples: let one of them ask, and hand them on"
                link.sendall(f"{REFUSED} {refused}\n".encode())
                return
            try:
                while request and not self._is_over:
                    link.sendall(f"{self._answer(request)}\n".encode())
                    request = asked.readline().strip()
            finally:
                self._left()
                self.asking.release()

    def hang_up(self) -> None:
        """End all connections: a process that the program left behind may hold its own for ever."""
        self._is_over = True
        self._end_silence()
        for link in list(self._links):
            with contextlib.suppress(OSError):  # it is over already
                link.shutdown(socket.SHUT_RDWR)

    def begin(self) -> None:
        """Answer a program that is started now."""
        self._is_over = False
        self._silence = threading.Timer(SILENT_S, _tell_of_silence)
        self._silence.daemon = True
        self._silence.start()

    def _end_silence(self) -> None:
        if self._silence is not None:
            self._silence.cancel()


def _tell_of_silence() -> None:
    log.warning(
        "the program has asked for no sample for %g s: it has to iterate over stretto.agent.samples(), without which "
        "nothing counts; a program that takes none is of level 0, without dataset",
        SILENT_S,
    )
