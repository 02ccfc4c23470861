"""A job's network lasts as long as a pod is on it, or on its way there."""

from __future__ import annotations

import asyncio
import contextlib
import random
import textwrap
from collections.abc import Iterator
from ipaddress import ip_network
from typing import Any

import pytest
from backend_contract import JOB, exited, running, said, spec
from engine_place import IMAGE, Containers
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr
from stretto_actuator.backend import BackendError, PodSpec
from stretto_actuator.docker.backend import backend_of
from stretto_actuator.docker.engine import Engine
from stretto_actuator.docker.networks import JobNetworks, NetworkRules, free_subnets
from stretto_actuator.settings import ActuatorSettings
from stretto_runtime import SettingsFault

from tests.waits import until


async def test_a_network_is_not_left_while_a_pod_starts_or_runs_there(place: Containers) -> None:
    backend = place.backend = await place.opened()
    networks, engine = backend._networks, backend._engine

    def there() -> list[str]:
        return engine.networks({"stretto.dev/common-network": f"{place.name}-pods"})

    def left_while_a_pod_is_made() -> list[str]:
        with networks.used_by(JOB, egress=False):
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
    backend = place.backend = await place.opened()
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
    """Jobs that share a network are led to it by an engine that cannot be reached; egress is refused there."""
    networks = JobNetworks(Engine("unix:///nowhere", "one"), NetworkRules("common", apart=False))
    with networks.used_by(JOB, egress=False) as name:
        networks.leave(JOB)
    assert name == "common"
    refusal = pytest.raises(BackendError, match=r"network\.egress=true of contract.*NETWORK_PER_JOB=true")
    with refusal, networks.used_by(JOB, egress=True):
        pass


REACH = """
    import socket
    def reach(host, port):
        try:
            socket.create_connection((host, port), 2).close()
            return True
        except OSError:
            return False
    def gateway():
        rows = [row.split() for row in open("/proc/net/route").read().splitlines()[1:]]
        found = [row[2] for row in rows if row[1] == "00000000"]
        return socket.inet_ntoa(bytes.fromhex(found[0])[::-1]) if found else "host.docker.internal"
"""
NOBODYS = "127.0.0.2"
"""An address where no cloud metadata answers to a container, whatever the network of the engine's machine does."""
UNUSED = "198.51.100.1"
"""An address of nobody (RFC 5737)."""
LISTEN = "import os, socket\nwith socket.create_server(('0.0.0.0', 7000)) as s:\n    while True: s.accept()"


@contextlib.contextmanager
def container(place: Containers, name: str, program: str, network: str, names: list[str]) -> Iterator[str]:
    """A container of the installation that is no pod, such as the bus; ``network`` may be the machine's own."""
    client = place.client
    known = {network: client.create_endpoint_config(aliases=names)} if names else {}
    made = client.create_container(
        IMAGE,
        ["python", "-c", program],
        name=f"{place.name}-{name}",
        host_config=client.create_host_config(network_mode=network),
        networking_config=client.create_networking_config(known) if known else None,
        labels=place.backend._engine.own,
    )
    client.start(made)
    try:
        yield str(made["Id"])
    finally:
        client.remove_container(made, force=True)


@pytest.mark.parametrize(
    ("settings", "egress", "machine", "elsewhere"),
    [
        ({}, False, False, False),
        ({"docker_reach": "host"}, False, True, False),
        ({"docker_reach": "out"}, False, True, True),
        ({}, True, True, True),
    ],
    ids=["by default", "for a bus on the machine", "for a bus elsewhere", "with egress"],
)
async def test_a_pod_reaches_its_bus_and_no_further_than_it_may(
    place: Containers, settings: dict[str, Any], egress: bool, machine: bool, elsewhere: bool
) -> None:
    """Try from a pod the bus beside it, and a service at all addresses of the engine's machine."""
    backend = place.backend = await place.opened(metadata_addresses=NOBODYS, **settings)
    script = f"{REACH}\n    print(reach('bus', 7000), reach(gateway(), 7000), flush=True)"
    with container(place, "bus", LISTEN, f"{place.name}-pods", ["bus"]), container(place, "m", LISTEN, "host", []):
        await backend.launch(spec(place, script=script, egress=egress))
        assert (await said(place)).split() == ["True", str(machine)]
    network = place.client.inspect_network(f"{place.name}.{JOB}")
    assert network["Internal"] is not elsewhere


@pytest.mark.parametrize("egress", [False, True])
async def test_a_port_of_a_pod_is_closed_to_other_jobs_and_without_egress_to_the_machine(
    place: Containers, egress: bool
) -> None:
    """Try the address of a listening pod from a pod of another job with the same reach, and from the machine."""
    tell = "import socket; print(socket.gethostbyname(socket.gethostname()), flush=True)"
    serve = LISTEN.replace("import os, socket", tell)
    backend = place.backend = await place.opened(metadata_addresses=NOBODYS)
    await backend.launch(PodSpec("victim", "ps-0", ("python", "-c", serve), {}, 1.0, 2**28, image=IMAGE, egress=egress))

    async def address() -> str:
        return await backend.logs("victim", "ps-0", 1)

    victim = await until(address, lambda: "the victim listens")
    attack = f"{REACH}\n    print(reach({victim!r}, 7000), reach({UNUSED!r}, 7000), flush=True)"
    await backend.launch(spec(place, script=attack, egress=egress))
    reached, anything = (await said(place)).split()
    if anything == "True":
        pytest.skip("whatever address a pod tries, something between answers")
    assert reached == "False"
    from_machine = f"{REACH}\n    print(reach({victim!r}, 7000), reach({UNUSED!r}, 7000))"
    command = ["python", "-c", textwrap.dedent(from_machine)]
    reached, anything = (await asyncio.to_thread(backend._engine.output, IMAGE, command, "host")).split()
    if anything == "True":
        pytest.skip("whatever address this machine tries, something between answers")
    assert reached == str(egress)


async def test_a_job_with_a_way_out_is_refused_where_cloud_metadata_answers(place: Containers) -> None:
    """The bridge's own address stands for the metadata server's; a service of the machine answers there at port 80."""
    pools = f"10.{random.SystemRandom().randrange(80, 240)}.0.0/24"
    address = str(next(ip_network(pools).hosts()))
    serve = LISTEN.replace("7000", "80")
    backend = place.backend = await place.opened(docker_subnets=pools, metadata_addresses=address)
    with container(place, "m", serve, "host", []):
        with pytest.raises(BackendError, match=f"cloud metadata answers to containers here at {address}"):
            await backend.launch(spec(place, egress=True))
        assert place.client.networks(names=[f"^{place.name}.{JOB}$"]) == []
        await backend.launch(spec(place))
        await running(place)
        await backend.kill(JOB, "worker-0")
        await cleared(place, "worker-0")
    await backend.launch(spec(place, "worker-1", egress=True))
    await running(place, "worker-1")


async def test_networks_of_jobs_are_cut_from_the_range_until_it_is_used_up(place: Containers) -> None:
    """Two jobs take the two halves of a range; a third one is refused with the setting's name."""
    pools = f"10.{random.SystemRandom().randrange(80, 240)}.1.0/28"
    backend = place.backend = await place.opened(docker_subnets=pools, docker_subnet_bits=29)
    for job in ("a", "b"):
        await backend.launch(spec(place, job=job))
    cut = [place.client.inspect_network(f"{place.name}.{job}")["IPAM"]["Config"][0]["Subnet"] for job in ("a", "b")]
    assert [ip_network(each) for each in cut] == list(ip_network(pools).subnets(new_prefix=29))
    with pytest.raises(BackendError, match=r"no /29 is free in STRETTO_ACTUATOR_DOCKER_SUBNETS=10\."):
        await backend.launch(spec(place, job="c"))


@given(st.sets(st.integers(0, 2**10 - 1), max_size=20), st.integers(22, 29), st.integers(22, 29))
def test_free_subnets_overlap_nothing_and_are_all_that_is_free(starts: set[int], bits: int, of_others: int) -> None:
    """Compare with every address of the range: a subnet is offered if and only if none of its addresses is taken."""
    base = ip_network("10.0.0.0/22")
    taken = [ip_network((int(base[start]) >> (32 - of_others) << (32 - of_others), of_others)) for start in starts]
    addresses = {int(address) for other in taken for address in other}
    offered = list(free_subnets([base], bits, taken))
    assert offered == [
        subnet for subnet in base.subnets(new_prefix=bits) if not addresses & {int(address) for address in subnet}
    ]


@pytest.mark.parametrize(
    ("url", "reach", "named"),
    [
        ("nats://127.0.0.1:4222", "out", "names 127.0.0.1, which is each container's own"),
        ("nats://bus,nats://localhost:4222", "job", "names localhost"),
        ("tls://host.docker.internal:4222", "job", "STRETTO_ACTUATOR_DOCKER_REACH=host"),
    ],
)
def test_a_bus_that_pods_cannot_reach_is_refused_at_the_start(url: str, reach: str, named: str) -> None:
    """Settings alone tell that no pod would ever find the bus; no engine is asked."""
    with pytest.raises(SettingsFault, match=named):
        backend_of(ActuatorSettings.model_validate({"pod_nats_url": url, "docker_reach": reach}))


def test_a_bus_on_the_machine_is_taken_where_pods_reach_it() -> None:
    """The mode that the refusal names is accepted."""
    backend_of(ActuatorSettings(pod_nats_url=SecretStr("nats://host.docker.internal:4222"), docker_reach="host"))
