"""The actuator's machine against a simulated cluster: every order of observations ends in the plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from actuator_builders import (
    buckets_claimed,
    checkpoint_failed,
    checkpoint_flushed,
    counts_taken,
    get_servers,
    hot_cleared,
    hot_detected,
    job_cancelled,
    job_completed,
    job_progressed,
    moves_finished,
    plan,
    plan_decided,
    pod_exited,
    pod_given_up,
    pod_pending,
    pod_resize_refused,
    pod_started,
)
from actuator_cluster import SimulatedCluster, started
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from stretto_core.actuator import failures
from stretto_core.actuator.machine import ActuatorMachine
from stretto_core.actuator.placement import UnownedColumns, claim, plan_moves
from stretto_core.actuator.state import ActuatorState, JobOpened
from stretto_core.actuator.steps import next_steps
from stretto_messages.actuator import (
    JobFailed,
    JobFinished,
    MigrationFinished,
    PlanApplied,
    PodExited,
    PodResized,
    PodStarted,
    ServersChanged,
)
from stretto_messages.base import GIB


def test_first_plan_starts_servers_then_claims_then_workers() -> None:
    cluster = started(plan(workers=2, ps=2))
    assert cluster.launched == ["ps-0", "ps-1", "worker-0", "worker-1"]
    assert sorted(b for columns in cluster.own.values() for b in columns) == list(range(64))
    kinds = [type(fact).__name__ for fact in cluster.facts]
    assert kinds == ["PodStarted", "PodStarted", "ServersChanged", "PodStarted", "PodStarted", "PlanApplied"]
    assert cluster.told(PlanApplied)[0].took_s > 0


def test_growth_migrates_before_workers_join_and_shrink_drains_before_it_stops() -> None:
    cluster = started(plan(workers=1, ps=2))
    cluster.facts.clear()
    cluster.tell(plan_decided(2, plan(workers=2, ps=3)))
    cluster.run()
    kinds = [type(fact).__name__ for fact in cluster.facts]
    assert kinds == [
        "PodStarted",
        "ServersChanged",
        "MigrationStarted",
        "MigrationFinished",
        "PodStarted",
        "PlanApplied",
    ]
    assert sorted(len(b) for b in cluster.own.values()) == [21, 21, 22]
    cluster.facts.clear()
    cluster.tell(plan_decided(3, plan(workers=1, ps=1)))
    leaving = [pod.name for pod in cluster.state.pods.values() if pod.leaving]
    assert leaving == ["ps-1", "ps-2"]
    cluster.run()
    assert cluster.running("ps") == ["ps-0"]
    assert len(cluster.own[0]) == 64
    assert cluster.running("worker") == ["worker-0"]
    stopped = [fact for fact in cluster.told(PodExited)]
    assert {fact.reason for fact in stopped} == {"stopped"}
    drained = cluster.facts.index(cluster.told(MigrationFinished)[0])
    assert all(cluster.facts.index(f) > drained for f in stopped if f.role == "ps")


def test_dead_worker_is_replaced_at_once_under_a_new_name_and_then_more_slowly() -> None:
    cluster = started(plan(workers=2))
    cluster.kill("worker-1")
    assert next_steps(cluster.state, cluster.now).launch[0].name == "worker-2"
    cluster.run()
    assert cluster.running("worker") == ["worker-0", "worker-2"]
    assert cluster.told(PodStarted)[-1].cause == "relaunch"
    cluster.kill("worker-2")
    steps = next_steps(cluster.state, cluster.now)
    assert steps.launch == ()
    assert steps.retry_at_s is not None
    assert steps.retry_at_s > cluster.now
    assert [exit.again_in_s for exit in cluster.told(PodExited)] == [0.0, steps.retry_at_s - cluster.now]


def test_stable_pod_resets_the_back_off() -> None:
    cluster = started(plan(workers=1))
    for _ in range(5):
        cluster.now += failures.STABLE_S
        cluster.kill(cluster.running("worker")[0])
        assert next_steps(cluster.state, cluster.now).launch
        cluster.run()


def test_users_error_beyond_the_limit_fails_the_job_and_clears_it() -> None:
    cluster = started(plan(workers=1), JobOpened("job", worker_failures=2))
    cluster.tell(job_progressed(samples_done=1))
    for _ in range(3):
        cluster.kill(cluster.running("worker")[0], "failed", 3)
        cluster.run()
    assert [fact.reason for fact in cluster.told(JobFailed)]
    assert "workers ended so 3 times, and restarts.worker_failures allows 2" in cluster.told(JobFailed)[0].reason
    assert cluster.pods == {}
    assert cluster.state.phase == "failed"


@pytest.mark.parametrize("name", ["worker-0", "ps-0"])
def test_a_pod_that_used_up_what_all_need_fails_its_job_at_once(name: str) -> None:
    cluster = started(plan(workers=2, ps=2), JobOpened("job", worker_failures=9))
    cluster.pods.pop(name)
    cluster.tell(replace(pod_exited(name, "killed", 137), used_up="the disk: all of it"))
    cluster.run()
    assert [failed.reason for failed in cluster.told(JobFailed)] == ["the job has used up the disk: all of it"]
    assert cluster.pods == {}


def test_a_model_that_no_server_can_build_fails_the_job_at_once_with_the_reason() -> None:
    cluster = SimulatedCluster(JobOpened("job", worker_failures=10))
    cluster.tell(plan_decided(1, plan()))
    told = "noise\n2026 INFO job ps-0 exit 3: ModelRefused: no Nope"
    cluster.tell(pod_exited("ps-0", "failed", 3, told))
    assert cluster.told(JobFailed)[0].reason == "the model cannot be built: ModelRefused: no Nope"


def test_resize_in_place_then_applied() -> None:
    cluster = started(plan())
    cluster.tell(plan_decided(2, plan(cpu=2.0, memory=2 * GIB)))
    cluster.run()
    assert {fact.pod for fact in cluster.told(PodResized)} == {"ps-0", "worker-0"}
    assert [fact.version for fact in cluster.told(PlanApplied)] == [1, 2]
    assert cluster.launched == ["ps-0", "worker-0"]


def test_columns_that_cannot_come_back_alone_bring_everything_back_from_a_checkpoint() -> None:
    cluster = started(plan(workers=2, ps=2))
    cluster.kill("ps-0")
    cluster.tell(checkpoint_failed("job-columns-1", "the newest checkpoint is damaged"))
    lost = cluster.told(ServersChanged)[-1]
    assert lost.servers == ()
    assert lost.version == 3
    while cluster.state.layout != "restoring":
        cluster.step()
    assert cluster.running("ps") == ["ps-1", "ps-2"], "the one that lives is emptied in place"
    assert cluster.running("worker") == ["worker-0", "worker-1"]
    assert [s.index for s in cluster.told(ServersChanged)[-1].servers] == [1, 2]
    assert cluster.tell(get_servers("worker-0"))[0].version == 0, "nothing may be pulled before the restore"
    cluster.run()
    assert cluster.running("worker") == ["worker-0", "worker-1"]
    assert cluster.tell(get_servers("worker-0"))[0].version == 4


def test_lost_server_without_checkpoint_fails_clearly() -> None:
    cluster = started(plan())
    cluster.kill("ps-0")
    cluster.tell(checkpoint_failed("job-000003", "a parameter server was lost while it was taken"))
    assert not cluster.told(JobFailed)
    cluster.tell(checkpoint_failed("job-restore-1", "the job has no checkpoint"))
    cluster.run()
    assert "no checkpoint" in cluster.told(JobFailed)[0].reason
    assert cluster.pods == {}


def test_job_from_a_checkpoint_waits_for_it() -> None:
    cluster = SimulatedCluster(JobOpened("job", restores=True))
    cluster.tell(plan_decided(1, plan(ps=2)))
    while cluster.state.layout != "restoring":
        cluster.step()
    assert cluster.running("worker") == ["worker-0"]
    assert cluster.tell(get_servers("worker-0"))[0].version == 0, "nothing may be pulled before the restore"
    assert len(cluster.told(ServersChanged)) == 1
    cluster.tell(plan_decided(2, plan(ps=1)))
    cluster.run()
    assert cluster.running("ps") == ["ps-0"]
    assert cluster.running("worker") == ["worker-0"]
    assert [fact.version for fact in cluster.told(PlanApplied)] == [2]


def test_server_that_dies_before_the_claim_is_heard_restarts_the_set() -> None:
    cluster = SimulatedCluster()
    cluster.tell(plan_decided(1, plan(ps=2)))
    steps = next_steps(cluster.state, cluster.now)
    for pod in steps.launch:
        cluster.tell(pod_started(pod.name, pod.cpu_cores, pod.memory_bytes))
    cluster.tell(pod_exited("ps-1", "killed", 137))
    cluster.tell(buckets_claimed("ps-0", "ps-1"))
    cluster.run()
    assert cluster.running("ps") == ["ps-2", "ps-3"]
    assert cluster.state.layout == "ready"


def test_completion_takes_the_books_and_ends_all_pods() -> None:
    cluster = started(plan(workers=2), JobOpened("job", samples_total=12, samples_given_up_max=2))
    cluster.tell(job_completed(samples_abandoned=2))
    cluster.tell(plan_decided(2, plan(workers=5)))
    cluster.run()
    assert cluster.told(JobFinished)[0].samples_expected == 10
    assert cluster.pods == {}
    assert cluster.state.phase == "finished"
    cluster.tell(counts_taken())
    assert len(cluster.told(JobFinished)) == 1


def test_evaluation_gets_a_worker_even_if_the_last_one_died() -> None:
    cluster = started(plan(workers=1), JobOpened("job", evaluate=100))
    cluster.tell(job_completed(samples_abandoned=2))
    cluster.kill("worker-0")
    assert next_steps(cluster.state, cluster.now).launch[0].name == "worker-1"


def test_late_word_of_an_older_layout_is_ignored() -> None:
    cluster = started(plan(ps=2))
    cluster.tell(plan_decided(2, plan(ps=1)))
    number = cluster.state.rebalance_number
    cluster.tell(plan_decided(3, plan(ps=2)))
    cluster.tell(moves_finished(number, 3))
    assert cluster.state.rebalance is not None
    assert cluster.running("ps") == ["ps-0", "ps-1"]
    cluster.run()
    assert cluster.running("ps") == ["ps-0", "ps-1"]


def test_cancelled_job_only_stops() -> None:
    cluster = started(plan(workers=2))
    assert not cluster.machine.ended
    cluster.tell(job_cancelled())
    assert not cluster.machine.ended, "its pods are to be stopped"
    cluster.run()
    assert cluster.machine.ended
    assert cluster.pods == {}
    assert not cluster.told(JobFailed)
    assert not cluster.told(JobFinished)


def test_unknown_job_is_told_so() -> None:
    machine = ActuatorMachine()
    (answer,) = machine.handle(get_servers(), 1.0)
    assert answer.body.answer == "unknown"  # type: ignore[union-attr]


plans = st.builds(plan, st.integers(1, 4), st.integers(1, 4), st.sampled_from([0.5, 1.0]))
events = st.one_of(
    st.tuples(st.just("plan"), plans),
    st.tuples(st.just("kill"), st.integers(0, 9)),
    st.tuples(st.just("lose"), st.integers(0, 3)),
    st.tuples(st.just("step"), st.integers(1, 3)),
    st.tuples(st.just("again"), st.integers(0, 50)),
    st.tuples(st.just("hot"), st.integers(0, 11)),
    st.tuples(st.just("cool"), st.integers(0, 3)),
    st.tuples(st.just("wait"), st.integers(0, 7)),
    st.tuples(st.just("snapshot"), st.just(0)),
    st.tuples(st.just("forget"), st.booleans()),
)


def find_no_room(cluster: SimulatedCluster, value: int) -> None:
    """One of the pods that start, if any does; every other time it is given up."""
    starting = [pod.name for pod in cluster.state.pods.values() if pod.phase == "starting"]
    for name in starting[value % max(len(starting), 1) :][:1]:
        cluster.tell(pod_pending(name, "no-room"))
        if value % 2:
            cluster.tell(pod_given_up(name))


def change_pace(cluster: SimulatedCluster, kind: str, value: int) -> None:
    """A server becomes hot, slower or only busier than its peers, or keeps pace again."""
    if kind == "hot":
        cluster.now += 61
        cluster.tell(hot_detected(f"ps-{value % 4}", (0.001, 0.004, 0.1)[value // 4], 0.001))
    else:
        cluster.tell(hot_cleared(f"ps-{value}", 0.001, 0.001))


STATE = TypeAdapter(ActuatorState)


@settings(max_examples=150)
@given(st.lists(events, max_size=25))
@pytest.mark.proof
def test_every_order_of_exits_plans_duplicates_and_restarts_converges(script: list[tuple[str, Any]]) -> None:
    cluster = started(plan())
    version, heard = 1, list[Any]()
    told, cluster.tell = cluster.tell, lambda event: (heard.append(event), told(event))[1]  # type: ignore[method-assign]
    for kind, value in script:
        if kind == "plan":
            version += 1
            cluster.tell(plan_decided(version, value))
        elif names := cluster.running({"kill": "worker", "lose": "ps"}.get(kind, "nobody")):
            cluster.kill(names[value % len(names)])
        elif kind == "step":
            for _ in range(value):
                cluster.step()
        elif kind == "again" and heard:
            cluster.tell(heard[value % len(heard)])
        elif kind in ("hot", "cool"):
            change_pace(cluster, kind, value)
        elif kind == "forget":
            cluster.knows_samples = not value
        elif kind == "wait":
            find_no_room(cluster, value)
        elif kind == "snapshot":
            cluster.machine.state = STATE.validate_json(STATE.dump_json(cluster.state))
    cluster.run()
    wanted = cluster.state.plan
    if cluster.state.phase == "failed":  # the limits of failures are reached by the script
        assert cluster.pods == {}
        return
    assert cluster.state.plan_version == version
    assert (len(cluster.running("worker")), len(cluster.running("ps"))) == (wanted.workers, wanted.ps)
    assert len(set(cluster.launched)) == len(cluster.launched)
    assert sorted(b for columns in cluster.own.values() for b in columns) == list(range(64)), (
        "no bucket lost or doubled"
    )
    assert cluster.state.applied_version == version
    started_names = [fact.pod for fact in cluster.told(PodStarted)]
    assert len(set(started_names)) == len(started_names)


@settings(max_examples=60)
@given(st.integers(1, 6), st.integers(1, 6), st.randoms(use_true_random=False))
def test_moves_are_the_fewest_and_end_balanced(before: int, after: int, random: Any) -> None:
    first = claim(list(range(before)))
    vectors = {s: [int(b in part[0]) for b in range(64)] for s, part in first.items()}
    slices = {s: [int(c in part[1]) for c in range(12)] for s, part in first.items()}
    for server in range(before, after):
        vectors[server], slices[server] = [0] * 64, [0] * 12
    rows = [random.randint(0, 1000) for _ in range(64)]
    moves = plan_moves(vectors, slices, rows, {server: 1.0 for server in range(after)})
    for first, width, own in ((0, 64, vectors), (64, 12, slices)):
        count = {server: sum(vector) for server, vector in own.items()}
        moved = 0
        for destination, part in moves.items():
            for column, source in part:
                if first <= column < first + width:
                    assert own[source][column - first] == 1
                    count[source] -= 1
                    count[destination] += 1
                    moved += 1
        final = [count[server] for server in range(after)]
        assert max(final) - min(final) <= 1
        assert sum(final) == width
        assert moved == sum(max(sum(own[s]) - count[s], 0) for s in count)


def test_unowned_bucket_is_named() -> None:
    with pytest.raises(UnownedColumns, match=r"columns \[1\] of 2"):
        plan_moves({0: [1, 0]}, {0: [1]}, [1, 1], {0: 1.0})


def test_bucket_left_frozen_by_a_broken_move_is_taken_again_by_its_owner() -> None:
    vectors = {0: [1, 2], 1: [0, 0]}
    moves = plan_moves(vectors, {0: [1], 1: [0]}, [1, 1], {0: 1.0})
    assert moves == {0: [(1, 0)]}
    assert plan_moves({0: [1, 1]}, {0: [2]}, [1, 1], {0: 1.0}) == {0: [(2, 0)]}
    taken_over = {0: [1, 2], 1: [0, 1]}  # and not yet released at its source
    assert plan_moves(taken_over, {0: [1], 1: [0]}, [1, 1], {0: 1.0, 1: 1.0}) == {1: [(1, 0)]}


def test_bucket_left_frozen_at_a_server_that_gives_it_away_is_thawed_before_it_moves() -> None:
    """A mover waits in vain for a column that a dead one froze: planned at once, the move would fail for ever."""
    frozen, taken = {0: [2, 2], 1: [0, 0]}, {0: [1], 1: [0]}
    assert plan_moves(frozen, taken, [1, 1], {1: 1.0}) == {1: [(2, 0)], 0: [(0, 0), (1, 0)]}
    thawed = {0: [1, 1], 1: [0, 0]}
    assert plan_moves(thawed, taken, [1, 1], {1: 1.0})[1] == [(2, 0), (0, 0), (1, 0)]


def test_server_lost_after_the_last_shard_trains_the_rest_again_and_finishes() -> None:
    cluster = started(plan(ps=2), JobOpened("job", samples_total=10, final_checkpoint=True))
    cluster.tell(job_completed())
    cluster.tell(checkpoint_flushed("job-1-final"))
    assert cluster.state.phase == "completing"
    cluster.kill("ps-0")
    assert (cluster.state.phase, cluster.state.final_checkpoint_due) == ("active", True)
    cluster.tell(job_completed())  # said before the dispatcher heard of the loss
    cluster.tell(checkpoint_failed("job-2-final", "a server was lost"))
    assert (cluster.state.phase, cluster.state.final_checkpoint_due) == ("active", True)
    cluster.run()
    assert cluster.state.layout == "ready"
    assert cluster.running("worker") == ["worker-0"]
    assert not cluster.told(JobFinished)
    cluster.tell(job_completed())
    cluster.run()
    assert len(cluster.told(JobFinished)) == 1
    assert cluster.pods == {}


def test_worker_killed_for_its_memory_comes_back_with_more_up_to_the_limit() -> None:
    cluster = started(plan(), JobOpened("job", worker_memory_max_bytes=2 * GIB))
    for wanted in (3 * GIB // 2, 2 * GIB, 2 * GIB):
        cluster.now += failures.STABLE_S
        cluster.kill(cluster.running("worker")[0], "oom-killed")
        cluster.run()
        (worker,) = cluster.state.of_role("worker")
        assert (worker.memory_bytes, worker.memory_bytes_now) == (wanted, wanted)
    cluster.tell(plan_decided(2, plan(memory=GIB)))
    cluster.run()
    assert cluster.state.of_role("worker")[0].memory_bytes == 2 * GIB
    assert cluster.state.of_role("ps")[0].memory_bytes == GIB


@pytest.mark.parametrize(("reason", "code"), [("oom-killed", 137), ("killed", 139)])
def test_workers_that_keep_dying_by_themselves_end_the_job(reason: str, code: int) -> None:
    cluster = started(plan(workers=2), JobOpened("job", worker_memory_max_bytes=2 * GIB))
    for _ in range(failures.CRASHES_MAX + 1):
        assert not cluster.told(JobFailed)
        cluster.now += failures.STABLE_S + 1
        cluster.kill(cluster.running("worker")[0], reason, code)
        cluster.run()
    (failed,) = cluster.told(JobFailed)
    assert "resources.workers.memory.max" in failed.reason
    assert cluster.pods == {}


def test_preemptions_and_workers_that_endure_do_not_end_the_job() -> None:
    cluster = started(plan(workers=1))
    for _ in range(2 * failures.CRASHES_MAX):
        cluster.now += failures.STABLE_S
        cluster.kill(cluster.running("worker")[0])
        cluster.run()
        cluster.now += failures.ENDURING_S
        cluster.kill(cluster.running("worker")[0], "killed", 139)
        cluster.run()
    assert not cluster.told(JobFailed)


def test_pod_that_has_exited_is_told_that_it_is_unknown() -> None:
    cluster = started(plan())
    assert cluster.tell(get_servers("worker-0"))[0].answer == "ok"
    cluster.kill("worker-0")
    assert cluster.tell(get_servers("worker-0"))[0].answer == "unknown"
    assert cluster.tell(get_servers("worker-1"))[0].answer == "ok"


def grown(workers: int, ps: int) -> SimulatedCluster:
    """A job whose plan has just been given more cores, where nothing grows in place."""
    cluster = started(plan(workers=workers, ps=ps))
    cluster.in_place = False
    cluster.tell(plan_decided(2, plan(workers=workers, ps=ps, cpu=3.0)))
    return cluster


@given(st.integers(1, 4), st.integers(1, 3))
def test_every_pod_is_replaced_and_nothing_goes_back_to_a_checkpoint(workers: int, ps: int) -> None:
    cluster = grown(workers, ps)
    cluster.run(200)
    assert {pod.cpu_cores_now for pod in cluster.state.pods.values()} == {3.0}
    assert (len(cluster.running("worker")), len(cluster.running("ps"))) == (workers, ps)
    assert sorted(column for columns in cluster.own.values() for column in columns) == list(range(64))
    assert cluster.told(PlanApplied)[-1].version == 2
    assert cluster.state.recoveries == 0
    assert {fact.reason for fact in cluster.told(PodExited)} == {"stopped"}


def test_one_of_a_role_is_replaced_at_a_time() -> None:
    cluster = grown(workers=3, ps=2)
    least = 3
    for _ in range(200):
        if not cluster.step():
            break
        least = min(least, sum(pod.phase == "running" for pod in cluster.state.of_role("worker")))
    assert least == 2


def test_who_leaves_already_or_is_not_there_is_left_alone() -> None:
    cluster = grown(workers=1, ps=1)
    cluster.tell(pod_resize_refused("worker-9"))
    cluster.tell(pod_resize_refused("ps-0"))
    numbers = cluster.state.rebalance_number, dict(cluster.state.next_number)
    cluster.tell(pod_resize_refused("ps-0"))
    assert (cluster.state.rebalance_number, cluster.state.next_number) == numbers
    cluster.tell(job_cancelled())
    cluster.tell(pod_resize_refused("worker-0"))
    assert all(pod.phase == "stopping" for pod in cluster.state.pods.values())
