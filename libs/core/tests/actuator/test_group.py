"""Workers that average dense gradients: each is told of all, and of nobody who is gone."""

from __future__ import annotations

from dataclasses import replace

from actuator_builders import get_servers, plan, plan_decided
from actuator_cluster import SimulatedCluster
from stretto_core.actuator.state import JobOpened
from stretto_messages.actuator import GroupChanged
from stretto_messages.base import GIB
from stretto_messages.values import WorkerGroup


def test_every_change_of_the_running_workers_is_told() -> None:
    cluster = SimulatedCluster(JobOpened("job", samples_total=12, worker_failures=9, averages_dense=True))
    cluster.tell(plan_decided(1, plan(workers=3)))
    cluster.run()
    told = cluster.told(GroupChanged)
    assert [member.index for member in told[-1].workers] == [0, 1, 2]
    cluster.kill("worker-1")
    assert [member.index for member in cluster.told(GroupChanged)[-1].workers] == [0, 2]
    cluster.run()
    last = cluster.told(GroupChanged)[-1]
    assert [(member.index, member.address) for member in last.workers] == [
        (0, "127.0.0.1:0"), (2, "127.0.0.1:2"), (3, "127.0.0.1:3")
    ]  # fmt: skip
    assert [fact.version for fact in cluster.told(GroupChanged)] == [*range(1, last.version + 1)]
    (reply,) = cluster.tell(get_servers("worker-0"))
    assert (reply.group_version, reply.group) == (last.version, last.workers), "who has missed the event asks"


def test_ranks_of_one_program_are_told_how_many_the_plan_has() -> None:
    cluster = SimulatedCluster(JobOpened("job", samples_total=12, worker_failures=9, together=True))
    cluster.tell(plan_decided(1, plan(workers=2)))
    cluster.run()
    cluster.kill("worker-1")
    told = cluster.told(GroupChanged)[-1]
    assert ([member.index for member in told.workers], told.wanted) == ([0], 2)
    (reply,) = cluster.tell(get_servers("worker-0"))
    assert (reply.group_version, reply.group_wanted) == (told.version, 2)
    cluster.run()
    cluster.tell(plan_decided(2, plan(workers=1)))
    assert [(len(each.workers), each.wanted) for each in cluster.told(GroupChanged)[-2:]] == [(2, 2), (1, 1)]


def test_members_have_the_devices_of_their_group() -> None:
    cluster = SimulatedCluster(JobOpened("job", samples_total=12, averages_dense=True))
    mixed = replace(plan(workers=3), groups=(WorkerGroup("gpu-a", 2, 8.0, 64 * GIB),))
    cluster.tell(plan_decided(1, mixed))
    cluster.run()
    assert sorted(member.device for member in cluster.told(GroupChanged)[-1].workers) == ["", "gpu-a", "gpu-a"]


def test_a_job_that_asks_for_none_has_no_group() -> None:
    cluster = SimulatedCluster()
    cluster.tell(plan_decided(1, plan(workers=2)))
    cluster.run()
    assert not cluster.told(GroupChanged)
