"""Faults that a seed draws for one history: what happens to which process, when, and for how long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import Any

from stretto_wire.contract.registry import STATE, STREAM

from stretto_testing.faults.upgrades import there_and_back
from stretto_testing.installation import Replica, SimulatedInstallation, SimulatedPod
from stretto_testing.jetstream.elections import META
from stretto_testing.nodes import SimulatedProcess
from stretto_testing.processes.pods import PodProcess

WITHIN_S = 25.0
"""Time of a history in which faults begin."""
STEPS_MOST = 400
"""Longest fuse of a process that is to be hit between two of its steps."""
STEPS_OF_DATA_MOST = 10
"""The same of a data worker, which makes few steps."""
HOUR_NS = 3600 * 10**9


@dataclass(frozen=True, slots=True)
class Blow:
    """One fault. ``steps``: how many more steps its victim makes; ``lot`` chooses the victim."""

    at_s: float
    kind: str
    lasts_s: float
    steps: int
    lot: float

    def __str__(self) -> str:
        return f"{self.kind} at {self.at_s:.1f} s for {self.lasts_s:.1f} s after {self.steps} steps ({self.lot:.3f})"


KINDS = {
    "kill replica": 4,
    "freeze replica": 3,
    "stop replica": 2,
    "cut replica": 1,
    "mute replica": 1,
    "deafen replica": 2,
    "reset replica": 3,
    "step clock": 1,
    "kill server": 2,
    "fill stream": 1,
    "poison job": 1,
    "kill worker": 3,
    "freeze worker": 2,
    "cut worker": 1,
    "reset worker": 1,
    "kill ps": 2,
}
"""Kinds of faults, and how often each is drawn."""
OF_PODS = {"kill data": 3, "surge ps": 2, "fill store": 2}
"""Kinds of faults that histories of all services have beside these, and how often each is drawn."""
OF_LEADERS = {"unseat leader": 3, "freeze leader": 2, "kill leader": 2}
"""Kinds of faults that histories of a cluster have beside these, and how often each is drawn."""
POWER = "power server"
"""Kind of the fault that histories of their own have, after which no more is promised than of what comes later."""
UPGRADE = "upgrade services"
"""Kind of the fault that histories of their own have: the next version comes, and goes again."""
RESTORE = "restore installation"
"""Kind of the fault that histories of their own have: a backup, and as much later a loss of everything."""
STATES = [f"{jobs}, {others}" for jobs in ("waiting", "training", "over") for others in ("alone", "in trouble")]
"""States in which a fault may find an installation: what its jobs do, and whether another fault goes on"""
PAIRS = len(STATES) * len([*KINDS, *OF_PODS, *OF_LEADERS, POWER, UPGRADE, RESTORE])
CUTS = {"cut": (True, True), "mute": (True, False), "deafen": (False, True)}
"""Kinds of cuts, and whether nothing passes from the process, or to the process."""
LASTS_S = {"freeze worker": 45.0, "kill server": 8.0, "unseat leader": 8.0}
"""Longest time of a fault, where it is not that of most."""
MOST_LAST_S = 12.0
ALL_LED_SHARE = 0.4
"""Share of the faults of leaders that take the leaders of all streams, and of the cluster"""
SURGE_MOST = 4.0
"""Largest size of a surge of rows over all parameter servers of a job, in limits of one."""


def drawn(chance: Random, most: int, kinds: Mapping[str, int] = MappingProxyType(KINDS)) -> list[Blow]:
    """Return the faults of a history, in order."""
    found: list[Blow] = []
    for _ in range(chance.randrange(1, most + 1)):
        kind = chance.choices([*kinds], [*kinds.values()])[0]
        lasts_s = chance.uniform(0.05, LASTS_S.get(kind, MOST_LAST_S)) * chance.random()
        at_s, steps = chance.uniform(0, WITHIN_S), chance.randrange(1, STEPS_MOST)
        found.append(Blow(round(at_s, 3), kind, round(lasts_s, 3), steps, round(chance.random(), 6)))
    return sorted(found, key=lambda fault: fault.at_s)


class Faults:
    """Injects faults into an installation, and heals them. ``powered`` is called once a server has power again, before
    anybody is connected to it, with the number of events that it has lost. ``restore`` takes a backup, and restores it
    some time later.
    """

    def __init__(
        self,
        installation: SimulatedInstallation,
        faults: list[Blow],
        powered: Callable[[int], None],
        restore: Callable[[float], Coroutine[Any, Any, None]],
    ) -> None:
        self._at, self._powered, self._restore = installation, powered, restore
        self._simulation = installation.simulation
        self.injected: list[str] = []
        """Faults that had a victim, with its name"""
        self.covered: set[tuple[str, str]] = set()
        """Kinds of these faults, each with the state that it found"""
        self.upgrades: list[asyncio.Task[None]] = []
        loop = self._simulation.loop
        self.end_s = loop.time() + max((fault.at_s + fault.lasts_s for fault in faults), default=0.0)
        for fault in faults:
            self._later(fault.at_s, lambda fault=fault: self._begin(fault))

    def _later(self, delay_s: float, action: Callable[[], object]) -> None:
        loop = self._simulation.loop
        loop.call_later(delay_s, action, context=loop.root.context)

    def _begin(self, fault: Blow) -> None:
        what, _, whom = fault.kind.partition(" ")
        if whom == "stream":
            self._note(fault, STREAM if fault.lot < 0.7 else STATE)
            self._fill(STREAM if fault.lot < 0.7 else STATE, fault.lasts_s)
        elif whom == "installation":
            self._note(fault, "everything")
            self._at.run(self._restore(fault.lasts_s))
        elif whom == "services":
            names = list(dict.fromkeys(each.service for each in self._at.replicas if each.service))
            chosen = names if fault.lot < 0.5 else [names[int((fault.lot - 0.5) * 2 * len(names))]]
            self._note(fault, ", ".join(chosen))
            self.upgrades.append(self._at.run(there_and_back(self._at, chosen, fault.lasts_s)))
        elif whom == "job":
            job = [*self._at.jobs.values()][int(fault.lot * len(self._at.jobs))]
            self._note(fault, job.name)
            self._at.store_poison(job)
        elif whom == "server":
            self._note(fault, "server")
            self._end_server(what == "power", fault.lasts_s)
        elif whom == "leader":
            self._elect(fault, what)
        elif whom == "store":
            self._note(fault, "checkpoints")
            self._at.place.fill_store(fault.lasts_s)
        elif whom in ("worker", "ps", "data"):
            place = self._at.place
            pods = {"worker": self._at.workers, "ps": place.servers, "data": place.data_workers}[whom]()
            if pods:
                self._hit(fault, what, pods[int(fault.lot * len(pods))])
        else:
            replicas = [each for each in self._at.replicas if each.node is not None and not each.node.is_dead]
            if replicas:
                self._hit(fault, what, replicas[int(fault.lot * len(replicas))])

    def _end_server(self, loses_power: bool, lasts_s: float) -> None:
        server = self._simulation.server
        if not loses_power:
            server.kill()
            self._later(lasts_s, server.start)
            return
        stream = server.api.streams[STREAM]
        end = stream.last_seq
        server.lose_power()
        lost = end - stream.last_seq

        def start() -> None:
            server.start()
            self._powered(lost)

        self._later(lasts_s, start)

    def _elect(self, fault: Blow, what: str) -> None:
        """Take the leader from some streams, or from all and from the cluster: it steps down, or its server is lost."""
        server, chance = self._simulation.server, Random(fault.lot)
        names = [*server.api.streams, META] if chance.random() < ALL_LED_SHARE else [chance.choice((STREAM, STATE))]
        if server.network.is_refused:  # nobody leads, and nobody is there
            return
        self._note(fault, ", ".join(names))
        if what == "unseat":
            server.elections.unseat(names, fault.lasts_s, chance)
        else:
            server.elections.lose_server(names, what == "kill", fault.lasts_s, chance)

    def _fill(self, name: str, lasts_s: float) -> None:
        """Let a stream have no room for more, until there is some again."""
        stream = self._simulation.server.api.streams.get(name)
        if stream is None:  # all is lost
            return
        stream.bound_bytes = stream.bytes
        self._later(lasts_s, lambda: stream.configure(stream.config))

    def _note(self, fault: Blow, victim: str) -> None:
        self.injected.append(f"{fault.kind}: {victim} at {self._simulation.loop.time():.3f} s")
        self.covered.add((fault.kind, self._state()))
        self._at.trouble(fault.lasts_s)

    def _state(self) -> str:
        """Return the state that a fault finds (``STATES``)."""
        jobs, now_s = self._at.jobs.values(), self._simulation.loop.time()
        if all(job.is_over for job in jobs):
            of_jobs = "over" if jobs else "waiting"
        else:
            of_jobs = "training" if any(job.attempts and not job.is_over for job in jobs) else "waiting"
        is_alone = all(job.troubled_until_s < now_s for job in jobs)
        return f"{of_jobs}, {'alone' if is_alone else 'in trouble'}"

    def _hit(self, fault: Blow, what: str, victim: Replica | SimulatedPod | PodProcess) -> None:
        """Light a fuse: the fault comes between two steps of its victim."""
        node = victim.node
        assert node is not None

        def burnt() -> None:
            self._note(fault, victim.name)
            self._do(what, fault, victim, node)

        is_data = isinstance(victim, PodProcess) and victim.role == "data"
        node.fuse, node.burnt = min(fault.steps, STEPS_OF_DATA_MOST if is_data else STEPS_MOST), burnt

    def _do(self, what: str, fault: Blow, victim: Replica | SimulatedPod | PodProcess, node: SimulatedProcess) -> None:
        simulation = self._simulation
        network, loop = simulation.network, simulation.loop
        if what == "kill":
            self._at.kill_pod(victim) if not isinstance(victim, Replica) else self._at.kill(victim)
        elif what == "stop":
            assert isinstance(victim, Replica)
            self._at.stop(victim)
        elif what == "freeze":
            loop.freeze(node)
            self._later(fault.lasts_s, lambda: loop.thaw(node))
        elif what in CUTS:
            network.cut(node, *CUTS[what])
            self._later(fault.lasts_s, lambda: network.mend(node))
        elif what == "reset":
            network.break_lines(node)
        elif what == "surge":
            assert isinstance(victim, PodProcess)
            victim.job.surge(fault.lasts_s, int(victim.spec.memory_bytes * SURGE_MOST * fault.lot))
        else:
            node.wall_ahead_ns += HOUR_NS if fault.lot < 0.5 else -HOUR_NS
