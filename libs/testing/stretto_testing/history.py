"""One history: an installation under the faults of a seed, from its first job to the last check."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import count
from random import Random
from types import MappingProxyType
from typing import Any

import structlog
from stretto_bus.faults import Fault
from stretto_dispatcher.service import Dispatcher
from stretto_messages.gateway import JobCancelled
from stretto_wire.contract.registry import DEAD_LETTERS, STREAM, partition_of

from stretto_testing.checks import Check
from stretto_testing.faults.injected import OF_LEADERS, OF_PODS, POWER, RESTORE, UPGRADE, WITHIN_S, Blow, Faults, drawn
from stretto_testing.faults.restorations import Restoration
from stretto_testing.faults.upgrades import obey
from stretto_testing.installation import SimulatedInstallation, until
from stretto_testing.invariants import Watch, books, decided_again, files, views
from stretto_testing.jetstream.streams import Kept, KeptStream
from stretto_testing.loop import Stuck
from stretto_testing.processes.gateways import seeded
from stretto_testing.processes.services import DECIDING, Conditions, folder_of, own
from stretto_testing.processes.training import BATCH, BATCHES_PER_SHARD, Job
from stretto_testing.processes.versions import worded
from stretto_testing.simulation import Simulation

FAULTS_MOST, FAULTS_OF_PODS_MOST, FAULTS_OF_LEADERS_MOST = 8, 3, 3
WHOLE_EVERY = 6
POWER_EVERY, POWER_AT = 12, 3
"""A history whose seed has this remainder (``POWER_AT``) ends with a loss of power, and never has all services."""
UPGRADE_EVERY, UPGRADE_AT, UPGRADE_WHOLE_AT = 12, 9, 6
"""A history whose seed has one of these remainders upgrades services and takes it back; ``UPGRADE_WHOLE_AT``: all."""
RESTORE_EVERY, RESTORE_AT, RESTORE_WHOLE_EVERY, RESTORE_WHOLE_AT = 12, 1, 24, 12
"""A history whose seed has one of these remainders is lost, and restored from a backup; ``RESTORE_WHOLE_AT``: all."""
WORDED_SHARE = 0.5
"""Share of upgrades whose versions differ in what they write."""
LIVE_WITHIN_S, CALMS_S = 240.0, 10.0
"""Times after the last fault within which every job ends, and after which everybody is connected."""


LATE_SAMPLES = BATCH * BATCHES_PER_SHARD * 10
"""Samples of the job that comes after a loss of power"""
GATEWAYS = 2
DATA_WORKERS_MOST = 2
"""Data workers of a job, at most."""
CHECKPOINT_EVERY_S = 5.0
SEVERAL_SHARE = 0.7
"""Share of jobs that have two parameter servers or more: the columns of one that is lost come back on the others."""


@dataclass
class Ending:
    """The end of a history. ``broken`` is empty if every promise held."""

    seed: int
    faults: Sequence[Blow]
    broken: list[str] = field(default_factory=list[str])
    injected: list[str] = field(default_factory=list[str])
    covered: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    """Kinds of faults, each with the state that it found"""
    events: list[int] = field(default_factory=list[int])
    """Sequences of all events in the stream of facts"""
    digest: int = 0
    """Checksum of everything that was stored, when, and by whom"""
    simulated_s: float = 0.0
    steps: int = 0


class History:
    """The history of a seed. ``faults`` replace those that it draws; ``tell`` gets every line of the trace.

    ``settings``: of services, by name. ``programs`` are not Stretto's: each is started again when it was killed.

    Every ``WHOLE_EVERY`` th has the services that decide, and the actuator; the others, quicker by far, the dispatcher.
    """

    def __init__(
        self,
        seed: int,
        faults: Sequence[Blow] | None = None,
        tell: Callable[[str], None] | None = None,
        settings: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
        programs: Mapping[str, Callable[[], Coroutine[Any, Any, Any]]] = MappingProxyType({}),
    ) -> None:
        draw = Random(f"history {seed}")
        self._faults = drawn(draw, FAULTS_MOST) if faults is None else [*faults]
        if faults is None and seed % POWER_EVERY == POWER_AT:
            self._faults.append(Blow(round(Random(f"power {seed}").uniform(3.0, WITHIN_S), 3), POWER, 2.0, 1, 0.0))
        upgrade = Random(f"upgrade {seed}")
        if faults is None and seed % UPGRADE_EVERY in (UPGRADE_AT, UPGRADE_WHOLE_AT):
            at_s, lasts_s = round(upgrade.uniform(2.0, WITHIN_S), 3), round(upgrade.uniform(0.0, 10.0), 3)
            self._faults.append(Blow(at_s, UPGRADE, lasts_s, 1, round(upgrade.random(), 6)))
        restore = Random(f"restore {seed}")
        if faults is None and (seed % RESTORE_EVERY == RESTORE_AT or seed % RESTORE_WHOLE_EVERY == RESTORE_WHOLE_AT):
            at_s, goes_on_s = round(restore.uniform(0.0, WITHIN_S), 3), round(restore.uniform(0.0, 15.0), 3)
            self._faults.append(Blow(at_s, RESTORE, goes_on_s, 1, 0.0))
        self._is_restored = any(fault.kind == RESTORE for fault in self._faults)
        self._is_upgraded = any(fault.kind == UPGRADE for fault in self._faults)
        self._is_worded = self._is_upgraded and Random(f"worded {seed}").random() < WORDED_SHARE
        self._loses_power = any(fault.kind == POWER for fault in self._faults)
        self._jobs = [
            Job(f"job-{number}", BATCH * BATCHES_PER_SHARD * draw.randrange(10, 40), draw.randrange(1, 3))
            for number in range(draw.randrange(1, 3))
        ]
        self._conditions = Conditions.drawn(draw, folder_of(seed), settings)
        self._is_whole = seed % WHOLE_EVERY == 0
        if faults is None and self._is_whole:
            self._faults += drawn(Random(f"pods {seed}"), FAULTS_OF_PODS_MOST, OF_PODS)
        if faults is None and self._conditions.is_clustered and not self._loses_power:
            self._faults += drawn(Random(f"leaders {seed}"), FAULTS_OF_LEADERS_MOST, OF_LEADERS)
        for job in self._jobs if self._is_whole else ():
            several = self._conditions.cores > 1.0 and draw.random() < SEVERAL_SHARE
            job.await_servers(CHECKPOINT_EVERY_S, 1 + several)
            is_roomy = self._conditions.cores > DATA_WORKERS_MOST * len(self._jobs)
            job.data_workers = Random(f"data {seed} {job.name}").randrange(DATA_WORKERS_MOST + 1) if is_roomy else 0
        self._workers, self._replicas = draw.randrange(1, 4), draw.randrange(2, 4)
        self._tell, self._programs = tell, programs
        known = partition_of(self._jobs[0].name)  # its owner has handled something
        names = (f"late-{number}" for number in count())
        self._late = Job(next(name for name in names if partition_of(name) == known), LATE_SAMPLES, 1)
        self._simulation = Simulation(seed)
        self._services = [*DECIDING] if self._is_whole else [Dispatcher]
        names = [kind.name for kind in self._services]
        self._simulation.network.delay_s = self._conditions.delay_s
        self._simulation.server.is_clustered = self._conditions.is_clustered
        self._simulation.server.lag_share = self._conditions.lag_share
        self._watch = Watch([*names, "actuator"] if self._is_whole else names, self._conditions.cores)
        self._outcome = Ending(seed, self._faults)

    def run(self) -> Ending:
        """Live through it, and check."""
        simulation, outcome = self._simulation, self._outcome
        simulation.server.on_stored = self._stored
        before = structlog.get_config()
        structlog.configure(processors=[self._logged], cache_logger_on_first_use=False)
        with own(self._conditions.folder), seeded(), worded() if self._is_worded else nullcontext(), simulation:
            try:
                simulation.run(self._live())
            except (Stuck, Fault) as error:
                outcome.broken.append(f"{Check.LIVENESS}: {type(error).__name__}: {error}")
            self._tell = None  # what is left of processes has nothing more to say
        structlog.configure(**before)
        outcome.broken += self._watch.broken + [f"{Check.ERRORS}: {text}" for text in simulation.faults]
        if not any(word in fault for word in ("worker", " ps: ", RESTORE) for fault in outcome.injected):
            outcome.broken += self._watch.expired
        if all(fault.startswith(("kill replica", "stop replica", UPGRADE)) for fault in outcome.injected):
            outcome.broken += self._watch.failed
        outcome.events = self._watch.events
        outcome.simulated_s, outcome.steps = simulation.loop.time(), simulation.loop.steps
        return outcome

    async def _live(self) -> None:
        simulation, outcome = self._simulation, self._outcome
        installation = await SimulatedInstallation.open(simulation, self._conditions.cores, self._conditions.window_s)
        installation.is_upgraded, installation.is_worded = self._is_upgraded, self._is_worded
        restoration = Restoration(
            installation, self._conditions.folder, self._remember, lambda: self._go_back(installation)
        )
        faults = Faults(installation, list(self._faults), lambda lost: self._go_on(installation, lost), restoration.run)
        outcome.injected, outcome.covered = faults.injected, faults.covered
        await self._begin(installation)
        if self._loses_power:
            await asyncio.sleep(faults.end_s + CALMS_S - simulation.loop.time())
            await self._begin_again(installation)
            return
        if self._is_restored:
            if not await until(lambda: restoration.is_over, faults.end_s + LIVE_WITHIN_S - simulation.loop.time()):
                outcome.broken.append(f"{Check.LIVENESS}: not restored {LIVE_WITHIN_S:g} s after the last fault")
                return
            outcome.broken += restoration.broken
            faults.end_s = max(faults.end_s, simulation.loop.time())
        ends_s = faults.end_s + LIVE_WITHIN_S
        if not await until(lambda: all(job.is_over for job in self._jobs), ends_s - simulation.loop.time()):
            late = [job.name for job in self._jobs if not job.is_over]
            outcome.broken.append(
                f"{Check.LIVENESS}: not over {LIVE_WITHIN_S:g} s after the last fault: {', '.join(late)}"
            )
            return
        await asyncio.sleep(max(0.0, faults.end_s - simulation.loop.time()))
        if not await until(lambda: all(upgrade.done() for upgrade in faults.upgrades), LIVE_WITHIN_S):
            outcome.broken.append(f"{Check.LIVENESS}: the upgrade was not taken back within {LIVE_WITHIN_S:g} s")
        await asyncio.sleep(CALMS_S)
        outcome.broken += await self._ended(installation)

    async def _ended(self, installation: SimulatedInstallation) -> list[str]:
        """Return what is wrong at the end."""
        self._watch.fit(installation.simulation.server.api.streams[STREAM].last_seq + 1)
        found = books(installation) + self._watch.letters() + await views(installation, True)
        installation.simulation.server.lag_share = 0.0  # whoever looks for himself may be shown less than there is
        services = [self._conditions.make(kind) for kind in self._services]
        if self._is_whole:
            found += self._closed() + files(installation, self._conditions.folder)
            services.append(self._conditions.make_actuator(installation.place.backend()))
        for service in services:
            found += await decided_again(installation, service)
        return found

    async def _begin(self, installation: SimulatedInstallation) -> None:
        """Start everything, and submit the jobs."""
        for kind in self._services:
            installation.run_service(self._conditions.maker(kind), self._replicas)
        if self._is_whole:
            installation.run_service(
                lambda: self._conditions.make_actuator(installation.place.backend()), self._replicas
            )
        for _ in range(GATEWAYS if self._is_whole or self._loses_power else 0):
            installation.run_gateway(self._conditions.gateway())
        if self._loses_power:
            installation.run_reader()
        if self._is_upgraded:
            installation.run(obey(installation, self._watch.services))
        for name, program in self._programs.items():
            installation.run_program(name, program)
        for job in self._jobs:
            await installation.submit(job, 0 if self._is_whole else self._workers)

    def _remember(self) -> None:
        """Keep what a restoration goes back to."""
        self._then = self._watch.now(), {job.name: job.now() for job in self._jobs}

    def _go_back(self, installation: SimulatedInstallation) -> None:
        """Go back to the moment of the backup. Jobs that were submitted since are submitted again, as it is documented:
        under other names.
        """
        streams = installation.simulation.server.api.streams
        watch, jobs = self._then
        self._watch.go_back(watch, streams[DEAD_LETTERS].last_seq)
        known = {
            kept.subject.rpartition(".")[2] for kept in streams[STREAM] if ".gateway.job-submitted." in kept.subject
        }
        for number, job in enumerate(self._jobs):
            if job.name in known:
                job.go_back(jobs[job.name], has_columns=not self._is_whole)
            elif job.name in installation.submitted:
                del installation.jobs[job.name]
                installation.accepted.discard(job.name)
                self._jobs[number] = again = job.anew(f"{job.name}-again")
                installation.run(installation.submit(again, 0 if self._is_whole else self._workers))

    def _go_on(self, installation: SimulatedInstallation, lost: int) -> None:
        """Let others store, in half of the histories, up to twice as much as a loss of power has undone, before anybody
        is connected again: a job among it has a place in the log that owners have handled.
        """
        draw = Random(f"power {self._outcome.seed} {lost}")
        if draw.random() < 0.5:
            return
        late = self._late
        before, behind = draw.randrange(lost + 1), draw.randrange(lost + 2)
        strangers = [JobCancelled(job=f"stranger-{number}") for number in range(before + behind)]
        for message in (*strangers[:before], late.submission, *strangers[before:]):
            installation.store_at_once(message)
        installation.jobs[late.name] = late
        for _ in range(self._workers):
            installation.start_worker(late)

    async def _begin_again(self, installation: SimulatedInstallation) -> None:
        """Check that a job which comes after a loss of power is trained as if nothing had been: no more is promised."""
        late = self._late
        if late.name not in installation.jobs:
            await installation.submit(late, self._workers)
        if not await until(lambda: late.is_over, LIVE_WITHIN_S):
            self._outcome.broken.append(f"{Check.POWER}: {late.name} is not over {LIVE_WITHIN_S:g} s after it came")
        elif any(late.missing_and_repeated()) or late.wrong:
            self._outcome.broken.append(f"{Check.POWER}: {late.name}: {late.missing_and_repeated()}, {late.wrong}")
        self._outcome.broken += await views(installation, False)

    def _closed(self) -> list[str]:
        """Return what the product itself found wrong with the books of jobs."""
        return [
            f"{Check.CLOSED}: {name}: finished with {job.samples_lost} samples lost, {job.samples_repeated} repeated"
            for name, job in self._watch.finished.items()
            if job.samples_lost or job.samples_repeated
        ]

    def _stored(self, stream: KeptStream, kept: Kept, writer: str) -> None:
        text = (
            f"{kept.time_ns} {stream.name} {kept.seq} {kept.subject} {writer} {zlib.crc32(kept.block + kept.data):08x}"
        )
        self._outcome.digest = zlib.crc32(text.encode(), self._outcome.digest)
        if self._tell is not None:
            self._tell(text)
        if not self._loses_power:  # else what was checked may be lost
            self._watch.stored(stream, kept, writer)
        for job in self._jobs if self._is_whole else ():
            job.is_over = job.name in self._watch.finished

    def _logged(
        self, logger: Any, name: str, event: structlog.typing.EventDict
    ) -> structlog.typing.ProcessorReturnValue:
        if self._tell is not None:
            more = " ".join(f"{key}={value!r}" for key, value in event.items() if key != "event")
            self._tell(f"{self._simulation.loop.wall_ns()} log {name} {event.get('event')} {more}")
        raise structlog.DropEvent


def shortest(outcome: Ending) -> Ending:
    """Return the history with the fewest of its faults that still breaks something: each is left out in turn."""
    best = outcome
    at = 0
    while at < len(best.faults):
        fewer = [fault for number, fault in enumerate(best.faults) if number != at]
        tried = History(best.seed, fewer).run()
        if tried.broken:
            best = tried
        else:
            at += 1
    return best
