"""The actuator over a real bus with real processes: plans become pods, and their ends are told truly."""

from __future__ import annotations

import json
import os
import shutil
import signal
from dataclasses import replace
from typing import Any

import pytest
from stretto_actuator.backend import BackendError, PodSpec
from stretto_actuator.local.backend import LocalBackend
from stretto_actuator.pod.logs import PodLogs
from stretto_bus.reading.ordered_consumer import read
from stretto_messages.actuator import (
    GetPodLog,
    GetServers,
    JobFailed,
    JobFinished,
    MigrationFinished,
    MigrationStarted,
    PodExited,
    PodResized,
    PodStarted,
    ReplacementAsked,
    ReplacementEnded,
    ServersChanged,
)
from stretto_messages.arbiter import ReplacementDecided
from stretto_messages.base import example_of
from stretto_messages.books import CompletedBooks
from stretto_messages.dispatcher import JobCompleted
from stretto_messages.gateway import JobCancelled
from stretto_messages.pods import GetOwnership
from stretto_messages.profiler import HotPsDetected
from stretto_wire.contract.registry import DEAD_LETTERS, STATE, STREAM, TELEMETRY

from tests.live_bus import unpacked


async def ownership(stage: Any, job: str, pods: list[str]) -> dict[str, int]:
    replies = {pod: await stage.client.call_pod(pod, GetOwnership(job=job)) for pod in pods}
    return {pod: sum(reply.buckets) for pod, reply in replies.items()}


async def test_a_job_from_its_first_plan_to_its_books(stage: Any) -> None:
    await stage.begin(workers=1, ps=2, evaluate=50)
    assert await stage.running() == ["ps-0", "ps-1", "worker-0"]
    assert json.loads((stage.folder / "pods/actuated/ps-1/files/job.json").read_text())["name"] == "actuated"
    first = stage.told(ServersChanged)[0]
    assert [server.address for server in first.servers] == ["127.0.0.1:9000", "127.0.0.1:9001"]
    reply = await stage.client.call(GetServers(job="actuated", request_id="a.1", pod="worker-0"))
    assert (reply.answer, reply.version, len(reply.servers)) == ("ok", 1, 2)

    await stage.decide(2, workers=2, ps=3)
    await stage.applied(2)
    (move,) = stage.told(MigrationFinished)
    assert (move.buckets, move.moved_bytes) == (25, 25000), "21 buckets and 4 dense slices"
    assert await ownership(stage, "actuated", ["ps-0", "ps-1", "ps-2"]) == {"ps-0": 22, "ps-1": 21, "ps-2": 21}

    told = await stage.client.bus.connection.request("pod.v1.get-told.worker-0.actuated", b"{}", timeout=60)
    assert json.loads(told.data)["told"] == [2], "telemetry belongs to the new plan before it counts as applied"

    pid = stage.pid("worker-1")
    os.kill(pid, signal.SIGKILL)
    replaced = await stage.until(lambda: [e for e in stage.told(PodStarted) if e.pod == "worker-2"])
    assert replaced[0].cause == "relaunch"
    (exited,) = stage.told(PodExited)
    assert (exited.pod, exited.reason, exited.exit_code) == ("worker-1", "killed", 137)

    await stage.decide(3, workers=1, ps=1, cpu=0.7)
    await stage.applied(3)
    assert await stage.running() == ["ps-0", "worker-0"]
    assert await ownership(stage, "actuated", ["ps-0"]) == {"ps-0": 64}
    assert {event.pod for event in stage.told(PodResized)} >= {"ps-0", "worker-0"}

    completed = CompletedBooks(fingerprint="00000000000000aa")
    await stage.client.publish(replace(example_of(JobCompleted), job="actuated", samples=1000, books=completed))
    (books,) = await stage.until(lambda: stage.told(JobFinished))
    assert (books.samples_applied, books.samples_lost, books.samples_repeated) == (1000, 0, 0)
    assert (books.rows, books.repeats_recognised) == (64, 3)
    assert books.evaluation.auc == 0.7
    await stage.until(lambda: len(stage.told(PodExited)) == 6)
    assert await stage.running() == []
    names = [event.pod for event in stage.told(PodStarted)]
    assert len(set(names)) == len(names)


async def test_hot_server_is_replaced_while_its_worker_trains_on_even_by_another_actuator(stage: Any) -> None:
    await stage.begin(workers=1, ps=1, environment={"FAKE_MOVE_S": "0.02"})
    pid = stage.pid("worker-0")
    hot = {"update_time_s": 0.1, "peers_update_time_s": 0.002, "cpu_used_cores": 0.03, "cpu_limit_cores": 1.0}
    await stage.client.publish(HotPsDetected(job="actuated", pod="ps-0", **hot))
    (asked,) = await stage.until(lambda: stage.told(ReplacementAsked))
    await stage.client.publish(ReplacementDecided(job="actuated", pod=asked.pod, granted=True, reasons=("test",)))
    (started,) = await stage.until(lambda: stage.told(MigrationStarted))
    assert (started.cause, started.sources, started.destinations) == ("hot-ps", ("ps-0",), ("ps-1",))
    await stage.stop_actuator(abruptly=True)
    await stage.start()
    (exited,) = await stage.until(lambda: stage.told(PodExited))
    assert (exited.pod, exited.reason) == ("ps-0", "stopped")
    assert [e.pod for e in await stage.until(lambda: stage.told(ReplacementEnded))] == ["ps-0"]
    assert await stage.running() == ["ps-1", "worker-0"]
    assert await ownership(stage, "actuated", ["ps-1"]) == {"ps-1": 64}
    assert stage.pid("worker-0") == pid


async def test_the_log_of_a_pod_outlives_the_pod_and_the_actuator(stage: Any) -> None:
    """Method: a scaled-down job whose pods' folders are removed, as containers are, and another actuator."""
    await stage.begin(workers=2, ps=1)
    await stage.decide(2, workers=1, ps=1)
    await stage.applied(2)
    await stage.until(lambda: [event for event in stage.told(PodExited) if event.pod == "worker-1"])
    kept = stage.folder / "checkpoints/.logs/actuated/worker-1.log"
    await stage.until(lambda: kept.exists() and "left" in kept.read_text())
    await stage.stop_actuator()
    shutil.rmtree(stage.folder / "pods/actuated/worker-1")
    await stage.start()
    log = await stage.client.call(GetPodLog(job="actuated", pod="worker-1", whole=True))
    assert (log.answer, log.part) == ("ok", kept.read_text())
    made_s = kept.stat().st_mtime
    for kept_s, stays in ((100.0, True), (98.0, False)):
        await PodLogs(stage.backend, f"file://{stage.folder}/checkpoints", kept_s).clear(made_s + 99.0)
        assert kept.exists() == stays


async def test_worker_that_dies_while_nobody_watches_is_replaced(stage: Any) -> None:
    await stage.begin(workers=1, ps=1)
    await stage.stop_actuator()
    os.kill(stage.pid("worker-0"), signal.SIGKILL)
    await stage.start()
    await stage.until(lambda: [e for e in stage.told(PodStarted) if e.pod == "worker-1"])
    assert stage.told(PodExited)[0].exit_code == 137


async def test_users_error_is_told_with_its_last_words(stage: Any) -> None:
    await stage.start()
    await stage.submit(environment={"FAKE_FAIL": "worker"}, restarts={"worker_failures": 1})
    await stage.decide(1)
    (failed,) = await stage.until(lambda: stage.told(JobFailed))
    assert "column 7 is not a number" in failed.reason
    await stage.until(lambda: [e for e in stage.told(PodExited) if e.pod == "ps-0"])
    assert await stage.running() == []
    (worker, *_) = [event for event in stage.told(PodExited) if event.role == "worker"]
    assert worker.detail == "exit 3: column 7 is not a number"
    assert "canary of a log" in await stage.backend.logs("actuated", worker.pod, 9)
    answer = await stage.client.call(GetPodLog(job="actuated", pod=worker.pod))
    assert (answer.answer, "canary of a log" in answer.text) == ("ok", True), "the gateway gives it to the owner"
    assert (await stage.client.call(GetPodLog(job="actuated", pod="worker-99"))).answer == "unknown"
    whole = await stage.client.call(GetPodLog(job="actuated", pod=worker.pod, whole=True))
    assert (whole.answer, "canary of a log" in whole.part, whole.more) == ("ok", True, False)
    assert (await stage.client.call(GetPodLog(job="actuated", pod="worker-99", whole=True))).answer == "unknown"
    await stage.stop_actuator()  # its last snapshots are there, too
    for stream in (STREAM, TELEMETRY, STATE, DEAD_LETTERS):
        stored = await read(stage.client.bus, stream, [">"])
        assert not [each.subject for each in stored if "canary of a log" in unpacked(each.data)]


async def test_cancel_ends_all_pods_and_unknown_jobs_have_no_servers(stage: Any) -> None:
    await stage.begin()
    await stage.client.publish(JobCancelled(job="actuated"))
    await stage.until(lambda: len(stage.told(PodExited)) == 2)
    assert {event.reason for event in stage.told(PodExited)} == {"stopped"}
    reply = await stage.client.call(GetServers(job="other", request_id="a.1", pod="worker-0"))
    assert reply.answer == "unknown"
    await stage.until(lambda: not list((stage.folder / "pods/actuated").glob("*/files")))


async def test_pods_of_unknown_jobs_are_ended(stage: Any) -> None:
    environment = {"PATH": os.environ["PATH"], "STRETTO_POD": "worker-0"}
    await stage.backend.launch(PodSpec("forgotten", "worker-0", ("sleep", "60"), environment, 1.0, 2**28))
    await stage.begin(settings={"sweep_s": 0.2})

    async def swept() -> bool:
        return {pod.job for pod in await stage.backend.list()} == {"actuated"}

    await stage.until(swept)
    assert await stage.running() == ["ps-0", "worker-0"]


async def test_a_pod_that_cannot_be_ended_keeps_no_other_alive(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = LocalBackend.stop

    async def stuck(backend: LocalBackend, job: str, pod: str, grace_s: float) -> None:
        if job == "a-stuck-one":
            raise BackendError("the device is busy")
        await stop(backend, job, pod, grace_s)

    monkeypatch.setattr(LocalBackend, "stop", stuck)
    for job in ("a-stuck-one", "later"):
        environment = {"PATH": os.environ["PATH"], "STRETTO_POD": "worker-0"}
        await stage.backend.launch(PodSpec(job, "worker-0", ("sleep", "60"), environment, 1.0, 2**28))

    async def only_the_stuck_one() -> bool:
        return {pod.job for pod in await stage.backend.list()} == {"a-stuck-one"}

    await stage.start(sweep_s=0.2)
    try:
        await stage.until(only_the_stuck_one)
    finally:
        await stage.backend.kill("a-stuck-one", "worker-0")


async def test_pod_that_the_jobs_state_does_not_know_is_ended(stage: Any) -> None:
    await stage.begin()
    await stage.backend.launch(
        PodSpec("actuated", "worker-9", ("sleep", "60"), {"PATH": os.environ["PATH"]}, 1.0, 2**28)
    )

    async def without_it() -> bool:
        return await stage.running() == ["ps-0", "worker-0"]

    await stage.until(without_it)
    await stage.client.publish(JobCancelled(job="actuated"))
    await stage.until(lambda: len(stage.told(PodExited)) == 2)
