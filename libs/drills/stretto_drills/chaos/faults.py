"""The faults themselves: how each is done to real processes and files, and how it is undone.

``inject`` returns on whom; NotNow when there is nobody. ``heal`` returns once what was done is undone, or what was
killed is there again by itself: nothing is ever started here, that is the system's own task. ``release`` takes back
at once what must not stay, whatever happens: nobody is left frozen.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from abc import ABC, abstractmethod
from pathlib import Path

import psutil

from .schedule import Planned
from .world import Image, NotNow, World, send, until

HEALED_S = 150.0
"""what is not there again by then is told as not healed"""
TOLD_S = 2.0
"""after which the loss of parameters would have been told"""
SLOW = 0.10
"""of the time a slow worker is let run"""
HOT = 0.03
PERIOD_S = 0.2
FREEZE_TRIES = 400
FILLER_BYTES = 1 << 20


class Fault(ABC):
    """One planned fault in one world."""

    def __init__(self, planned: Planned, world: World) -> None:
        self.planned = planned
        self.world = world

    @abstractmethod
    async def inject(self) -> str:
        """Do it. Returns on whom. Raises NotNow."""

    @abstractmethod
    async def heal(self) -> bool:
        """Undo it, or wait until the system has; whether it is well again."""

    def release(self) -> None:  # noqa: B027 - most leave nothing
        """Take back at once what must not stay."""


# pods ----------------------------------------------------------------------------------------------------------


class KillPod(Fault):
    """``role`` of the pod; it is replaced under a new name."""

    role = "worker"

    async def inject(self) -> str:
        self._before = set(self.world.record.running(self.role))
        pod = self._victim()
        self.world.kill_pod(pod)
        return pod

    async def heal(self) -> bool:
        """As many as the plan wants run again, the dead one not among them."""
        return await until(self._replaced, HEALED_S)

    def _victim(self) -> str:
        return self.world.pod(self.role, self.planned.chance)

    def _replaced(self) -> bool:
        record = self.world.record
        return record.over or bool(set(record.running(self.role)) - self._before)


class KillServer(KillPod):
    """All pods of the job are replaced, and it goes back to its last checkpoint."""

    role = "ps"

    async def inject(self) -> str:
        self._seen = len(self.world.record.facts)
        return await super().inject()

    def _replaced(self) -> bool:
        """Once a checkpoint is restored on servers that are new; of one that held nothing any more, once it is gone."""
        record = self.world.record
        if record.ended:
            return True
        since = record.facts[self._seen :]
        names = [fact.name for fact in since]
        if "checkpoint-restored" in names:
            return True
        lost = any(fact.name == "servers-changed" and not fact.data["servers"] for fact in since)
        gone = [fact for fact in since if fact.name == "pod-exited" and fact.data["reason"] == "killed"]
        enough = record.plan is not None and len(record.running("ps")) >= record.plan["ps"]
        return enough and not lost and bool(gone) and time.time() - gone[-1].time_s > TOLD_S


class KillServerCold(KillServer):
    """Before, every copy of its images but those in the persistent store is removed, and the cache killed."""

    async def inject(self) -> str:
        if not self.world.checkpoints():
            raise NotNow("no checkpoint is complete yet")
        for image in _all(self.world.checkpoints()):
            for copy in image.in_memory:
                copy.unlink(missing_ok=True)
        with contextlib.suppress(NotNow):
            send([self.world.service("redis")], signal.SIGKILL)
        return await super().inject()


class DamageCheckpoint(KillServer):
    """Every copy of one image of the newest checkpoint is truncated, or has a bit flipped: the one before must do."""

    async def inject(self) -> str:
        complete = self.world.checkpoints()
        if len(complete) < 2:
            raise NotNow("no two checkpoints are complete yet")
        newest = [image for image in complete[-1] if not image.cached]
        if not newest:
            raise NotNow("every image of the newest checkpoint has a copy in the cache, which is out of reach")
        self._victim()  # who is passed over has damaged nothing
        image = newest[int(self.planned.chance * len(newest))]
        how = _truncate if self.planned.chance * 7 % 1 < 0.5 else _flip
        done = how([image.stored, *image.in_memory])
        return f"{await super().inject()}, {image.checkpoint}/{image.pod} {done}"


class KillMover(KillServer):
    """The server that takes buckets, stopped between the freeze of a bucket and its flip, and killed there."""

    async def inject(self) -> str:
        self._seen = len(self.world.record.facts)
        taker, frozen = await self._stop_in_mid_air()
        self.world.kill_pod(taker)
        return taker if frozen else f"{taker} (while it took buckets)"

    async def _stop_in_mid_air(self) -> tuple[str, bool]:
        """Stop it at any moment, and look what the givers say: if one has frozen a bucket, this is the moment."""
        for _ in range(FREEZE_TRIES):
            migration = self.world.record.migration
            if migration is None:
                raise NotNow("the migration was over before a bucket was seen frozen")
            for taker in migration["destinations"]:
                processes = self.world.processes(taker)
                send(processes, signal.SIGSTOP)
                frozen = False
                try:
                    givers = [await self.world.ownership(pod) for pod in migration["sources"] if pod != taker]
                    frozen = any(owned and 2 in (*owned.buckets, *owned.slices) for owned in givers)
                finally:  # also when the run is interrupted while a giver is asked
                    if not frozen:
                        send(processes, signal.SIGCONT)
                if frozen:
                    return taker, True
            await asyncio.sleep(0.003)
        return self.world.pod("ps", self.planned.chance, self._destinations()), False

    def _destinations(self) -> list[str]:
        migration = self.world.record.migration
        return list(migration["destinations"]) if migration else []


class Frozen(Fault):
    """SIGSTOP to some processes for as long as planned, then SIGCONT."""

    _held: list[psutil.Process]

    def _freeze(self, processes: list[psutil.Process]) -> None:
        self._held = processes
        send(processes, signal.SIGSTOP)

    async def heal(self) -> bool:
        self.release()
        return True

    def release(self) -> None:
        send(getattr(self, "_held", []), signal.SIGCONT)


class StopWorker(Frozen):
    """Frozen beyond its lease: what it held goes to another, and then it wakes."""

    async def inject(self) -> str:
        pod = self.world.pod("worker", self.planned.chance)
        self._freeze(self.world.processes(pod))
        return pod


class Throttled(Frozen):
    """A duty cycle of SIGSTOP and SIGCONT: it runs for ``share`` of the time."""

    role, share = "worker", SLOW

    async def inject(self) -> str:
        pod = self.world.pod(self.role, self.planned.chance)
        self._held = self.world.processes(pod)
        self._cycle = asyncio.create_task(self._run(self._held))
        return pod

    async def _run(self, processes: list[psutil.Process]) -> None:
        while any(process.is_running() for process in processes):
            send(processes, signal.SIGSTOP)
            await asyncio.sleep(PERIOD_S * (1 - self.share))
            send(processes, signal.SIGCONT)
            await asyncio.sleep(PERIOD_S * self.share)

    async def heal(self) -> bool:
        self.release()
        with contextlib.suppress(asyncio.CancelledError):
            await self._cycle
        self.release()
        return True

    def release(self) -> None:
        if hasattr(self, "_cycle"):
            self._cycle.cancel()
        super().release()


class HotServer(Throttled):
    """Its peers have all the processor that they want."""

    role, share = "ps", HOT


# services ------------------------------------------------------------------------------------------------------


class KillService(Fault):
    """The supervisor starts it again."""

    number = signal.SIGKILL

    async def inject(self) -> str:
        process = self.world.service(self.planned.service)
        self._pid = process.pid
        send([process], self.number)
        return self.planned.service

    async def heal(self) -> bool:
        return await until(lambda: self.world.ready(self.planned.service, self._pid), HEALED_S)


class StopService(KillService):
    """In good order: it hands over first."""

    number = signal.SIGTERM


class FreezeService(Frozen):
    """Beyond its lease: it may wake to find another in its place."""

    async def inject(self) -> str:
        self._freeze([self.world.service(self.planned.service)])
        return self.planned.service

    async def heal(self) -> bool:
        self.release()
        return await until(lambda: self.world.ready(self.planned.service), HEALED_S)


# memory --------------------------------------------------------------------------------------------------------


class FillMemory(Fault):
    """Not a byte is left in the folder of shared memory."""

    async def inject(self) -> str:
        if self.world.memory is None:
            raise NotNow("the folder of shared memory is not one that may be filled")
        self._filler = self.world.memory / "filler"
        return f"{await asyncio.to_thread(_fill, self._filler)} MiB of {self.world.memory}"

    async def heal(self) -> bool:
        self.release()
        return True

    def release(self) -> None:
        if hasattr(self, "_filler"):
            self._filler.unlink(missing_ok=True)


FAULTS: dict[str, type[Fault]] = {
    "worker-kill": KillPod,
    "worker-kill-migrating": KillPod,
    "worker-stop": StopWorker,
    "worker-slow": Throttled,
    "ps-kill": KillServer,
    "ps-kill-cold": KillServerCold,
    "ps-hot": HotServer,
    "mover-kill": KillMover,
    "actuator-kill-migrating": KillService,
    "service-kill": KillService,
    "service-freeze": FreezeService,
    "service-stop": StopService,
    "bus-kill": KillService,
    "redis-kill": KillService,
    "shm-full": FillMemory,
    "checkpoint-damage": DamageCheckpoint,
}


def _all(checkpoints: list[list[Image]]) -> list[Image]:
    return [image for checkpoint in checkpoints for image in checkpoint]


def _truncate(copies: list[Path]) -> str:
    """By another file in its place: who has mapped the old one reads on, and is not a second victim (SIGBUS)."""
    for copy in copies:
        with contextlib.suppress(OSError):
            draft = copy.with_name(f".{copy.name}.half")
            draft.write_bytes(copy.read_bytes()[: copy.stat().st_size // 2])
            draft.replace(copy)
    return "truncated"


def _flip(copies: list[Path]) -> str:
    """The same bit everywhere: of two copies, neither can stand in for the other."""
    for copy in copies:
        with contextlib.suppress(OSError), copy.open("r+b") as file:
            at = copy.stat().st_size // 3
            file.seek(at)
            byte = file.read(1)
            file.seek(at)
            file.write(bytes([byte[0] ^ 0x10]))
    return "with a bit flipped"


def _fill(path: Path) -> int:
    """Until the file system is full; how many MiB that took."""
    written = 0
    with path.open("wb", buffering=0) as file:
        for size in (FILLER_BYTES, 4096):
            with contextlib.suppress(OSError):
                while True:
                    written += file.write(b"\0" * size)
    return written >> 20
