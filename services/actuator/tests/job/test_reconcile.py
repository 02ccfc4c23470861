"""The edge of one job outlives what nobody foresaw."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stretto_actuator.backend import BackendError, NoRoom, Places, PodSpec, PodStatus, Waiting
from stretto_actuator.job.reconcile import Reconciler, reason_of
from stretto_actuator.settings import ActuatorSettings
from stretto_bus import CallTimeout
from stretto_core.actuator.machine import ActuatorMachine
from stretto_core.actuator.state import ActuatorState, JobOpened, Pod
from stretto_core.actuator.steps import next_steps
from stretto_messages.arbiter import PlanDecided
from stretto_messages.base import example_of
from stretto_messages.values import Plan
from stretto_wire import JobSpec


class Backend:
    """Fails in a way that no list of exceptions names, then works."""

    def __init__(self) -> None:
        self.looks = 0

    def follow(self, job: str, changed: Callable[[], None]) -> Callable[[], None]:
        return lambda: None

    async def list(self, job: str | None = None) -> list[Any]:
        self.looks += 1
        if self.looks < 3:
            raise ZeroDivisionError("of a kernel that we never saw")
        return []


class Edge:
    def server_now(self) -> float:
        return 1.0


async def test_unforeseen_error_is_tried_again(tmp_path: Path) -> None:
    backend: Any = Backend()
    state = ActuatorState(job="j", phase="cancelled")
    edge: Any = Edge()
    task = asyncio.create_task(Reconciler("j", state, edge, backend, ActuatorSettings(state_folder=tmp_path)).run())
    await asyncio.wait_for(task, 60)
    assert backend.looks == 3


async def test_cancelling_ends_it_at_once(tmp_path: Path) -> None:
    backend: Any = Backend()
    edge: Any = Edge()
    settings = ActuatorSettings(state_folder=tmp_path)
    task = asyncio.create_task(Reconciler("j", ActuatorState(job="j"), edge, backend, settings).run())
    await asyncio.sleep(0.05)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.wait_for(task, 60)
    assert task.cancelled()


SPEC = JobSpec.parse({"name": "j", "model": {"entry": "m:M"}, "dataset": {"samples": 1000}}).model_dump_json()


class WaitingRoom(Backend):
    """One pod that waits, as it is told to."""

    def __init__(self) -> None:
        self.status = PodStatus("j", "ps-0", "pending", 1.0, 2**28)
        self.killed: list[str] = []
        self.laid: list[str] = []
        self.fault: BackendError | None = None

    async def list(self, job: str | None = None) -> list[Any]:
        return [self.status]

    async def kill(self, job: str, pod: str) -> None:
        self.killed.append(pod)

    def places(self, job: str, pod: str) -> Places:
        return Places("/files", "/scratch", "")

    async def launch(self, spec: PodSpec) -> None:
        if self.fault is not None:
            raise self.fault
        self.laid.append(spec.files["bus.creds"].decode())

    def waits(self, reason: Any, detail: str = "", held: bool = False) -> None:
        self.status = replace(self.status, waiting=Waiting(reason, detail, held))


class Journal(Edge):
    """Hands every observation to the machine and remembers it."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.machine = ActuatorMachine()
        self.machine.handle(JobOpened("j", SPEC), self.now_s)
        plan = Plan(1, 1, 1.0, 1.0, 2**28, 2**28)
        self.machine.handle(replace(example_of(PlanDecided), job="j", version=1, plan=plan), self.now_s)
        self.seen: list[Any] = []

    def server_now(self) -> float:
        return self.now_s

    async def call_pod(self, pod: str, request: Any, timeout_s: float) -> Any:
        raise CallTimeout(f"{pod} is not there")

    async def observe(self, key: str, message: Any, trace: str = "") -> None:
        self.seen.append(message)
        self.machine.handle(message, self.now_s)

    def keep_log(self, job: str, pod: str, log: str) -> None:
        self.logs = {pod: log}

    async def keep_whole_log(self, job: str, pod: str) -> None:
        """Keep none: there is no store."""

    def keep_log_of_stopped(self, job: str, pod: str) -> None:
        """Keep none, either."""

    def identity(self, job: str, pod: str) -> dict[str, bytes]:
        return {"bus.creds": f"of {pod} at {self.now_s:g}".encode()}

    def trace_of(self, key: str) -> str:
        return ""

    def names(self) -> list[str]:
        return [type(message).__name__ for message in self.seen]


@pytest.fixture
def waiting(tmp_path: Path) -> tuple[WaitingRoom, Journal, Reconciler]:
    backend, edge = WaitingRoom(), Journal()
    settings = ActuatorSettings(state_folder=tmp_path, start_timeout_s=100, room_timeout_s=300, image_timeout_s=600)
    given: Any = ("j", edge.machine.state, edge, backend, settings)
    return backend, edge, Reconciler(*given)


class Growing(Backend):
    """Nodes that answer only when all pods were asked to change; one then does not do it."""

    def __init__(self, pods: list[Pod]) -> None:
        self._pods = pods
        self._asked = asyncio.Barrier(len(pods))

    async def list(self, job: str | None = None) -> list[Any]:
        return [PodStatus("j", pod.name, "running", pod.cpu_cores_now, pod.memory_bytes_now) for pod in self._pods]

    async def resize(self, job: str, pod: str, cpu_cores: float, memory_bytes: int) -> tuple[float, int]:
        await self._asked.wait()
        if pod == "worker-1":
            raise BackendError("the node does not answer")
        return cpu_cores, memory_bytes


async def test_pods_change_their_limits_all_at_once(tmp_path: Path) -> None:
    """A node takes seconds for each; and what one does not do, others have done."""
    edge = Journal()
    pods = [Pod(f"worker-{n}", "worker", n, 2.0, 2**28, 1, "plan", 0.0, phase="running") for n in range(3)]
    edge.machine.state.pods, edge.machine.state.next_number["worker"] = {pod.name: pod for pod in pods}, 3
    given: Any = ("j", edge.machine.state, edge, Growing(pods), ActuatorSettings(state_folder=tmp_path))
    async with asyncio.timeout(60):
        with pytest.raises(BackendError, match="does not answer"):
            await Reconciler(*given).once()
    assert [message.pod for message in edge.seen] == ["worker-0", "worker-2"]
    assert pods[0].cpu_cores_now == 2.0


class Unyielding(Growing):
    """Memory is in use: nothing of it is taken away."""

    def __init__(self, pods: list[Pod]) -> None:
        super().__init__(pods)
        self.asked = 0

    async def resize(self, job: str, pod: str, cpu_cores: float, memory_bytes: int) -> tuple[float, int]:
        self.asked += 1
        return cpu_cores, 2**29


async def test_memory_that_is_not_given_back_is_not_asked_for_again(tmp_path: Path) -> None:
    edge = Journal()
    pods = [Pod("worker-0", "worker", 0, 1.0, 2**28, 1, "plan", 0.0, phase="running", cpu_cores_now=1.0)]
    pods[0].memory_bytes_now = 2**29
    edge.machine.state.pods = {pod.name: pod for pod in pods}
    backend = Unyielding(pods)
    given: Any = ("j", edge.machine.state, edge, backend, ActuatorSettings(state_folder=tmp_path))
    reconciler = Reconciler(*given)
    await reconciler.once()
    assert edge.names() == ["PodResized"]
    assert (pods[0].memory_bytes, backend.asked) == (2**29, 1)
    assert next_steps(edge.machine.state, edge.now_s).resize == ()


async def test_a_pod_waits_for_room_beyond_its_start_and_is_given_up_in_the_end(waiting: Any) -> None:
    backend, edge, reconciler = waiting
    backend.waits("no-room", "0/3 nodes are available")
    for edge.now_s in (1000.0, 1001.0, 1299.0):
        assert not await reconciler.once(), "nothing to be busy with"
    assert (edge.names(), backend.killed) == (["PodPending"], [])
    assert edge.seen[0].detail == "0/3 nodes are available"
    edge.now_s = 1301.0
    await reconciler.once()
    assert edge.names() == ["PodPending", "PodGivenUp"]
    await reconciler.once()
    assert backend.killed == ["ps-0"]


class NoDevice(WaitingRoom):
    """A place that starts no pod as long as others have all devices."""

    async def list(self, job: str | None = None) -> list[Any]:
        return []


async def test_a_pod_that_no_place_starts_yet_waits_for_room_and_is_asked_for_again(tmp_path: Path) -> None:
    """It is no failure: nothing exits, and it starts at the first look at which there is room."""
    backend, edge = NoDevice(), Journal()
    given: Any = ("j", edge.machine.state, edge, backend, ActuatorSettings(state_folder=tmp_path, room_timeout_s=300))
    reconciler = Reconciler(*given)
    backend.fault = NoRoom("nvidia.com/gpu = 1: 0 of 1 on this machine are free")
    for edge.now_s in (1000.0, 1001.0, 1299.0):
        assert not await reconciler.once(), "nothing to be busy with"
    assert edge.names() == ["PodPending"]
    assert (edge.seen[0].reason, edge.seen[0].detail) == ("no-room", str(backend.fault))
    backend.fault = None
    assert await reconciler.once()
    assert backend.laid == ["of ps-0 at 1299"]
    backend.fault, edge.now_s = NoRoom("nvidia.com/gpu = 1: 0 of 1 on this machine are free"), 1301.0
    await reconciler.once()
    assert edge.names() == ["PodPending", "PodGivenUp"]


async def test_a_pod_that_is_held_back_waits_for_as_long_as_it_takes_with_credentials_that_hold(waiting: Any) -> None:
    backend, edge, reconciler = waiting
    backend.waits("quota", "waits for Kueue", held=True)
    for edge.now_s in (1000.0, 1001.0, 44_200.0, 44_202.0, 44_203.0, 90_000.0, 200_000.0):
        assert not await reconciler.once(), "nothing to be busy with"
    assert (edge.names(), backend.killed) == (["PodPending"], [])
    assert backend.laid == [f"of ps-0 at {at_s}" for at_s in (1001, 44202, 90000, 200000)]
    backend.fault, edge.now_s = BackendError("the API cannot be reached"), 250_000.0
    await reconciler.once()
    assert edge.names() == ["PodPending"], "it is no failure of the pod"
    backend.fault, edge.now_s = None, 250_002.0
    await reconciler.once()
    assert backend.laid[4:] == ["of ps-0 at 250002"]
    backend.waits("no-room", "0/3 nodes are available")
    await reconciler.once()
    edge.now_s += 301
    await reconciler.once()
    assert edge.names() == ["PodPending", "PodPending", "PodGivenUp"], "let go, it waits as any other"


async def test_an_image_that_does_not_come_ends_the_job_with_its_reason(waiting: Any) -> None:
    backend, edge, reconciler = waiting
    backend.waits("no-room")
    await reconciler.once()
    edge.now_s += 290
    backend.waits("image-pull", "shop/trainer:2: manifest unknown")
    await reconciler.once()
    edge.now_s += 599
    await reconciler.once()
    assert edge.machine.state.phase == "active", "the time for room is not the time for the image"
    edge.now_s += 2
    await reconciler.once()
    assert edge.names() == ["PodPending", "PodPending", "PodExited"]
    assert (edge.seen[-1].reason, edge.seen[-1].detail) == ("image-pull", "shop/trainer:2: manifest unknown")
    assert edge.machine.state.phase == "failed"


async def test_a_pod_that_has_room_and_does_not_begin_is_replaced_after_its_time_to_start(waiting: Any) -> None:
    backend, edge, reconciler = waiting
    backend.waits("no-room")
    await reconciler.once()
    edge.now_s += 200
    await reconciler.once()
    backend.waits("starting")
    edge.now_s += 99
    await reconciler.once()
    assert backend.killed == []
    edge.now_s += 2
    await reconciler.once()
    assert backend.killed == ["ps-0"]


@pytest.mark.parametrize("off_s", [-3600.0, 0.0, 3600.0])
@pytest.mark.parametrize("state", ["pending", "running"])
async def test_a_pod_has_its_time_to_start_whatever_the_backends_clock_says(
    waiting: Any, state: Any, off_s: float
) -> None:
    backend, edge, reconciler = waiting
    backend.status = replace(backend.status, state=state, launched_at_s=edge.now_s + off_s)
    await reconciler.once()
    edge.now_s += 99
    await reconciler.once()
    assert backend.killed == []
    edge.now_s += 2
    await reconciler.once()
    assert backend.killed == ["ps-0"]


@pytest.mark.parametrize(
    ("reason", "code", "changes", "told"),
    [
        ("vanished", None, {}, "preempted"),
        ("killed", 137, {}, "preempted"),
        ("killed", 139, {}, "killed"),
        ("oom-killed", 137, {}, "oom-killed"),
        ("failed", 1, {}, "failed"),
        ("vanished", None, {"device": "kept"}, "vanished"),
        ("vanished", None, {"device": ""}, "vanished"),
        ("vanished", None, {"started_at_s": None}, "vanished"),
        ("killed", 137, {"started_at_s": 900.0}, "killed"),
        ("killed", 137, {"phase": "stopping"}, "killed"),
    ],
)
def test_a_unit_that_is_taken_away_now_and_then_ends_its_worker_as_a_preemption(
    tmp_path: Path, reason: Any, code: int | None, changes: dict[str, Any], told: str
) -> None:
    types = [
        {
            "name": name,
            "price_per_hour": 1,
            "count": 1,
            "cpu_cores": 1,
            "memory": "1Gi",
            "interruptions_per_hour": often,
        }
        for name, often in (("spot", 2), ("kept", 0))
    ]
    settings = ActuatorSettings.model_validate({"state_folder": tmp_path, "device_types": types})
    pod = replace(Pod("worker-0", "worker", 0, 1.0, 2**28, 1, "plan", 0.0, device="spot", started_at_s=1.0), **changes)
    assert reason_of(pod, reason, code, settings, 1000.0) == told, (
        "it lived 999 s of 1800 s to an interruption, or 100 s"
    )
