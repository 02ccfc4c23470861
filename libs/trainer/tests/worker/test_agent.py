"""A worker with a dispatcher that misbehaves, and with user code that fails."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nats
import pytest
from stretto.errors import PodError
from stretto.pod import process
from stretto.pod.process import Usage, settings_of
from stretto.worker.step_timer import StepTime, StepTimer
from stretto_messages.actuator import GetServersReply, ServersChanged
from stretto_messages.dispatcher import NextShard
from stretto_messages.pods import EvaluateModel, PodPing, TrainUnder
from stretto_messages.values import ParameterServer, Shard
from trainer_harness import spec_of, wait_for

# --- measuring, without a pod --------------------------------------------------------------------------------


def test_waiting_for_a_shard_counts_for_no_step():
    meter = StepTimer()
    times = StepTime(0.1, 0.2, 0.1, 0.1)
    meter.step(10.0, 10.5, 256, times)
    meter.step(10.5, 11.5, 256, times)
    meter.idle()
    meter.step(60.0, 60.4, 128, times)  # 48.5 s of waiting lie before it
    window = meter.window()
    assert (window.steps, window.steps_total, window.samples_total) == (3, 3, 640)
    assert window.step_s == pytest.approx((0.5 + 1.0 + 0.4) / 3)
    assert window.longest_gap_s == pytest.approx(1.0)
    assert window.times.gradient_s == pytest.approx(0.2)
    empty = meter.window()
    assert (empty.steps, empty.steps_total, empty.step_s, empty.longest_gap_s) == (0, 3, 0.0, 0.0)
    meter.step(61.0, 61.2, 128, times)
    # a pause between two steps is a step's length: training was held up
    assert meter.window().longest_gap_s == pytest.approx(0.8)


def test_used_cores_are_those_of_this_process():
    usage = Usage()
    usage.measure()
    until = time.process_time() + 0.2
    while time.process_time() < until:
        pass
    used = usage.measure()
    assert used.cpu_cores * used.window_s == pytest.approx(0.2, abs=0.08)
    assert used.memory_bytes > 10 * 2**20


USES = """
import os, sys, time
held = b"x" * (40 * 2**20)
if sys.argv[1] == "2":
    os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, sys.argv[0], "child"])
while time.process_time() < 0.3:
    pass
open(f"{os.path.dirname(sys.argv[0])}/used-{sys.argv[1]}", "w").close()
time.sleep(600)
"""


@pytest.mark.parametrize(("knows", "processes"), [(True, 2), (False, 2), (True, 1)])
def test_what_a_program_and_its_child_use_is_counted(
    knows: bool, processes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(process, "_KNOWS_CHILDREN", process._KNOWS_CHILDREN and knows)
    (script := tmp_path / "uses.py").write_text(USES)
    usage = Usage(runs_program=True)
    own_bytes = usage.measure().memory_bytes
    child = subprocess.Popen([sys.executable, str(script), str(processes)], start_new_session=True)
    try:
        wait_for(lambda: len([*tmp_path.glob("used-*")]) == processes)
        used = usage.measure()
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    assert used.cpu_cores * used.window_s > 0.27 * processes
    assert used.memory_bytes - own_bytes > processes * 40 * 2**20


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"STRETTO_POD": "ps-1"}, "STRETTO_POD = 'ps-1': give worker-<number>"),
        ({"STRETTO_JOB": ""}, "STRETTO_JOB is not set"),
        ({"STRETTO_CPU_CORES": "two"}, "STRETTO_CPU_CORES = 'two': give a number"),
        ({"STRETTO_PLANE_ENCRYPTED": "yes"}, "STRETTO_PLANE_ENCRYPTED = 'yes': give required or off"),
        ({"STRETTO_JOB_SPEC": "/nowhere.json"}, "cannot be read"),
        ({"STRETTO_JOB_SPEC": "{folder}/bad.json"}, "Field required"),
    ],
)
def test_an_environment_that_cannot_work_is_refused(tmp_path: Path, change: dict[str, str], named: str):
    (tmp_path / "spec.json").write_text(spec_of(100).model_dump_json())
    (tmp_path / "bad.json").write_text("{}")
    environment = {
        "STRETTO_JOB": "tiny",
        "STRETTO_POD": "worker-1",
        "STRETTO_NATS_URL": "nats://nowhere:1",
        "STRETTO_JOB_SPEC": str(tmp_path / "spec.json"),
    }
    plain = settings_of(environment, "worker")
    assert (plain.index, plain.plane_key, plain.plane_encrypted) == (1, None, False)
    plane = {"STRETTO_PLANE_KEY": "/run/stretto/plane.pem", "STRETTO_PLANE_ENCRYPTED": "required"}
    told = settings_of({**environment, **plane}, "worker")
    assert (told.plane_key, told.plane_encrypted) == (Path("/run/stretto/plane.pem"), True)
    with pytest.raises(PodError, match=named):
        settings_of({**environment, **{k: v.format(folder=tmp_path) for k, v in change.items()}}, "worker")


# --- pods ----------------------------------------------------------------------------------------------------

SAMPLES = 20_000

USER = """
import time
from pathlib import Path
import keras
import numpy as np

while Path(__file__).with_name("wait").exists():
    time.sleep(0.01)

class Model:
    def __init__(self, fail_from=None, fail_until=10**12, broken=False):
        self.fail_from, self.fail_until, self.broken = fail_from, fail_until, broken

    def build(self):
        if self.broken:
            raise RuntimeError("the user's own mistake")
        rows = keras.Input((2, 8), name="rows")
        return keras.Model(rows, keras.layers.Dense(1)(keras.layers.Flatten()(rows)))

    def read(self, start, length):
        if self.fail_from is not None and self.fail_from <= start < self.fail_until:
            raise IOError(f"sector {start} is unreadable")
        place = np.arange(start, start + length)
        return {"label": (place % 2).astype(np.float32), "categorical": np.stack([place % 2, place % 50], axis=1)}
"""


@pytest.fixture
def make(tmp_path: Path, started: Any) -> Any:
    (tmp_path / "user_model.py").write_text(USER)

    return lambda **arguments: started(spec_of(SAMPLES, model={"entry": "user_model:Model", "arguments": arguments}))


@pytest.mark.slow
def test_replies_that_get_lost_leases_that_go_stale_and_a_request_for_less(make: Any):
    cluster = make()
    cluster.deaf = 2  # the first two replies never arrive: the same requests come again
    cluster.start_ps(0)
    cluster.launch("worker-0")
    wait_for(lambda: cluster.done)
    assert cluster.ask("worker-0", TrainUnder(job="tiny", plan_version=9, cpu_cores=0.5)).ok
    wait_for(cluster.finished)
    assert cluster.repeated_requests >= 2
    assert cluster.books(0)[0].applied_samples == SAMPLES
    report = wait_for(lambda: [r for r in cluster.worker_reports() if r.plan_version == 9])[-1]
    assert report.cpu_limit_cores == 0.5
    again = replace(next(iter(cluster.done.values())), id=10**6)
    cluster.todo.append(again)  # the ledger returned to a checkpoint after the worker was told "end"
    wait_for(lambda: again.id in cluster.done)
    # finished shards are forgotten when the dispatcher says so: a late push of one is refused for ever
    assert cluster.processes["worker-0"].poll() is None  # idle until it is told to leave
    assert cluster.terminate("worker-0") == 0


@pytest.mark.slow
@pytest.mark.parametrize("silent", [False, True])
def test_a_worker_drops_a_shard_that_was_leased_to_somebody_else(make: Any, silent: bool):
    """The worker learns this from a heartbeat or, if heartbeats are silent, from a server that refuses its push."""
    cluster = make()
    cluster.silent = silent
    cluster.start_ps(0)
    # one long shard, trained by two: the second has the higher attempt
    cluster.todo = [Shard(id=0, attempt=1, epoch=0, start=0, length=SAMPLES * 200)]
    cluster.launch("worker-0")
    wait_for(lambda: [r for r in cluster.worker_reports() if r.steps > 0])
    held = cluster.leased.pop("worker-0")
    cluster.reserved["worker-1"] = replace(held, attempt=2)
    asked = len(cluster.requests)
    cluster.launch("worker-1")

    def asked_again() -> bool:
        return any(isinstance(r, NextShard) and r.pod == "worker-0" for r in cluster.requests[asked:])

    wait_for(asked_again, 60)
    assert not cluster.done  # it has not trained the shard to its end
    wait_for(lambda: [r for r in cluster.worker_reports() if r.pod == "worker-1" and r.steps > 0], 60)
    # both pushed the same batches for a while: no sample of the shard counts twice
    cluster.kill("worker-0")
    assert cluster.terminate("worker-1") == 0
    (released,) = [r for r in cluster.released if r.pod == "worker-1"]
    assert cluster.books(0)[0].applied_samples == released.offset
    assert not cluster.failed


@pytest.mark.slow
def test_data_that_fail_are_given_back_with_the_reason(make: Any):
    cluster = make(fail_from=4096, fail_until=6144)
    cluster.start_ps(0)
    cluster.launch("worker-0")
    wait_for(cluster.finished, 60)
    (failed,) = cluster.failed
    assert failed.shard == 2
    assert failed.failure == "read(4096, 256) failed: OSError: sector 4096 is unreadable"
    assert cluster.books(0)[0].applied_samples == SAMPLES - 2048
    assert cluster.processes["worker-0"].poll() is None


@pytest.mark.slow
def test_code_that_fails_on_every_shard_ends_the_worker_as_the_users_error(make: Any):
    cluster = make(fail_from=0)
    cluster.start_ps(0)
    process = cluster.launch("worker-0")
    assert process.wait(60) == 3
    assert (
        cluster.log("worker-0")
        .splitlines()[-1]
        .endswith(
            "the first 5 shards all failed; the last error: read(8192, 256) failed: OSError: sector 8192 is unreadable"
        )
    ), "the pod's last line becomes the reason of the job's end"
    assert len(cluster.failed) == 5


@pytest.mark.slow
def test_a_model_that_cannot_be_built_ends_the_pod_as_the_users_error(make: Any, tmp_path: Path):
    (tmp_path / "wait").touch()
    cluster = make(broken=True)
    process = cluster.launch("worker-0")

    def detail() -> str:
        assert process.poll() is None, cluster.log("worker-0")
        with contextlib.suppress(nats.errors.Error):
            return cluster.ask("worker-0", PodPing(job="tiny"), 0.5).detail
        return ""

    wait_for(lambda: detail() == "importing the model's code", what="a pod that is alive, and says what it is doing")
    (tmp_path / "wait").unlink()
    assert process.wait(60) == 3
    assert "build() failed: RuntimeError: the user's own mistake" in cluster.log("worker-0")


@pytest.mark.slow
def test_requests_that_are_malformed_are_answered_with_field_and_remedy(make: Any):
    cluster = make()
    cluster.launch("worker-0")
    cluster.ready("worker-0")

    def raw(data: bytes) -> dict[str, str]:
        reply = cluster.run(cluster.nc.request("pod.v1.evaluate-model.worker-0.tiny", data, timeout=60))
        assert "error" in reply.headers
        return json.loads(reply.data)["error"]

    assert raw(b"{}")["field"] == "job"
    assert raw(b'{"job": "tiny", "samples": 0}')["field"] == "samples"
    assert "at least 1" in raw(b'{"job": "tiny", "samples": 0}')["message"]
    assert raw(b'{"job": "other", "samples": 5}')["remedy"] == "this pod belongs to tiny"
    assert raw(b"\xff")["code"] == "malformed"
    evaluate = EvaluateModel(job="tiny", samples=10)
    failed = wait_for(lambda: (lambda r: r if r.state == "failed" else None)(cluster.ask("worker-0", evaluate)))
    assert "not connected to the parameter servers yet" in failed.detail


def test_servers_that_took_the_place_of_lost_ones_are_offered_initial_values():
    """Without them the hidden layers of a new server are zero, and never learn."""
    from stretto.errors import ServerLost
    from stretto.worker.agent import Worker

    seeded: list[int] = []
    leaving = threading.Event()

    class Parameters:
        generation = 0

        def seed(self, dense: str, state: str) -> None:
            assert (dense, state) == ("dense", "state")
            if not seeded and self.generation == 1:
                self.generation = 2
                raise ServerLost(0, "", "once more")
            seeded.append(self.generation)

    class Leases:
        asking, current, passed = False, True, None
        asked = 0

        def next(self, generation: int) -> None:
            self.asked += 1
            if self.asked == 2:
                parameters.generation = 1
            if self.asked == 4:
                leaving.set()

    parameters = Parameters()
    pod = SimpleNamespace(
        leaving=leaving,
        bus=None,
        settings=SimpleNamespace(
            spec=SimpleNamespace(
                dataset=SimpleNamespace(batch_size=8), model=SimpleNamespace(pipeline=True, pipeline_from_step=0)
            ),
            plan_version=1,
            cpu_cores=1.0,
        ),
    )
    worker: Any = Worker(pod)  # type: ignore[arg-type]
    worker.program = SimpleNamespace(initial_dense=lambda: "dense", initial_state=lambda: "state")
    worker._parameters, worker._leases = parameters, Leases()
    assert worker._train() == 0
    assert seeded == [2], "again after the failure, and once only"


def test_a_worker_that_waits_for_a_checkpoint_connects_when_the_actuator_names_the_servers():
    """An earlier event names servers that are still reading the checkpoint and own nothing."""
    from stretto.worker.agent import Worker

    servers = (ParameterServer(index=2, address="127.0.0.1:1"),)
    known = {"job": "tiny", "answer": "ok", "plan_version": 1}
    replies = [GetServersReply(version=0, servers=(), **known), GetServersReply(version=3, servers=servers, **known)]
    bus = SimpleNamespace(job="tiny", pod="worker-1", request_id=lambda _: "w.1", call=lambda *_, **__: replies.pop(0))
    settings = SimpleNamespace(job="tiny", pod="worker-1", spec=None, plan_version=1, cpu_cores=1.0)
    worker: Any = Worker(SimpleNamespace(leaving=threading.Event(), bus=bus, settings=settings))  # type: ignore[arg-type]
    worker._servers_changed(ServersChanged(job="tiny", version=3, servers=servers))
    assert worker._servers.ask() == {}
    assert worker._servers.ask() == {2: "127.0.0.1:1"}


def test_a_worker_waits_for_the_servers_that_a_lease_refers_to():
    """A lost server may serve on. With an older list the worker would train on it, and take its records for true."""
    from stretto.worker.agent import Worker

    servers = (ParameterServer(index=1, address="127.0.0.1:2"),)
    versions = [3, 4]

    def call(*_: Any, **__: Any) -> GetServersReply:
        return GetServersReply(job="tiny", answer="ok", plan_version=1, version=versions.pop(0), servers=servers)

    bus = SimpleNamespace(job="tiny", pod="worker-1", request_id=lambda _: "w.1", call=call)
    settings = SimpleNamespace(job="tiny", pod="worker-1", spec=None, plan_version=1, cpu_cores=1.0)
    worker: Any = Worker(SimpleNamespace(leaving=threading.Event(), bus=bus, settings=settings))  # type: ignore[arg-type]
    connected: list[dict[int, str]] = []
    worker._parameters = SimpleNamespace(connect=connected.append)
    assert worker._follow_servers(4)
    assert versions == []
    assert connected == [{1: "127.0.0.1:2"}]
    assert worker._follow_servers(4)
    assert len(connected) == 1
    worker._pod.leaving.set()
    versions.append(4)
    assert not worker._follow_servers(5)
