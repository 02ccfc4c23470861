"""The bus heals by itself: a nats-server that could not store is restarted once there is room.

A nats-server does not try a failed write again: a stream that found a full disk or no file descriptor stores nothing
until the server is started again. The supervisor asks the server for such streams, by the server's own account, and
looks at the room itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from stretto_bus.bus import Bus
from stretto_bus.faults import BusFault
from stretto_bus.login import Login
from stretto_client import figures

from ..server import descriptors_of

LOOK_S = 1.0
ASK_S = 2.0
ROOM_BYTES = 64 << 20
"""Free bytes with which a restart is worth its while: streams write on, and recover (taste)."""
ROOM_DESCRIPTORS = 64
NO_BYTES, NO_DESCRIPTORS = 1 << 20, 8
"""Room with less than which the server stores nothing. While it lacks descriptors, it answers that all is well."""
PAUSE_FIRST_S, PAUSE_MOST_S = 5.0, 60.0
"""Pauses between restarts, each twice the last one's, until the server has stored for longer than that."""
WRITE_ERROR = "write error: "
NOTE = "bus.note"
NOTE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Look:
    """A look at the server: the write that failed, empty where none did, and the room that it has."""

    error: str
    free_bytes: int
    free_descriptors: int


class Verdict(NamedTuple):
    """The reason why the bus does not store, in plain words, empty while it does; and whether to restart it now."""

    why: str
    restart: bool


class Healer:
    """Decides when to restart a server."""

    def __init__(self) -> None:
        self._pause_s = PAUSE_FIRST_S
        self._restarted_s = -PAUSE_MOST_S

    def judge(self, look: Look, now: float) -> Verdict:
        if look.free_bytes < (ROOM_BYTES if look.error else NO_BYTES):
            free, wanted = figures.size(look.free_bytes), figures.size(ROOM_BYTES)
            return Verdict(
                f"the bus stores nothing, its disk is full ({free} free): make room; with {wanted} free the bus is "
                "restarted by itself, and everything goes on",
                False,
            )
        if look.free_descriptors < (ROOM_DESCRIPTORS if look.error else NO_DESCRIPTORS):
            return Verdict(
                "the bus stores nothing, it has no file descriptors left: it is restarted by itself once connections "
                "have ended; raise the limit of open files (`ulimit -Hn`) before the next start",
                False,
            )
        if not look.error:
            if now - self._restarted_s > 2 * self._pause_s:
                self._pause_s = PAUSE_FIRST_S
            return Verdict("", False)
        if now - self._restarted_s < self._pause_s:
            return Verdict(f"the bus stored nothing ({look.error}), and is being restarted", False)
        again = now - self._restarted_s < 2 * self._pause_s
        self._pause_s = min(2 * self._pause_s, PAUSE_MOST_S) if again else PAUSE_FIRST_S
        self._restarted_s = now
        return Verdict(f"the bus stored nothing ({look.error}), and is being restarted", True)


class BusHealth:
    """Looks at a server again and again, and notes in the state folder why it does not store."""

    def __init__(self, folder: Path, store: Path, pid: Callable[[], int | None], restart: Callable[[], None]) -> None:
        self._store, self._pid, self._restart = store, pid, restart
        self._note = folder / "run" / NOTE
        self._healer = Healer()

    async def run(self, url: str, login: Login, say: Callable[[str], None]) -> None:
        """Look until cancelled; ``say`` is told each new reason."""
        said = ""
        self._write("")
        bus = await Bus.connect(url, login)
        try:
            while True:
                verdict = self._healer.judge(await self._look(bus), asyncio.get_running_loop().time())
                if verdict.why != said:
                    self._write(verdict.why)
                    if verdict.why:
                        say(verdict.why)
                    said = verdict.why
                if verdict.restart:
                    self._restart()
                await asyncio.sleep(LOOK_S)
        finally:
            self._write("")
            await bus.close()

    async def _look(self, bus: Bus) -> Look:
        error, free_bytes, free_descriptors = "", ROOM_BYTES, ROOM_DESCRIPTORS
        with contextlib.suppress(BusFault):  # it starts, or has no time; services say so themselves
            error = write_error((await bus.request("$SYS.REQ.SERVER.PING.HEALTHZ", DETAILS, timeout_s=ASK_S)).data)
        pid = self._pid()
        with contextlib.suppress(OSError):
            if pid is not None:
                free_descriptors = descriptors_of(pid) - len(os.listdir(f"/proc/{pid}/fd"))
        with contextlib.suppress(OSError):
            free_bytes = shutil.disk_usage(self._store).free
        return Look(error, free_bytes, free_descriptors)

    def _write(self, why: str) -> None:
        """Write in place of the note before: on a full disk no longer file would find room."""
        with contextlib.suppress(OSError):
            descriptor = os.open(self._note, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                os.pwrite(descriptor, why.encode()[:NOTE_BYTES].ljust(NOTE_BYTES), 0)
            finally:
                os.close(descriptor)


DETAILS = json.dumps({"details": True}).encode()


def write_error(answer: bytes) -> str:
    """Return the first write that failed, of a server's answer about its health; empty: none did."""
    try:
        body = json.loads(answer)["data"]
        texts = [body.get("error", ""), *(str(each.get("error", "")) for each in body.get("errors") or ())]
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""
    return next((text.partition(WRITE_ERROR)[2] for text in texts if WRITE_ERROR in text), "")


def noted(folder: Path) -> str:
    """Return the reason why the bus of an installation does not store; empty while it does, as far as is known."""
    with contextlib.suppress(OSError):
        return (folder / "run" / NOTE).read_text(errors="replace").strip()
    return ""
