"""The loop and the election against a real HTTP server that loses, forgets, refuses and dies."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fake_kubernetes import Cluster, running_cluster
from hypothesis import given
from hypothesis import strategies as st
from stretto_kube import SECRETS, Api, Election, KubeFault, ObjectChange, Reflector
from stretto_kube.lease import LEASES, Observed, next_step
from stretto_kube.reflector import LONGEST_S, delay_s

from tests.waits import until

LABELS = {"of": "us"}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path) as running:
        yield running


@contextlib.asynccontextmanager
async def reaching(cluster: Cluster, manager: str = "test") -> AsyncIterator[Api]:
    api = await Api.connect(manager, cluster.server.namespace, cluster.kubeconfig())
    try:
        yield api
    finally:
        await api.close()


def secret(name: str, **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": LABELS}, "stringData": data}


@contextlib.asynccontextmanager
async def following(api: Api) -> AsyncIterator[tuple[Reflector, list[ObjectChange]]]:
    heard: list[ObjectChange] = []
    reflector = Reflector(api, SECRETS, "of=us", heard.append, chance=lambda: 0.1)
    task = asyncio.create_task(reflector.run())
    try:
        yield reflector, heard
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_the_view_is_as_the_server_after_every_kind_of_loss(cluster: Cluster) -> None:
    async with reaching(cluster) as api, following(api) as (reflector, heard):
        await reflector.synced.wait()

        async def change_and_see(name: str) -> None:
            await api.apply(SECRETS, secret(name))
            await api.delete(SECRETS, "gone" if name == "kept-0" else f"kept-{int(name[-1]) - 1}")
            expected = {one["metadata"]["name"] for one in cluster.storage.all("secrets")}
            await until(lambda: reflector.store.objects.keys() == expected)

        await change_and_see("kept-0")
        cluster.server.cut()
        await change_and_see("kept-1")
        await cluster.server.stop()
        cluster.storage.remove("secrets", "kept-1")  # while nobody can see it
        cluster.storage.compact()
        await cluster.server.start()
        await until(lambda: reflector.store.objects == {})
        assert [change.object["metadata"]["name"] for change in heard if change.gone] == ["kept-0", "kept-1"]


async def test_history_that_is_gone_is_listed_again(cluster: Cluster) -> None:
    async with reaching(cluster) as api, following(api) as (reflector, _):
        await reflector.synced.wait()
        cluster.storage.compact()
        cluster.server.cut()
        await api.apply(SECRETS, secret("a"))
        await until(lambda: "a" in reflector.store.objects)


async def test_many_objects_come_in_pages(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stretto_kube.api.PAGE", 3)
    async with reaching(cluster) as api:
        for number in range(8):
            await api.apply(SECRETS, secret(f"s-{number}"))
        objects, version = await api.list(SECRETS, "of=us")
        assert len(objects) == 8
        assert version == cluster.storage.version


async def test_applying_leaves_the_fields_of_others_alone(cluster: Cluster) -> None:
    async with reaching(cluster, "one") as one, reaching(cluster, "two") as two:
        await one.apply(SECRETS, {"metadata": {"name": "s"}, "stringData": {"a": "1", "b": "1"}})
        await two.apply(SECRETS, {"metadata": {"name": "s"}, "stringData": {"c": "2"}})
        after = await one.apply(SECRETS, {"metadata": {"name": "s"}, "stringData": {"a": "3"}})
        assert after["stringData"] == {"a": "3", "c": "2"}
        with pytest.raises(KubeFault, match='conflict with "two"') as fault:
            await one.apply(SECRETS, {"metadata": {"name": "s"}, "stringData": {"c": "9"}})
        assert (fault.value.status, fault.value.passing) == (409, False)
        forced = await one.apply(SECRETS, {"metadata": {"name": "s"}, "stringData": {"c": "9"}}, force=True)
        assert forced["stringData"] == {"c": "9"}


async def test_a_server_that_is_down_or_in_trouble_is_passing(cluster: Cluster) -> None:
    async with reaching(cluster) as api:
        cluster.server.failures = [500]
        with pytest.raises(KubeFault) as fault:
            await api.get(SECRETS, "s")
        assert fault.value.passing
        assert await api.get(SECRETS, "s") is None
        await cluster.server.stop()
        with pytest.raises(KubeFault) as fault:
            await api.get(SECRETS, "s")
        assert (fault.value.status, fault.value.passing) == (0, True)


async def test_what_is_refused_says_why(cluster: Cluster) -> None:
    cluster.server.allowed["poor"] = set()
    api = await Api.connect("test", cluster.server.namespace, cluster.kubeconfig("poor"))
    with pytest.raises(KubeFault, match='User "poor" cannot list') as fault:
        await api.list(SECRETS)
    assert not fault.value.passing
    await api.close()


async def test_without_a_cluster_around_it_the_configuration_is_named(tmp_path: Path) -> None:
    with pytest.raises(KubeFault, match="reading kubeconfig"):
        await Api.connect("test", "", tmp_path / "absent")
    with pytest.raises(KubeFault, match="reading the service account of this pod"):
        await Api.connect("test")


class TestElection:
    async def test_one_leads_and_another_takes_over_what_was_given_back(self, cluster: Cluster) -> None:
        async with reaching(cluster) as api:
            first, second = Election(api, "l", "first", 0.5), Election(api, "l", "second", 0.5)
            await first.once()
            await second.once()
            assert (first.leads, second.leads) == (True, False)
            task = asyncio.create_task(first.run())
            await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await second.once()
            assert (first.leads, second.leads) == (False, True)

    async def test_a_dead_leader_is_followed_after_the_duration_and_not_before(self, cluster: Cluster) -> None:
        now = [0.0]
        async with reaching(cluster) as api:
            first = Election(api, "l", "first", 10, clock=lambda: now[0])
            second = Election(api, "l", "second", 10, clock=lambda: now[0])
            await first.once()
            await second.once()
            now[0] = 9.9
            await second.once()
            assert (first.leads, second.leads) == (False, False)  # the first stops in time
            now[0] = 10.0
            await second.once()
            assert second.leads
            await first.once()
            assert not first.leads
            lease = cluster.storage.get("leases", "l")
            assert lease is not None
            assert lease["spec"]["leaseTransitions"] == 1

    async def test_who_cannot_renew_stops_leading(self, cluster: Cluster) -> None:
        now = [0.0]
        async with reaching(cluster) as api:
            election = Election(api, "l", "me", 10, clock=lambda: now[0])
            await election.once()
            await cluster.server.stop()
            now[0] = 6.6
            assert election.leads
            with pytest.raises(KubeFault):
                await election.once()
            now[0] = 6.7
            assert not election.leads

    async def test_who_stumbles_over_an_unforeseen_fault_stands_again(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with reaching(cluster) as api:
            election, once, faults = Election(api, "l", "me", 0.5), Election.once, [ValueError("unforeseen")]

            async def stumbling(self: Election) -> None:
                if faults:
                    raise faults.pop()
                await once(self)

            monkeypatch.setattr(Election, "once", stumbling)
            task = asyncio.create_task(election.run())
            await until(lambda: election.leads)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            assert task.cancelled()


def test_a_lease_without_a_spec_is_nobodys() -> None:
    lease = {"metadata": {"resourceVersion": "7"}, "spec": None}
    assert next_step(lease, Observed("7", 0.0), "me", 10.0, 0.0) == "take"


@given(st.text(max_size=3), st.floats(0, 100), st.floats(0, 100), st.floats(1, 60))
def test_a_lease_of_another_is_never_taken_within_its_duration(
    holder: str, since_s: float, passed_s: float, duration_s: float
) -> None:
    lease = {"metadata": {"resourceVersion": "7"}, "spec": {"holderIdentity": holder}}
    step = next_step(lease, Observed("7", since_s), "me", duration_s, since_s + passed_s)
    if holder not in ("", "me") and passed_s < duration_s * 0.999:
        assert step == "wait"
    assert (step == "renew") == (holder == "me")
    assert LEASES.path("ns", "l") == "/apis/coordination.k8s.io/v1/namespaces/ns/leases/l"


@given(st.integers(0, 10**6), st.floats(0, 1, exclude_max=True))
def test_the_delay_is_bounded(failures: int, chance: float) -> None:
    assert 0 <= delay_s(failures, chance) <= LONGEST_S
