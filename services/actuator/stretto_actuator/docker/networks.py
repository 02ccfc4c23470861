"""Networks of pods: one for each job, where no other job's pods reach them, or one for all.

Containers on the common network beside pods, such as the bus, are joined to every job's network under the names that
they have there. A job's network has no way out, also not to the engine's machine, unless the job has asked for egress.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from ipaddress import ip_network

from ..backend import BackendError
from ..settings import Network
from .engine import POD, Engine, Reach, SubnetTaken

PROBE = """
import socket, sys
from concurrent.futures import ThreadPoolExecutor

def answers(address):
    try:
        socket.create_connection((address, 80), 1).close()
    except OSError:
        return False
    return True

with ThreadPoolExecutor() as threads:
    print(*(each for each, answered in zip(sys.argv[1:], threads.map(answers, sys.argv[1:])) if answered))
"""
"""Prints those of its arguments that answer: cloud metadata is served at port 80 everywhere."""


@dataclass(frozen=True, slots=True)
class NetworkRules:
    """An installation's networks. ``apart``: each job has one of its own. ``reach``: without egress.

    ``ranges``: cut into networks with a prefix of ``bits``; none: the engine's own pools. ``image``: has the Python
    that looks whether an address in ``metadata`` answers.
    """

    common: str
    apart: bool = True
    reach: Reach = "job"
    ranges: tuple[Network, ...] = ()
    bits: int = 24
    image: str = ""
    metadata: tuple[Network, ...] = ()


def free_subnets(ranges: Iterable[Network], bits: int, taken: Iterable[Network]) -> Iterator[Network]:
    """Yield the subnets of ``bits`` in ``ranges`` that no network in ``taken`` overlaps, lowest first."""
    known = tuple(taken)
    for each in ranges:
        for subnet in each.subnets(new_prefix=max(bits, each.prefixlen)):
            if not any(subnet.version == other.version and subnet.overlaps(other) for other in known):
                yield subnet


class JobNetworks:
    """Networks of one installation's pods; blocking, as the engine is."""

    def __init__(self, engine: Engine, rules: NetworkRules) -> None:
        self._engine = engine
        self._rules = rules
        self._changing = threading.Lock()
        """Held while networks change: pods of a job are started together, in threads."""
        self._starting: Counter[str] = Counter()
        """Number of pods of each job that are on their way to its network."""

    def open(self) -> None:
        """Make the common one where it is missing. Raises BackendError."""
        if not self._engine.has_network(self._rules.common):
            # containers that are not pods may have ports on the machine, which an internal network does not give
            self._engine.make_network(self._rules.common, {}, "out" if self._rules.apart else self._rules.reach)

    @contextlib.contextmanager
    def used_by(self, job: str, egress: bool) -> Generator[str]:
        """The network of a job, joined by what pods speak to; it stays while a pod is started. Raises BackendError."""
        if not self._rules.apart:
            if egress and self._rules.reach != "out":
                raise BackendError(
                    f"network.egress=true of {job}: all jobs share a network without a way out; leave it out, or have "
                    "STRETTO_ACTUATOR_DOCKER_NETWORK_PER_JOB=true set"
                )
            yield self._rules.common
            return
        name = self._of(job)
        with self._changing:
            self._starting[job] += 1
        try:
            with self._changing:
                if not self._engine.has_network(name):
                    self._make(name, "out" if egress else self._rules.reach)
                self._join(name)
            yield name
        finally:
            with self._changing:
                self._starting[job] -= 1

    def join(self) -> None:
        """Connect what joined the common network meanwhile to the networks of all jobs."""
        if self._rules.apart:
            with self._changing:
                for name in self._engine.networks(self._mark):
                    self._join(name)

    def leave(self, job: str) -> None:
        """The job has no pods left; unless one is on its way, or has come meanwhile."""
        if not self._rules.apart:
            return
        name = self._of(job)
        with self._changing:
            if self._starting[job] or name not in self._engine.networks(self._mark):
                return
            members = self._engine.members(name)
            if any(POD in labels for labels in members.values()):
                return
            del self._starting[job]
            for container in members:
                self._engine.part(name, container)
            self._engine.remove_network(name)

    def _make(self, name: str, reach: Reach) -> None:
        """Make a job's network; one with a way out stays only if cloud metadata does not answer on it."""
        self._cut(name, reach)
        if reach != "out":
            return
        try:
            self._refuse_metadata(name)
        except BaseException:
            self._engine.remove_network(name)
            raise

    def _cut(self, name: str, reach: Reach) -> None:
        rules = self._rules
        if not rules.ranges:
            self._engine.make_network(name, self._mark, reach)
            return
        taken = (ip_network(each) for each in self._engine.subnets())
        for subnet in free_subnets(rules.ranges, rules.bits, taken):
            with contextlib.suppress(SubnetTaken):  # by another actuator meanwhile, or by the machine's own routes
                self._engine.make_network(name, self._mark, reach, str(subnet))
                return
        raise BackendError(
            f"the network {name} cannot be made: no /{rules.bits} is free in STRETTO_ACTUATOR_DOCKER_SUBNETS="
            f"{','.join(str(each) for each in rules.ranges)}; give a wider range, or more DOCKER_SUBNET_BITS"
        )

    def _refuse_metadata(self, name: str) -> None:
        """Raise BackendError if cloud metadata answers on a network: no setting of a network could close it."""
        addresses = [str(each.network_address) for each in self._rules.metadata if each.num_addresses == 1]
        if not addresses:
            return
        if not self._rules.image:
            raise BackendError(
                "network.egress=true needs STRETTO_ACTUATOR_POD_IMAGE: it is used to see that cloud metadata is closed"
            )
        answered = self._engine.output(self._rules.image, ["python", "-c", PROBE, *addresses], name).split()
        if answered:
            raise BackendError(
                f"network.egress=true is refused: cloud metadata answers to containers here at {', '.join(answered)}; "
                f"close it on the engine's machine (iptables -I DOCKER-USER -d {answered[0]} -j DROP)"
            )

    def _of(self, job: str) -> str:
        return f"{self._engine.installation}.{job}"

    @property
    def _mark(self) -> dict[str, str]:
        return {**self._engine.own, "stretto.dev/common-network": self._rules.common}

    def _join(self, name: str) -> None:
        there = self._engine.members(name)
        for container, labels in self._engine.members(self._rules.common).items():
            if POD not in labels and container not in there:
                names = self._engine.names_on(self._rules.common, container)
                if not names:
                    raise BackendError(f"{container} has left {self._rules.common} meanwhile")
                self._engine.join(name, container, names)
