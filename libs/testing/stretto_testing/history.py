"""One history: an installation under the faults of a seed, from its first job to the last check."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import structlog
from stretto_dispatcher.service import Dispatcher
from stretto_dispatcher.settings import DispatcherSettings

from stretto_testing.faults import Blow, Faults, drawn
from stretto_testing.installation import SimulatedInstallation, folder, until
from stretto_testing.invariants import Watch, books, decided_again
from stretto_testing.jetstream.streams import Kept, KeptStream
from stretto_testing.loop import Stuck
from stretto_testing.simulation import URL, Simulation
from stretto_testing.training import BATCH, BATCHES_PER_SHARD, Job

FAULTS_MOST = 8
LIVE_WITHIN_S = 240.0
"""Time after the last fault within which every job ends."""


@dataclass
class Ending:
    """The end of a history. ``broken`` is empty if every promise held."""

    seed: int
    faults: Sequence[Blow]
    broken: list[str] = field(default_factory=list[str])
    injected: list[str] = field(default_factory=list[str])
    digest: int = 0
    """Checksum of everything that was stored, when, and by whom"""
    simulated_s: float = 0.0
    steps: int = 0


def make_dispatcher() -> Dispatcher:
    """Return a dispatcher as an installation runs it; jobs are small, so its lease is short."""
    settings: dict[str, Any] = {"nats_url": URL, "state_folder": folder(), "spans_per_s": 1e-9}
    return Dispatcher(DispatcherSettings(**settings, lease_timeout_s=12.0))


class History:
    """The history of a seed. ``faults`` replace those that the seed draws; ``tell`` gets every line of the trace."""

    def __init__(
        self, seed: int, faults: Sequence[Blow] | None = None, tell: Callable[[str], None] | None = None
    ) -> None:
        draw = Random(f"history {seed}")
        self._faults = drawn(draw, FAULTS_MOST) if faults is None else [*faults]
        self._jobs = [
            Job(f"job-{number}", BATCH * BATCHES_PER_SHARD * draw.randrange(10, 40), draw.randrange(1, 3))
            for number in range(draw.randrange(1, 3))
        ]
        self._workers, self._replicas = draw.randrange(1, 4), draw.randrange(2, 4)
        self._tell = tell
        self._simulation = Simulation(seed)
        self._watch = Watch(("dispatcher",))
        self._outcome = Ending(seed, self._faults)

    def run(self) -> Ending:
        """Live through it, and check."""
        simulation, outcome = self._simulation, self._outcome
        simulation.server.on_stored = self._stored
        before = structlog.get_config()
        structlog.configure(processors=[self._logged], cache_logger_on_first_use=False)
        with simulation:
            try:
                simulation.run(self._live())
            except Stuck as stuck:
                outcome.broken.append(str(stuck))
        structlog.configure(**before)
        outcome.broken += self._watch.broken + simulation.faults
        outcome.simulated_s, outcome.steps = simulation.loop.time(), simulation.loop.steps
        return outcome

    async def _live(self) -> None:
        simulation, outcome = self._simulation, self._outcome
        installation = await SimulatedInstallation.open(simulation)
        faults = Faults(installation, list(self._faults))
        outcome.injected = faults.injected
        installation.run_service(make_dispatcher, self._replicas)
        for job in self._jobs:
            await installation.submit(job, self._workers)
        ends_s = faults.end_s + LIVE_WITHIN_S
        if not await until(lambda: all(job.is_over for job in self._jobs), ends_s - simulation.loop.time()):
            late = [job.name for job in self._jobs if not job.is_over]
            outcome.broken.append(f"not over {LIVE_WITHIN_S:g} s after the last fault: {', '.join(late)}")
            return
        outcome.broken += books(installation)
        outcome.broken += await decided_again(installation, make_dispatcher())

    def _stored(self, stream: KeptStream, kept: Kept, writer: str) -> None:
        text = (
            f"{kept.time_ns} {stream.name} {kept.seq} {kept.subject} {writer} {zlib.crc32(kept.block + kept.data):08x}"
        )
        self._outcome.digest = zlib.crc32(text.encode(), self._outcome.digest)
        if self._tell is not None:
            self._tell(text)
        self._watch.stored(stream, kept, writer)

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
