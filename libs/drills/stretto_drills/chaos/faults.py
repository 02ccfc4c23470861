"""The faults: how each is injected into real processes and files, and how it is healed.

``inject`` returns the victim, or raises NotNow if there is none. ``heal`` returns once the fault is undone, or the
killed process is back by itself: restarting is the system's own task, so nothing is started here. ``release`` undoes
at once what must never stay: no process is left frozen.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
import zlib
from abc import ABC, abstractmethod
from functools import partial
from pathlib import Path

import psutil
from stretto_bus.faults import BusFault
from stretto_installation.errors import NotRunning
from stretto_installation.one_machine.state import read_state
from stretto_messages.gateway import JobCancelled
from stretto_wire.contract.registry import SERVICES
from stretto_wire.contract.submission import JobSubmitted
from stretto_wire.jobspec.spec import JobSpec

from ..walls import OPEN, TRIED
from . import hostile
from .schedule import Planned
from .target import ChaosTarget, Image, NotNow, send, until

HEALED_S = 150.0
"""A victim that is not back by then counts as not healed."""
TOLD_S = 2.0
"""The loss of parameters would be published within this time."""
SLOW = 0.10
"""Share of the time that a slow worker runs."""
HOT = 0.03
"""Share of the time that a throttled server runs."""
PERIOD_S = 0.2
FREEZE_TRIES = 400
STARTED_S, TRIED_S = 60.0, 120.0
"""Times within which a hostile job gets a pod, and in which its code has tried all walls."""
FILLER_BYTES = 1 << 20
PAGE_BYTES = 4096


class PlannedFault(ABC):
    """One planned fault at one target."""

    def __init__(self, planned: Planned, target: ChaosTarget) -> None:
        self.planned = planned
        self.target = target

    @abstractmethod
    async def inject(self) -> str:
        """Inject the fault; returns the victim. Raises NotNow."""

    @abstractmethod
    async def heal(self) -> bool:
        """Undo the fault, or wait until the system has; returns whether all is well again."""

    def release(self) -> None:  # noqa: B027 - most faults leave nothing
        """Undo at once the effects that must never stay."""


# pods ----------------------------------------------------------------------------------------------------------


class KillPod(PlannedFault):
    """Kill a pod of ``role``; it is replaced under a new name."""

    role = "worker"

    async def inject(self) -> str:
        self._before = set(self.target.record.running(self.role))
        pod = self._victim()
        self.target.kill_pod(pod)
        return pod

    async def heal(self) -> bool:
        """Wait until the victim is replaced."""
        return await until(self._replaced, HEALED_S)

    def _victim(self) -> str:
        return self.target.pod(self.role, self.planned.chance)

    def _replaced(self) -> bool:
        record = self.target.record
        return record.over or bool(set(record.running(self.role)) - self._before)


class KillStage(KillPod):
    """Kill a worker of a later stage: the workers that asked it ask another one, or compute by themselves."""

    def _victim(self) -> str:
        staged = [pod.name for pod in self.target.record.pods.values() if pod.stage]
        if not staged:
            raise NotNow("no worker is of a later stage")
        return self.target.pod(self.role, self.planned.chance, staged)


class KillServer(KillPod):
    """Kill a parameter server: its columns come back from the last checkpoint, or everything does."""

    role = "ps"

    async def inject(self) -> str:
        self._seen = len(self.target.record.facts)
        return await super().inject()

    def _replaced(self) -> bool:
        """Return whether what the victim owned is back, or a victim that held no parameters is gone."""
        record = self.target.record
        if record.ended:
            return True
        since = record.facts[self._seen :]
        names = [fact.name for fact in since]
        decided = any(fact.name == "recomputation-decided" and fact.data["granted"] for fact in since)
        if decided or "checkpoint-restored" in names:
            return True
        lost = "parameters-lost" in names
        lost |= any(fact.name == "servers-changed" and not fact.data["servers"] for fact in since)
        gone = [fact for fact in since if fact.name == "pod-exited" and fact.data["reason"] == "killed"]
        enough = record.plan is not None and len(record.running("ps")) >= record.plan["ps"]
        return enough and not lost and bool(gone) and time.time() - gone[-1].time_s > TOLD_S


class KillServerCold(KillServer):
    """Kill a server after removing its images from shared memory and killing the cache: only the store has them."""

    async def inject(self) -> str:
        if not self.target.checkpoints():
            raise NotNow("no checkpoint is complete yet")
        for image in _all(self.target.checkpoints()):
            for copy in image.in_memory:
                copy.unlink(missing_ok=True)
        with contextlib.suppress(NotNow):
            send([self.target.service("redis")], signal.SIGKILL)
        return await super().inject()


class DamageCheckpoint(KillServer):
    """Truncate, or flip a bit of, every copy of an image of the newest checkpoint: the one before must be used."""

    async def inject(self) -> str:
        complete = self.target.checkpoints()
        if len(complete) < 2:
            raise NotNow("no two checkpoints are complete yet")
        newest = [image for image in complete[-1] if not image.cached]
        if not newest:
            raise NotNow("every image of the newest checkpoint has a copy in the cache, which is out of reach")
        self._victim()  # before any damage: without a victim the fault is skipped
        image = newest[int(self.planned.chance * len(newest))]
        how = _truncate if self.planned.chance * 7 % 1 < 0.5 else _flip
        done = how([image.stored, *image.in_memory])
        return f"{await super().inject()}, {image.checkpoint}/{image.pod} {done}"


class KillMover(KillServer):
    """Kill the server that receives buckets, stopped between the freeze of a bucket and its flip."""

    async def inject(self) -> str:
        self._seen = len(self.target.record.facts)
        taker, frozen = await self._stop_in_mid_air()
        self.target.kill_pod(taker)
        return taker if frozen else f"{taker} (while it took buckets)"

    async def _stop_in_mid_air(self) -> tuple[str, bool]:
        """Stop the receiver at some moment and ask the givers: if one has frozen a bucket, this is the moment."""
        for _ in range(FREEZE_TRIES):
            migration = self.target.record.migration
            if migration is None:
                raise NotNow("the migration was over before a bucket was seen frozen")
            for taker in migration["destinations"]:
                processes = self.target.processes(taker)
                send(processes, signal.SIGSTOP)
                frozen = False
                try:
                    givers = [await self.target.ownership(pod) for pod in migration["sources"] if pod != taker]
                    frozen = any(owned and 2 in (*owned.buckets, *owned.slices) for owned in givers)
                finally:  # also if the run is interrupted while a giver is asked
                    if not frozen:
                        send(processes, signal.SIGCONT)
                if frozen:
                    return taker, True
            await asyncio.sleep(0.003)
        return self.target.pod("ps", self.planned.chance, self._destinations()), False

    def _destinations(self) -> list[str]:
        migration = self.target.record.migration
        return list(migration["destinations"]) if migration else []


class Frozen(PlannedFault):
    """Freeze processes (SIGSTOP) for as long as planned, then let them continue (SIGCONT)."""

    _held: list[psutil.Process]

    def _freeze(self, processes: list[psutil.Process]) -> None:
        self._held = processes
        send(processes, signal.SIGSTOP)

    async def heal(self) -> bool:
        self.release()
        return True

    def release(self) -> None:
        send(getattr(self, "_held", []), signal.SIGCONT)


class KillDataWorker(KillPod):
    """Kill a data worker with its lanes: others, or the workers themselves, prepare what it had in hand."""

    role = "data"


class StopDataWorker(Frozen):
    """Freeze a data worker with its lanes: what it had in hand comes late, when it is not wanted any more."""

    async def inject(self) -> str:
        pod = self.target.pod("data", self.planned.chance)
        self._freeze(self.target.processes(pod))
        return pod


class StopWorker(Frozen):
    """Freeze a worker beyond its lease: its shard goes to another worker, and then it wakes."""

    async def inject(self) -> str:
        pod = self.target.pod("worker", self.planned.chance)
        self._freeze(self.target.processes(pod))
        return pod


class Throttled(Frozen):
    """Slow a pod by a duty cycle of SIGSTOP and SIGCONT: it runs for ``share`` of the time."""

    role, share = "worker", SLOW

    async def inject(self) -> str:
        pod = self.target.pod(self.role, self.planned.chance)
        self._held = self.target.processes(pod)
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
    """Throttle a parameter server while its peers have all the processor that they want."""

    role, share = "ps", HOT


# services ------------------------------------------------------------------------------------------------------


class KillService(PlannedFault):
    """Kill a service; the supervisor restarts it."""

    number = signal.SIGKILL

    async def inject(self) -> str:
        process = self.target.service(self.planned.service)
        self._pid = process.pid
        send([process], self.number)
        return self.planned.service

    async def heal(self) -> bool:
        return await until(lambda: self.target.ready(self.planned.service, self._pid), HEALED_S)


class StopService(KillService):
    """Stop a service in good order: it hands over first."""

    number = signal.SIGTERM


class FreezeService(Frozen):
    """Freeze a service beyond its lease: another owner may have taken its place when it wakes."""

    async def inject(self) -> str:
        self._freeze([self.target.service(self.planned.service)])
        return self.planned.service

    async def heal(self) -> bool:
        self.release()
        return await until(lambda: self.target.ready(self.planned.service), HEALED_S)


# memory --------------------------------------------------------------------------------------------------------


class FillMemory(PlannedFault):
    """Fill the folder of shared memory to the last byte."""

    async def inject(self) -> str:
        if self.target.memory is None:
            raise NotNow("the folder of shared memory is not one that may be filled")
        self._filler = self.target.memory / "filler"
        return f"{await asyncio.to_thread(_fill, self._filler)} MiB of {self.target.memory}"

    async def heal(self) -> bool:
        self.release()
        return True

    def release(self) -> None:
        if hasattr(self, "_filler"):
            self._filler.unlink(missing_ok=True)


class FillLog(PlannedFault):
    """Let no file of a parameter server grow (RLIMIT_FSIZE), as on a full disk: its rows stay in memory."""

    async def inject(self) -> str:
        pod = self.target.pod("ps", self.planned.chance)
        self._server = _log_of(self.target, pod)[0]
        self._limits = self._server.rlimit(psutil.RLIMIT_FSIZE)
        self._server.rlimit(psutil.RLIMIT_FSIZE, (0, self._limits[1]))
        return pod

    async def heal(self) -> bool:
        self.release()
        return True

    def release(self) -> None:
        if hasattr(self, "_limits"):
            with contextlib.suppress(psutil.Error):
                self._server.rlimit(psutil.RLIMIT_FSIZE, self._limits)


class DamageLog(KillServer):
    """Flip a bit in each page of a parameter server's cold rows: it must leave before it serves one of them."""

    async def inject(self) -> str:
        self._seen = len(self.target.record.facts)
        pod = self._victim()
        _, logs = _log_of(self.target, pod)
        flipped = await asyncio.to_thread(lambda: sum(map(_flip_pages, logs)))
        return f"{pod}, {flipped} pages of cold rows"

    def _replaced(self) -> bool:
        """Return whether the columns of the victim are back: it left by itself, or nobody has needed a cold row yet."""
        record = self.target.record
        return record.over or super()._replaced()


# other jobs ----------------------------------------------------------------------------------------------------


class Hostile(PlannedFault):
    """Run another job of the same partition: its code tries the walls around it, and with the credentials of its pod
    this process sends whatever they allow."""

    async def inject(self) -> str:
        victim, folder = self.target.record.job, self.target.folder
        try:
            url = read_state(folder)["nats_url"]
        except (NotRunning, KeyError) as error:
            raise NotNow(f"{folder} has no bus that a hostile job could reach") from error
        name = f"hostile-{self.planned.number}-{zlib.crc32(victim.encode()):08x}"  # no name is given to a job twice
        self._job = job = hostile.job_beside(victim, name)
        submitted = JobSubmitted(job=job, spec=JobSpec.parse(hostile.document_for(job)))
        try:
            await self.target.client.publish(submitted, f"chaos:{job}:submitted")
        except BusFault as error:
            raise NotNow(f"the bus takes no job: {error}") from error
        self._pod = folder / "pods" / job / hostile.POD
        credentials = self._pod / "files" / "bus.creds"
        if not await until(credentials.exists, STARTED_S):
            await self.heal()
            raise NotNow(f"{job} gets no pod")
        dice = random.Random(f"hostile 2 {self.planned.chance}")  # the number grows with whatever changes what is drawn
        text = await asyncio.to_thread(credentials.read_text)
        self._attacking = asyncio.create_task(hostile.attack(url, text, dice, job, victim))
        return f"{hostile.POD} of {job}"

    async def heal(self) -> bool:
        """Let its code finish, end it, cancel its job; return whether all walls held and every service is ready."""
        if hasattr(self, "_attacking"):
            await until(lambda: any(TRIED in line for line in self._lines()), TRIED_S)
        self.release()
        lines = self._lines()
        cancelled = JobCancelled(job=self._job, by="stretto chaos", reason="the hostile pod has done its worst")
        try:
            await self.target.client.publish(cancelled, f"chaos:{self._job}:cancelled")
        except BusFault:
            return False
        for service in SERVICES:
            if not await until(partial(self.target.ready, service), HEALED_S):
                return False
        return not [line for line in lines if OPEN in line]

    def _lines(self) -> list[str]:
        with contextlib.suppress(OSError):
            return (self._pod / "log").read_text(errors="replace").splitlines()
        return []

    def release(self) -> None:
        if hasattr(self, "_attacking"):
            self._attacking.cancel()


FAULTS: dict[str, type[PlannedFault]] = {
    "worker-kill": KillPod,
    "data-kill": KillDataWorker,
    "data-stop": StopDataWorker,
    "worker-kill-migrating": KillPod,
    "worker-stop": StopWorker,
    "worker-slow": Throttled,
    "stage-kill": KillStage,
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
    "spill-full": FillLog,
    "spill-damage": DamageLog,
    "hostile": Hostile,
}


def _log_of(target: ChaosTarget, pod: str) -> tuple[psutil.Process, list[Path]]:
    """Return the process of a parameter server, and the files of its cold rows, which have no name. Raises NotNow."""
    for process in target.processes(pod):
        with contextlib.suppress(psutil.Error, OSError):
            opened = Path(f"/proc/{process.pid}/fd")
            found = [each for each in opened.iterdir() if "/cold-rows/rows-" in str(each.readlink())]
            # a file may be open twice, by the cache and past it, and a bit that is flipped twice is as it was
            logs = list({each.stat().st_ino: each for each in found}.values())
            if any(each.stat().st_size for each in logs):
                return process, logs
    raise NotNow(f"{pod} has no cold rows")


def _flip_pages(log: Path) -> int:
    """Flip a bit of the first record of each page; return how many pages there are."""
    with log.open("r+b") as file:
        pages = log.stat().st_size // PAGE_BYTES
        for page in range(pages):
            file.seek(page * PAGE_BYTES + 8)
            byte = file.read(1)
            file.seek(page * PAGE_BYTES + 8)
            file.write(bytes([byte[0] ^ 1]))
    return pages


def _all(checkpoints: list[list[Image]]) -> list[Image]:
    return [image for checkpoint in checkpoints for image in checkpoint]


def _truncate(copies: list[Path]) -> str:
    """Replace each copy by a truncated file; a process that has mapped the old one reads on, without SIGBUS."""
    for copy in copies:
        with contextlib.suppress(OSError):
            draft = copy.with_name(f".{copy.name}.half")
            draft.write_bytes(copy.read_bytes()[: copy.stat().st_size // 2])
            draft.replace(copy)
    return "truncated"


def _flip(copies: list[Path]) -> str:
    """Flip the same bit in every copy, so that no copy can stand in for another."""
    for copy in copies:
        with contextlib.suppress(OSError), copy.open("r+b") as file:
            at = copy.stat().st_size // 3
            file.seek(at)
            byte = file.read(1)
            file.seek(at)
            file.write(bytes([byte[0] ^ 0x10]))
    return "with a bit flipped"


def _fill(path: Path) -> int:
    """Write until the file system is full; returns the written MiB."""
    written = 0
    with path.open("wb", buffering=0) as file:
        for size in (FILLER_BYTES, 4096):
            with contextlib.suppress(OSError):
                while True:
                    written += file.write(b"\0" * size)
    return written >> 20
