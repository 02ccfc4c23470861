"""One job under one schedule: submit it, inject the faults when they are due, heal them, wait for the books."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import yaml
from stretto_cli.errors import CliError
from stretto_cli.options import connect
from stretto_client import figures
from stretto_client.documents import Documents

from .faults import FAULTS, PlannedFault
from .job import PS_MOST, WORKERS_MOST
from .record import Json, StreamRecord, follow
from .schedule import KINDS, Planned, Schedule
from .target import ChaosTarget, NotNow, until

LOOK_S = 0.1
MOMENT_S = 150.0
"""Longest wait of a fault for its moment, such as a migration."""
JOB_LIMIT_S = 900.0
STALLED_S = 180.0
"""After this long without a trained sample or an active fault, the job hangs: waiting longer would hide it."""
GATEWAY_S = 45.0
"""Longest wait for an answer of the gateway, which may just be restarting."""
CHANGED_S = 240.0
END_S = 45.0


@dataclass(slots=True)
class Happening:
    """The outcome of one planned fault or change. Times are seconds since the epoch."""

    planned: Planned
    on: str = ""
    at_s: float | None = None
    healed_s: float | None = None
    well: bool = False
    skipped: str = ""


@dataclass(slots=True)
class JobEnd:
    """A job after its schedule. ``audit``: the gateway's audit; None if the gateway gave none."""

    schedule: Schedule | None
    record: StreamRecord
    happenings: list[Happening]
    began_s: float
    ended_s: float
    audit: Json | None
    trouble: str = ""

    @property
    def exact(self) -> bool:
        """Return whether the job finished with nothing lost or repeated, by the parameter servers' own counts."""
        books = self.audit
        return (
            self.record.ended == "finished"
            and books is not None
            and bool(books["exact"])
            and books["samples_lost"] == books["samples_repeated"] == books["samples_given_up"] == 0
            and books["samples_done"] == books["samples_total"]
        )


Tell = Callable[[str], None]


@dataclass
class ChaosCourse:
    """A job under way. ``tell`` prints a line about each step."""

    target: ChaosTarget
    schedule: Schedule | None
    tell: Tell
    happenings: list[Happening] = field(default_factory=list[Happening])
    trouble: str = ""
    _faults: list[PlannedFault] = field(default_factory=list[PlannedFault])
    _tasks: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])
    _hurt: int = 0
    _furthest: float = 0.0

    async def run(self, spec: Json) -> JobEnd:
        """Run until the job has ended and its books are read, or until it is given up."""
        record, began_s = self.target.record, time.time()
        self._slots = asyncio.Semaphore(self.schedule.at_once if self.schedule else 1)
        following = asyncio.create_task(follow(self.target.client, record))
        try:
            await self._asked(lambda gateway: gateway.submit(yaml.safe_dump(spec)), GATEWAY_S)
            for planned in self.schedule.planned if self.schedule else ():
                self.happenings.append(Happening(planned))
                self._tasks.append(asyncio.create_task(self._perform(self.happenings[-1])))
            await self._wait()
        finally:
            await self._heal_all()
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        audit = await self._audit() if record.ended == "finished" else None
        return JobEnd(self.schedule, record, self.happenings, began_s, time.time(), audit, self.trouble)

    # the job ---------------------------------------------------------------------------------------------------

    async def _audit(self) -> Json | None:
        """Read the audit once the gateway is back and knows that the job has ended."""
        job = self.target.record.job
        try:
            return await self._asked(lambda gateway: gateway.audit(job), GATEWAY_S)
        except CliError as error:
            self.trouble = f"no audit: {error}"
            return None

    async def _asked(self, ask: Callable[[Documents], Json], within_s: float) -> Json:
        """Ask the gateway, which may just be restarting, until it answers. Raises CliError after ``within_s``."""
        deadline = time.monotonic() + within_s

        def once() -> Json:
            with connect(self.target.folder, None, None) as gateway:
                return ask(gateway)

        while True:
            try:
                return await asyncio.to_thread(once)
            except CliError:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(0.5)

    async def _wait(self) -> None:
        """Wait for the end of the job; give it up when it hangs."""
        record, deadline = self.target.record, time.monotonic() + JOB_LIMIT_S
        moved, seen, queued = time.monotonic(), (-1, 0), False
        while not record.ended:
            self._furthest = max(self._furthest, record.share)
            now, at = time.monotonic(), (record.samples_done, len(record.pods))
            if at != seen or self._hurt:
                moved, seen = now, at
            if record.queued and self.target.shared:  # the user's own jobs go first, however long they take
                moved, deadline = now, now + JOB_LIMIT_S
                if not queued:
                    self.tell(f"it waits for room: {record.queued}")
                queued = True
            if now - moved > STALLED_S or now > deadline:
                what = f"no sample was trained for {STALLED_S:.0f} s" if now < deadline else "it was not over in time"
                self.trouble = f"given up at {record.share:.0%}: {what}"
                with contextlib.suppress(CliError):
                    await self._asked(lambda gateway: gateway.cancel(record.job, "the chaos run gave up"), 10.0)
                return
            await asyncio.sleep(LOOK_S)

    # the schedule ----------------------------------------------------------------------------------------------

    async def _perform(self, happening: Happening) -> None:
        """Perform one entry of the schedule, from when it is due until it is healed."""
        planned, record = happening.planned, self.target.record
        try:
            await until(lambda: record.over or (record.started and self._furthest >= planned.at), math.inf, LOOK_S)
            self._still()
            if planned.planned:
                await self._change(happening)
                return
            while happening.at_s is None:
                await self._moment(planned)  # outside the semaphore: a waiting fault must not block the others
                async with self._slots:
                    self._still()
                    if not planned.during or record.migration is not None:
                        await self._strike(happening)
        except NotNow as reason:
            happening.skipped = str(reason)
            self.tell(f"[dim]{planned.number}. {KINDS[planned.kind].title}: passed over, {reason}[/dim]")

    async def _moment(self, planned: Planned) -> None:
        record = self.target.record
        if planned.during:
            if not await until(lambda: record.over or record.migration is not None, MOMENT_S, 0.005):
                raise NotNow("no migration was going on")
            if planned.during == "migration":
                await asyncio.sleep(0.6 * planned.chance)
            self._still()

    def _still(self) -> None:
        if self.target.record.over:
            raise NotNow("every sample was trained before it could begin")

    async def _strike(self, happening: Happening) -> None:
        """Inject a fault, leave it for as long as planned, heal it."""
        planned, record = happening.planned, self.target.record
        fault = FAULTS[planned.kind](planned, self.target)
        self._faults.append(fault)
        self._hurt += 1
        try:
            happening.on = await fault.inject()  # it may have to wait for its moment first
            happening.at_s = time.time()
            self.tell(f"[red]{planned.number}. {KINDS[planned.kind].title}[/red]: {happening.on}")
            await until(lambda: bool(record.ended), planned.lasts_s, LOOK_S)
            happening.well = await fault.heal()
        finally:
            self._hurt -= 1
        self._note_healed(happening)

    def _note_healed(self, happening: Happening) -> None:
        if not happening.well or happening.at_s is None:
            self.tell(f"[red]   {happening.planned.number}. not healed[/red]")
            return
        happening.healed_s = time.time()
        after = figures.seconds(happening.healed_s - happening.at_s)
        self.tell(f"   [green]{happening.planned.number}. healed[/green] after {after}")

    async def _heal_all(self) -> None:
        """End all faults, whatever has happened: no process stays frozen."""
        waiting = list(self._tasks)
        if self.target.record.ended and waiting:
            await asyncio.wait(waiting, timeout=END_S)
        for task in waiting:
            task.cancel()
        for fault in self._faults:
            fault.release()
        for ended in await asyncio.gather(*waiting, return_exceptions=True):
            if isinstance(ended, Exception):
                self.trouble = self.trouble or f"a fault could not be injected: {ended!r}"

    # changes of the plan ---------------------------------------------------------------------------------------

    async def _change(self, happening: Happening) -> None:
        """Ask for another number of workers or servers, and wait until the job has them."""
        planned, record = happening.planned, self.target.record
        if record.plan is None:
            raise NotNow("the job has no plan yet")
        role, most = ("workers", WORKERS_MOST) if planned.kind == "scale-workers" else ("ps", PS_MOST)
        # with fewer workers than stages the later ones would be gone
        stages = 1 + max((group.get("stage", 0) for group in record.plan.get("groups", ())), default=0)
        now, least = record.plan[role], stages if role == "workers" else 1
        others = [count for count in range(least, most + 1) if count != now]
        count = others[min(int(planned.chance * len(others)), len(others) - 1)]
        seen, happening.at_s, happening.on = len(record.facts), time.time(), f"{now} → {count}"
        self.tell(f"[cyan]{planned.number}. {KINDS[planned.kind].title}[/cyan]: {happening.on}")
        await self._asked(lambda gateway: gateway.scale(record.job, {role: count}), GATEWAY_S)

        def applied() -> bool:
            new = record.facts[seen:]
            if refused := [f for f in new if f.name == "plan-refused" and f.data["kind"] == "requested"]:
                raise NotNow(f"refused: {refused[0].data['reasons'][-1]}")
            return record.over or any(f.name == "plan-applied" and f.data["plan"][role] == count for f in new)

        happening.well = await until(applied, CHANGED_S, LOOK_S)
        self._note_healed(happening)
