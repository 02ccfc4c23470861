"""The guard of what all processes of a user, or of the machine, have together, and one pod can use up.

No limit of the kernel keeps a pod from taking all ports of outgoing connections, or all places for watched files, of
which each server needs one for each connection. So the pod that holds most of them is ended when there are none left.
The same befalls all pods of a job that has filled the disk or the shared memory, and what they wrote there is given
back.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import select
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import structlog
from stretto_bus.tasks import end

from .descriptors import ports, watches
from .processes import PodProcesses
from .records import Record, Records
from .room import Disk, SharedMemory, beyond_images, is_short, to_blame

LOOK_S, AGAIN_S = 1.0, 5.0
"""Pauses between looks, the longer one after nobody was to blame."""
LOOPBACK = "127.0.0.1"
PORTS, WATCHES = "ports of connections", "places for watched files (epoll)"
HELD: dict[str, tuple[Callable[[Iterable[int]], float], int]] = {PORTS: (ports, 1500), WATCHES: (watches, 20_000)}
"""Counts of what is used up, of a pod's processes, and the fewest for which a pod is to blame: the kernel gives 28,000
ports, and a user millions of watches; an honest pod has some hundred of both (taste)."""

log = structlog.get_logger("stretto.actuator")


class Guard:
    """Ends the pod, or the pods of the job, that have used up what all processes need."""

    def __init__(self, records: Records, processes: PodProcesses, disk: Disk, memory: SharedMemory) -> None:
        self._records, self._processes, self._disk, self._memory = records, processes, disk, memory
        self._tasks: list[asyncio.Task[None]] = []
        self.ended: dict[tuple[str, str], str] = {}
        """Each pod that was ended, with the words for what was used up."""

    def start(self) -> None:
        """Look from now on, in the background."""
        for look in (self._look_at_shares, self._look_at_room, self._look_at_memory):
            self._tasks.append(asyncio.create_task(self._run(look), name="end pods that use up what all need"))

    async def stop(self) -> None:
        for task in self._tasks:
            await end(task)

    async def _run(self, look: Callable[[bool], bool]) -> None:
        """Look again and again. ``look`` is told, and returns, whether something is used up and nobody is to blame."""
        late = False
        while True:
            await asyncio.sleep(AGAIN_S if late else LOOK_S)
            try:
                late = await asyncio.to_thread(look, late)
                self._write_down()
            except Exception as error:  # the machine lacks more than that, such as files: it is tried again
                log.warning("what all processes need is used up, and who did it is not known yet", error=str(error))

    def _look_at_shares(self, late: bool) -> bool:
        if not (found := used_up()):
            return False
        count, least = HELD[found]
        held = [(count(each.pid for each in self._processes.members(record)), record) for record in self._records.all()]
        shown = [each for each in held if least <= each[0] < math.inf]
        most, record = max(shown or held, key=lambda each: each[0], default=(0, None))
        if record is None or most < least:
            return self._nobody(found, late)
        self._end([record], found)
        return False

    def _look_at_room(self, late: bool) -> bool:
        free = self._disk.free()
        if not is_short(free, late=late):
            return late and is_short(free, late=False)
        use = to_blame(free, self._disk.uses(), late=late)
        if use is None:
            return self._nobody(f"the disk: {free} are left", late)
        found = f"the disk: {use.had} were free when its job began, of which the job held {use.own}"
        found += (f", {use.kept} of checkpoints" + ", and more that it hides" * use.hides) * late
        found += f"; complete ones stay until `stretto clean {use.job} --checkpoints`" * late
        self._end([*self._records.all(use.job)], found)
        self._disk.give_back(use.job, checkpoints=late)
        return False

    def _look_at_memory(self, late: bool) -> bool:
        if not self._memory.is_short():
            return False
        found = beyond_images(self._memory.images())
        if found is None or not late:
            return True  # looked at again: much may be in use for good, or for a moment
        held, servers = (f"{size / 2**20:,.0f} MiB" for size in (found.held_bytes, found.servers_bytes))
        why = f"shared memory: the job held {held} there, and its parameter servers may have {servers} of memory"
        self._end([*self._records.all(found.job)], why)
        self._memory.give_back(found.job)
        return False

    def _end(self, records: Sequence[Record], found: str) -> None:
        for record in records:
            log.warning("used up, and the pod that did it is ended", what=found, job=record.job, pod=record.pod)
            self.ended[record.job, record.pod] = found
        for record in records:
            self._processes.kill(record)

    def _nobody(self, found: str, late: bool) -> bool:
        if not late:
            log.warning("used up, but not by a pod", what=found)
        return True

    def _write_down(self) -> None:
        """Write down what was used up, if the disk has room: a restarted actuator tells it, too."""
        for (job, pod), why in [*self.ended.items()]:
            record = self._records.read(job, pod)
            if record is not None and not record.used_up:
                with contextlib.suppress(OSError):
                    self._records.write(replace(record, used_up=why))


def used_up() -> str:
    """Return what is used up, in plain words; empty: nothing."""
    try:
        with socket.socket() as probe:
            probe.bind((LOOPBACK, 0))
            with select.epoll() as watching:
                watching.register(probe)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return PORTS
        if error.errno == errno.ENOSPC:
            return WATCHES
    return ""
