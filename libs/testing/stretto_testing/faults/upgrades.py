"""Rolling upgrades: replicas of the next version replace those that run, one after another, and are replaced again.

Faults go on meanwhile. A version that finds what a dead owner of the other one published, and would decide otherwise,
stands aside, and says what helps. Somebody reads that here, and does it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from stretto_testing.installation import Replica, SimulatedInstallation

REMEDY = "start the version of then once more and stop it by SIGTERM"
"""Words of ``/readyz`` where a version stands aside"""
LOOKS_EVERY_S, PAUSE_MOST_S = 1.0, 3.0
"""Interval at which somebody looks at replicas, and the longest time between one that came and the next one to go."""
ASKS_S, ONCE_MORE_S = 8.0, 20.0
"""Time for which replicas have asked for the other version until it comes, and for which it stays."""


async def there_and_back(installation: SimulatedInstallation, services: Sequence[str], for_s: float) -> None:
    """Upgrade services to the next version, and take that back ``for_s`` after its last replica has come."""
    for is_next in (True, False):
        await asyncio.gather(*(_roll(installation, service, is_next) for service in services))
        await asyncio.sleep(for_s if is_next else 0.0)


async def _roll(installation: SimulatedInstallation, service: str, is_next: bool) -> None:
    """Let each replica of a service end, and one of a version come in its place, before the next one goes."""
    for replica in replicas_of(installation, service):
        before, replica.is_next = replica.node, is_next
        installation.stop(replica)
        while replica.node is before:
            installation.trouble(LOOKS_EVERY_S)
            await asyncio.sleep(LOOKS_EVERY_S)
        await asyncio.sleep(installation.simulation.chance.uniform(0, PAUSE_MOST_S))


def replicas_of(installation: SimulatedInstallation, service: str) -> list[Replica]:
    """Return the replicas of a service."""
    return [each for each in installation.replicas if each.service == service]


async def obey(installation: SimulatedInstallation, services: Sequence[str]) -> None:
    """Do for ever what replicas ask for that stand aside."""
    await asyncio.gather(*(_obey(installation, service) for service in services))


async def _obey(installation: SimulatedInstallation, service: str) -> None:
    asked_s = 0.0
    while True:
        await asyncio.sleep(LOOKS_EVERY_S)
        asking = [each for each in replicas_of(installation, service) if REMEDY in each.report.get("refusal", "")]
        asked_s = asked_s + LOOKS_EVERY_S if asking else 0.0
        if asking:
            installation.trouble(LOOKS_EVERY_S)
        if asked_s >= ASKS_S:
            await _once_more(
                installation, Replica("", asking[0].make, is_next=not asking[0].is_next, is_followed=False)
            )
            asked_s = 0.0


async def _once_more(installation: SimulatedInstallation, other: Replica) -> None:
    """Run a replica of the other version for a while."""
    installation.start(other)
    installation.trouble(ONCE_MORE_S)
    await asyncio.sleep(ONCE_MORE_S)
    installation.stop(other)
    assert other.node is not None
    while not (other.node.is_dead or other.node.tasks[0].done()):
        installation.trouble(LOOKS_EVERY_S)
        await asyncio.sleep(LOOKS_EVERY_S)
