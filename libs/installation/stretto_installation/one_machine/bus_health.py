"""The bus heals by itself: a nats-server that could not store is restarted once there is room.

A nats-server does not try a failed write again: a stream that found a full disk or no file descriptor stores nothing
until the server is started again. The supervisor asks the server for such streams, by the server's own account, and
looks at the room itself. Where nobody makes room, it gives up a reserve, so that the bus stores what makes room: that a
job is cancelled, and that the one which filled the disk has failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
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
ROOM_BYTES, ROOM_FILES = 32 << 20, 100
"""Free bytes, and files that the disk can still have, with which a restart is worth its while: streams write on, and
recover (taste)."""
ROOM_DESCRIPTORS = 64
RESERVE_FILES, RESERVE_FILE_BYTES = 512, 128 << 10
"""The reserve, 64 MiB: as many files as the bus may have to make (taste)."""
PLENTY_BYTES, PLENTY_FILES = 256 << 20, 4 * RESERVE_FILES
"""Room from which on the reserve is taken (taste)."""
GIVE_UP_S = 12.0
"""Seconds without room after which the reserve is given up: a job that filled the disk is ended before (taste)."""
NO_BYTES, NO_FILES, NO_DESCRIPTORS = 1 << 20, 8, 8
"""Room with less than which the server stores nothing. While it lacks descriptors, it answers that all is well."""
PAUSE_FIRST_S, PAUSE_MOST_S = 5.0, 60.0
"""Pauses between restarts, each twice the last one's, until the server has stored for longer than that."""
WRITE_ERROR, SHUT_DOWN = "write error: ", "JetStream not enabled"
"""Words of a server after a write that failed. After some it shuts its whole store down, and says nothing else."""
NOTE = "bus.note"
NOTE_BYTES = 4096
NEARLY_FULL = "the disk is nearly full ({}): the bus stores, and has no reserve left; make room (`stretto clean`)"
STORES, STORES_NOT = "+", "-"
"""First character of the note."""
FILES_TOLD = 10_000
"""With more than these left, files are not what a disk lacks."""


@dataclass(frozen=True, slots=True)
class Look:
    """A look at the server: the write that failed, empty where none did, and the room that it has."""

    error: str
    free_bytes: float
    free_descriptors: int
    free_files: float = math.inf
    has_reserve: bool = False


class Verdict(NamedTuple):
    """The fault of the bus, in plain words, empty while it has none; whether it stores, and what is to be done now."""

    why: str
    stores: bool = True
    restart: bool = False
    take: bool = False
    give_up: bool = False
    """The two things that are done with the reserve."""


class Healer:
    """Decides when to restart a server, and when to give up the reserve."""

    def __init__(self) -> None:
        self._pause_s = PAUSE_FIRST_S
        self._restarted_s = -PAUSE_MOST_S
        self._lacks_room_s: float | None = None
        """When the room began to lack."""

    def judge(self, look: Look, now: float) -> Verdict:
        least_bytes, least_files = (ROOM_BYTES, ROOM_FILES) if look.error else (NO_BYTES, NO_FILES)
        if look.free_bytes < least_bytes or look.free_files < least_files:
            return self._without_room(look, now)
        self._lacks_room_s = None
        if look.free_descriptors < (ROOM_DESCRIPTORS if look.error else NO_DESCRIPTORS):
            return Verdict(
                "the bus stores nothing, it has no file descriptors left: it is restarted by itself once connections "
                "have ended; raise the limit of open files (`ulimit -Hn`) before the next start",
                stores=False,
            )
        if not look.error:
            if now - self._restarted_s > 2 * self._pause_s:
                self._pause_s = PAUSE_FIRST_S
            take = not look.has_reserve and look.free_bytes >= PLENTY_BYTES and look.free_files >= PLENTY_FILES
            return Verdict("" if look.has_reserve or take else NEARLY_FULL.format(_left(look)), take=take)
        if now - self._restarted_s < self._pause_s:
            return Verdict(f"the bus stored nothing ({look.error}), and is being restarted", stores=False)
        again = now - self._restarted_s < 2 * self._pause_s
        self._pause_s = min(2 * self._pause_s, PAUSE_MOST_S) if again else PAUSE_FIRST_S
        self._restarted_s = now
        return Verdict(f"the bus stored nothing ({look.error}), and is being restarted", stores=False, restart=True)

    def _without_room(self, look: Look, now: float) -> Verdict:
        self._pause_s = PAUSE_FIRST_S  # a restart did not fail for itself
        since_s = self._lacks_room_s = now if self._lacks_room_s is None else self._lacks_room_s
        return Verdict(
            f"the bus stores nothing, its disk is full ({_left(look)}): make room; with {figures.size(ROOM_BYTES)} and "
            f"{ROOM_FILES} files free the bus is restarted by itself, and everything goes on",
            stores=False,
            give_up=look.has_reserve and now - since_s >= GIVE_UP_S,
        )


def _left(look: Look) -> str:
    files = f", {look.free_files:.0f} files" * (look.free_files < FILES_TOLD)
    return f"{figures.size(look.free_bytes)}{files} free"


class Reserve:
    """Room on the disk that is kept for the bus: files that nobody reads, each with its blocks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "reserve"

    @property
    def size_bytes(self) -> int:
        """Bytes of the reserve, 0 while it is given up."""
        return RESERVE_FILES * RESERVE_FILE_BYTES if self._folder.is_dir() else 0

    def take(self) -> None:
        """Take the room. Raises OSError."""
        draft = self._folder.with_suffix(".tmp")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(mode=0o700)
        try:
            for number in range(RESERVE_FILES):
                with (draft / str(number)).open("wb") as file:
                    os.posix_fallocate(file.fileno(), 0, RESERVE_FILE_BYTES)
            draft.rename(self._folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def give_up(self) -> None:
        """Give the room back."""
        shutil.rmtree(self._folder, ignore_errors=True)


class BusHealth:
    """Looks at a server again and again, and notes in the state folder what is wrong with it."""

    def __init__(self, folder: Path, store: Path, pid: Callable[[], int | None], restart: Callable[[], None]) -> None:
        self._store, self._pid, self._restart = store, pid, restart
        self._note = folder / "run" / NOTE
        self._reserve = Reserve(folder)
        self._healer = Healer()

    async def run(self, url: str, login: Login, say: Callable[[str], None]) -> None:
        """Look until cancelled; ``say`` is told each new reason."""
        said, take_from_s = "", 0.0
        self._write(Verdict(""))
        bus = await Bus.connect(url, login)
        try:
            while True:
                verdict = self._healer.judge(await self._look(bus), asyncio.get_running_loop().time())
                if verdict.why != said:
                    self._write(verdict)
                    if verdict.why:
                        say(verdict.why)
                    said = verdict.why
                if verdict.restart:
                    self._restart()
                if verdict.give_up:
                    say("the reserve is given up")
                    await asyncio.to_thread(self._reserve.give_up)
                if verdict.take and asyncio.get_running_loop().time() >= take_from_s:
                    try:
                        await asyncio.to_thread(self._reserve.take)
                    except OSError:  # somebody else took the room, or has a quota of it
                        take_from_s = asyncio.get_running_loop().time() + PAUSE_MOST_S
                await asyncio.sleep(LOOK_S)
        finally:
            self._write(Verdict(""))
            await bus.close()

    async def _look(self, bus: Bus) -> Look:
        error, free_bytes, free_files, free_descriptors = "", math.inf, math.inf, ROOM_DESCRIPTORS
        with contextlib.suppress(BusFault):  # it starts, or has no time; services say so themselves
            error = write_error((await bus.request("$SYS.REQ.SERVER.PING.HEALTHZ", DETAILS, timeout_s=ASK_S)).data)
        pid = self._pid()
        with contextlib.suppress(OSError):
            if pid is not None:
                free_descriptors = descriptors_of(pid) - len(os.listdir(f"/proc/{pid}/fd"))
        with contextlib.suppress(OSError):
            disk = os.statvfs(self._store)
            free_bytes = disk.f_bavail * disk.f_frsize
            free_files = disk.f_favail if disk.f_files else math.inf
        return Look(error, free_bytes, free_descriptors, free_files, self._reserve.size_bytes > 0)

    def _write(self, verdict: Verdict) -> None:
        """Write in place of the note before: on a full disk no longer file would find room."""
        note = (STORES if verdict.stores else STORES_NOT) + verdict.why
        with contextlib.suppress(OSError):
            descriptor = os.open(self._note, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                os.pwrite(descriptor, note.encode()[:NOTE_BYTES].ljust(NOTE_BYTES), 0)
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
    failed = (text.partition(WRITE_ERROR)[2] or SHUT_DOWN for text in texts if WRITE_ERROR in text or SHUT_DOWN in text)
    return next(failed, "")


def noted(folder: Path) -> Verdict:
    """Return what is wrong with the bus of an installation, as far as is known."""
    with contextlib.suppress(OSError):
        note = (folder / "run" / NOTE).read_text(errors="replace").strip()
        return Verdict(note[1:], stores=not note.startswith(STORES_NOT))
    return Verdict("")
