"""The loss of a parameter server while others survive: only its columns go back, and no other pod stops."""

from __future__ import annotations

import pytest
from actuator_builders import (
    checkpoint_failed,
    hot_detected,
    job_completed,
    moves_finished,
    moves_started,
    plan,
    plan_decided,
    pod_started,
    recomputation_decided,
    server_emptied,
)
from actuator_cluster import SimulatedCluster, started
from stretto_core.actuator import servers
from stretto_core.actuator.steps import next_steps
from stretto_messages.actuator import (
    JobFailed,
    JobFinished,
    MigrationStarted,
    ParametersLost,
    PodExited,
    ServersChanged,
)


def lost_one(workers: int = 2, ps: int = 2) -> SimulatedCluster:
    cluster = started(plan(workers=workers, ps=ps))
    cluster.facts.clear()
    cluster.kill("ps-0")
    return cluster


def test_the_loss_is_published_before_the_servers_that_survive_under_one_version() -> None:
    cluster = lost_one()
    exited, lost, changed = cluster.facts
    assert isinstance(exited, PodExited)
    assert isinstance(lost, ParametersLost)
    assert isinstance(changed, ServersChanged)
    assert (lost.pod, lost.version, changed.version) == ("ps-0", 2, 2)
    assert lost.servers == changed.servers
    assert [server.index for server in lost.servers] == [1]


def test_no_other_pod_stops_and_a_fresh_server_gets_its_share_once_the_columns_are_back() -> None:
    """Goal: the job trains on; its pods and their columns are as planned in the end. Method: nothing moves before."""
    cluster = lost_one()
    steps = next_steps(cluster.state, cluster.now)
    assert [pod.name for pod in steps.launch] == ["ps-2"]
    assert not steps.stop
    cluster.run()
    assert [fact.pod for fact in cluster.told(PodExited)] == ["ps-0"]
    assert cluster.running("worker") == ["worker-0", "worker-1"]
    assert cluster.running("ps") == ["ps-1", "ps-2"]
    assert [len(cluster.own[number]) for number in (1, 2)] == [32, 32]
    assert [fact.cause for fact in cluster.told(MigrationStarted)] == ["plan"]
    assert cluster.state.recoveries == 1


def test_pods_that_ask_meanwhile_get_the_servers_that_survive() -> None:
    from actuator_builders import get_servers

    cluster = lost_one()
    (reply,) = cluster.tell(get_servers("worker-0"))
    assert (reply.version, [server.index for server in reply.servers]) == (2, [1])


def test_an_answer_about_an_earlier_loss_changes_nothing() -> None:
    cluster = started(plan(ps=3))
    cluster.kill("ps-0")
    cluster.kill("ps-1")
    assert [fact.version for fact in cluster.told(ParametersLost)] == [2, 3]
    assert [server.index for server in cluster.told(ParametersLost)[-1].servers] == [2]
    cluster.tell(recomputation_decided(2))
    assert cluster.state.layout == "recovering"
    cluster.tell(recomputation_decided(2, granted=False))
    assert cluster.state.layout == "recovering"
    cluster.run()
    assert [fact.pod for fact in cluster.told(PodExited)] == ["ps-0", "ps-1"]
    assert sorted(bucket for owned in cluster.own.values() for bucket in owned) == list(range(64))


@pytest.mark.parametrize("why", ["the ledger does not know", "the checkpoint is damaged", "the last server dies"])
def test_everything_goes_back_where_columns_cannot_alone(why: str) -> None:
    cluster = lost_one()
    if why == "the ledger does not know":
        cluster.tell(recomputation_decided(2, granted=False))
    elif why == "the checkpoint is damaged":
        cluster.tell(checkpoint_failed("job-columns-7", "no copy is whole"))
    else:
        cluster.kill("ps-1")
    assert cluster.told(ServersChanged)[-1].servers == ()
    cluster.knows_samples = False
    cluster.run()
    assert cluster.running("worker") == ["worker-0", "worker-1"], "a worker keeps its process"
    left = ["ps-2", "ps-3"] if why == "the last server dies" else ["ps-1", "ps-2"]
    assert cluster.running("ps") == left, "neither a living server nor a successor that starts already is replaced"
    assert cluster.state.layout == "ready"
    assert not cluster.told(JobFailed)


def test_no_living_server_gets_its_part_before_all_are_emptied_for_this_return() -> None:
    """Method: both survivors of three are to be emptied; one dies first, and word of an earlier return comes late."""
    cluster = started(plan(ps=3))
    cluster.kill("ps-0")
    cluster.tell(checkpoint_failed("job-columns-7", "no copy is whole"))
    first = cluster.state.returned_version
    for pod in next_steps(cluster.state, cluster.now).launch:
        cluster.tell(pod_started(pod.name, pod.cpu_cores, pod.memory_bytes))
    assert [pod.name for pod in next_steps(cluster.state, cluster.now).empty] == ["ps-1", "ps-2"]
    cluster.tell(server_emptied("ps-1", first))
    assert (cluster.state.layout, cluster.told(ServersChanged)[-1].servers) == ("empty", ())
    cluster.tell(server_emptied("ps-2", first))
    assert [server.index for server in cluster.told(ServersChanged)[-1].servers] == [1, 2, 3]
    cluster.kill("ps-3")
    assert cluster.state.returned_version > first
    cluster.tell(server_emptied("ps-1", first))
    assert [pod.name for pod in next_steps(cluster.state, cluster.now).empty] == ["ps-1", "ps-2"]
    cluster.kill("ps-2")  # it did not answer
    cluster.run()
    assert cluster.running("ps") == ["ps-1", "ps-4", "ps-5"]
    assert cluster.state.layout == "ready"
    assert cluster.state.recoveries == 2, "a server that nobody knows is no loss of parameters"


def test_a_server_lost_while_columns_move_brings_everything_back() -> None:
    """Goal: a column between two servers is never taken for lost, nor an old copy of it for the column."""
    cluster = started(plan(ps=2))
    cluster.tell(plan_decided(2, plan(ps=3)))
    while not cluster.state.rebalance or not next_steps(cluster.state, cluster.now).rebalance:
        for pod in next_steps(cluster.state, cluster.now).launch:
            cluster.step()
            assert pod
    cluster.tell(moves_started(cluster.state.rebalance_number, 21))
    cluster.kill("ps-1")
    assert cluster.told(ServersChanged)[-1].servers == ()
    assert not cluster.told(ParametersLost)
    cluster.run()
    assert cluster.running("ps") == ["ps-0", "ps-2", "ps-3"]
    assert cluster.running("worker") == ["worker-0"]


def test_word_of_moves_that_was_on_its_way_when_a_server_died_is_ignored() -> None:
    cluster = started(plan(ps=2))
    cluster.tell(hot_detected("ps-1", 0.004, 0.0016))
    assert cluster.state.rebalance == "hot-ps"
    cluster.kill("ps-0")
    number = cluster.state.rebalance_number
    cluster.tell(moves_started(number, 3))
    assert cluster.state.migration is None
    cluster.tell(moves_finished(number, 0))
    assert cluster.state.rebalance == "hot-ps"
    cluster.run()
    assert sorted(bucket for owned in cluster.own.values() for bucket in owned) == list(range(64))


def test_a_completion_published_before_the_ledger_heard_of_the_loss_does_not_end_the_job() -> None:
    cluster = lost_one()
    cluster.tell(job_completed())
    assert cluster.state.phase == "active"
    cluster.run()
    assert not cluster.told(JobFinished)
    cluster.tell(job_completed())
    cluster.run()
    assert len(cluster.told(JobFinished)) == 1


def test_too_many_losses_in_a_row_end_the_job() -> None:
    """Losses of long ago do not count."""
    cluster = started(plan(ps=2))
    for number in range(11):
        cluster.now += servers.CALM_S * (number == 5)
        assert not cluster.told(JobFailed)
        cluster.kill(cluster.running("ps")[0])
        cluster.run()
    assert "the 6. loss of parameters" in cluster.told(JobFailed)[0].reason
