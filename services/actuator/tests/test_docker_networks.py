"""A job's network lasts as long as a pod is on it, or on its way there."""

from __future__ import annotations

import asyncio

from backend_contract import JOB, exited, running, spec
from engine_place import Containers
from stretto_actuator.docker_engine import Engine
from stretto_actuator.docker_networks import JobNetworks


async def test_a_network_is_not_left_while_a_pod_starts_or_runs_there(place: Containers) -> None:
    backend = place.backend = await place.opened(docker_network_per_job=True)
    networks, engine = backend._networks, backend._engine

    def there() -> list[str]:
        return engine.networks({"stretto.dev/common-network": f"{place.name}-pods"})

    def left_while_a_pod_is_made() -> list[str]:
        with networks.used_by(JOB):
            networks.leave(JOB)
            return there()

    assert await asyncio.to_thread(left_while_a_pod_is_made) == [f"{place.name}.{JOB}"]
    await backend.launch(spec(place))
    await running(place)
    await asyncio.to_thread(networks.leave, JOB)
    assert await asyncio.to_thread(there) == [f"{place.name}.{JOB}"], "it would be cut off from all that it speaks to"
    await backend.kill(JOB, "worker-0")
    await cleared(place, "worker-0")
    assert await asyncio.to_thread(there) == []


async def test_pods_that_start_while_others_are_forgotten_find_their_network(place: Containers) -> None:
    """Each round one pod is cleared, the last of its job, while the next one starts."""
    backend = place.backend = await place.opened(docker_network_per_job=True)
    await backend.launch(spec(place, "worker-0"))
    for number in range(4):
        await running(place, f"worker-{number}")
        await backend.kill(JOB, f"worker-{number}")
        await asyncio.gather(backend.launch(spec(place, f"worker-{number + 1}")), cleared(place, f"worker-{number}"))
    await running(place, "worker-4")


async def cleared(place: Containers, pod: str) -> None:
    await exited(place, pod)
    await place.backend.forget(JOB, pod)


def test_nothing_is_asked_of_the_engine_for_a_network_that_all_share() -> None:
    networks = JobNetworks(Engine("unix:///nowhere", "one"), "common", apart=False)
    with networks.used_by(JOB) as name:
        networks.leave(JOB)
    assert name == "common"
