"""Devices of a machine: no two pods that live have the same one, also across restarts."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from local_pods import LIMIT_S, ended, running_pid
from stretto_actuator.backend import BackendError, NoRoom, PodSpec
from stretto_actuator.local.backend import LocalBackend
from stretto_actuator.local.records import Records
from stretto_actuator.pod.devices import Devices, Given, devices_of
from stretto_actuator.settings import ActuatorSettings
from stretto_messages.values import Extended, extended_of
from stretto_runtime import SettingsFault

GPU, FPGA = "nvidia.com/gpu", "example.com/fpga"
MACHINE = Devices({GPU: ("0", "1"), FPGA: ("/dev/fpga0",)})
SLEEP = "import time; time.sleep(60)"
wanted = st.dictionaries(st.sampled_from([GPU, FPGA, "amd.com/gpu"]), st.integers(1, 4)).map(extended_of)
steps = st.lists(st.one_of(wanted, st.integers(0, 5)), max_size=30)


@given(steps)
def test_no_two_pods_hold_one_device(script: list[Extended | int]) -> None:
    """Method: pods start with drawn wishes and end in any order; what each holds is counted anew."""
    held: list[Given] = []
    for step in script:
        if isinstance(step, int):
            del held[step : step + 1]
            continue
        taken = [(name, device) for each in held for name, devices in each.items() for device in devices]
        enough = all(
            count <= sum((name, device) not in taken for device in MACHINE.all.get(name, ())) for name, count in step
        )
        try:
            held.append(MACHINE.free_of(step, held))
        except NoRoom:
            assert not enough
            assert all(count <= len(MACHINE.all.get(name, ())) for name, count in step)
        except BackendError:
            assert any(count > len(MACHINE.all.get(name, ())) for name, count in step)
        else:
            assert enough
            assert {name: len(devices) for name, devices in held[-1].items()} == dict(step)
        now = [(name, device) for each in held for name, devices in each.items() for device in devices]
        assert len(now) == len(set(now))


def test_a_pod_that_never_fits_is_refused_rather_than_left_waiting() -> None:
    with pytest.raises(BackendError, match=r"nvidia\.com/gpu = 3: this machine has 2") as refused:
        MACHINE.free_of(extended_of({FPGA: 1, GPU: 3}), [{FPGA: ("/dev/fpga0",)}])
    assert not isinstance(refused.value, NoRoom)


def test_a_process_sees_its_own_gpus_alone() -> None:
    assert MACHINE.environment({GPU: ("1",)}) == {"STRETTO_DEVICES_NVIDIA_COM_GPU": "1", "CUDA_VISIBLE_DEVICES": "1"}
    assert MACHINE.environment({}) == {"CUDA_VISIBLE_DEVICES": ""}
    assert Devices({}).environment({}) == {}, "where nobody counts GPUs, pods see what the actuator does"


@pytest.mark.parametrize(
    ("counts", "devices", "found"),
    [
        ({GPU: 2}, {}, {GPU: ("0", "1")}),
        ({GPU: 2}, {GPU: ("2", "3")}, {GPU: ("2", "3")}),
        ({FPGA: 1, GPU: 1}, {FPGA: ("/dev/fpga0", "/dev/fpga1")}, {FPGA: ("/dev/fpga0",), GPU: ("0",)}),
    ],
)
def test_devices_are_those_that_are_named_or_numbered(
    counts: dict[str, int], devices: dict[str, tuple[str, ...]], found: Given
) -> None:
    assert devices_of(ActuatorSettings(extended_resources=counts, devices=devices)).all == found


def test_units_of_types_of_devices_are_counted_beside_those_of_no_type() -> None:
    unit = {"price_per_hour": 1, "cpu_cores": 1, "memory": "1Gi"}
    types = [
        unit | {"name": "a", "count": 2, "extended": {GPU: 1}},
        unit | {"name": "b", "count": 1, "extended": {GPU: 2, FPGA: 1}},
    ]
    settings = ActuatorSettings(extended_resources={GPU: 1}, device_types=types)
    assert devices_of(settings).all == {GPU: ("0", "1", "2", "3", "4"), FPGA: ("0",)}


@pytest.mark.parametrize("devices", [{GPU: ("0",)}, {GPU: ("0", "0")}, {FPGA: ("/dev/fpga0",)}])
def test_fewer_names_than_devices_are_refused(devices: dict[str, tuple[str, ...]]) -> None:
    with pytest.raises(SettingsFault, match=r"STRETTO_ACTUATOR_DEVICES.*STRETTO_EXTENDED_RESOURCES"):
        devices_of(ActuatorSettings(extended_resources={GPU: 2}, devices=devices))


def pod(folder: Path, name: str, script: str = SLEEP, count: int = 1, resource: str = FPGA) -> PodSpec:
    environment = {"PATH": os.environ["PATH"], "STRETTO_POD": name, "STRETTO_POD_FOLDER": str(folder / "pods/j" / name)}
    command = (sys.executable, "-S", "-c", script)
    return PodSpec("j", name, command, environment, 0.5, 2**28, extended=((resource, count),))


async def launched(backend: LocalBackend, spec: PodSpec) -> None:
    """Launch a pod once there is room: one that ended holds its device until its last process is gone."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            with suppress(NoRoom):
                return await backend.launch(spec)
            await asyncio.sleep(0.02)


async def test_a_local_pod_holds_its_device_until_its_end_also_after_a_restart(tmp_path: Path) -> None:
    """Method: one device, two pods, the first of which unlocks all that it has open, and another actuator in between,
    which has nothing but the folder."""
    machine = Devices({FPGA: ("/dev/fpga7",)})
    first = LocalBackend(tmp_path, devices=machine)
    shown = "import fcntl, os\nfor each in os.listdir('/proc/self/fd'):\n  if os.path.exists(f'/proc/self/fd/{each}'): "
    shown += "fcntl.flock(int(each), fcntl.LOCK_UN)\n"
    shown += "print(os.environ['STRETTO_DEVICES_EXAMPLE_COM_FPGA'], flush=True); "
    await first.launch(pod(tmp_path, "worker-0", shown + SLEEP))
    pid = await running_pid(tmp_path, "worker-0")
    again = LocalBackend(tmp_path, devices=machine)
    await again.launch(pod(tmp_path, "worker-0"))  # it is there: nothing happens
    async with asyncio.timeout(LIMIT_S):
        while "/dev/fpga7" not in await again.logs("j", "worker-0", 5):
            await asyncio.sleep(0.02)
    with pytest.raises(NoRoom, match=r"example\.com/fpga = 1: 0 of 1 on this machine are free"):
        await again.launch(pod(tmp_path, "worker-1"))
    assert [each.pod for each in await again.list()] == ["worker-0"], "one that waits leaves no trace"
    os.kill(pid, signal.SIGKILL)
    await ended(again)
    await launched(again, pod(tmp_path, "worker-1"))
    assert {each.pod: each.state for each in await again.list()} == {"worker-0": "exited", "worker-1": "running"}
    await again.kill("j", "worker-1")
    await ended(again)
    (tmp_path / "pods/j/worker-1/pod.json").write_text("")  # as a loss of power leaves them: nobody holds the device
    await launched(again, pod(tmp_path, "worker-2"))
    await again.kill("j", "worker-2")
    await ended(again)


async def test_two_actuators_of_a_machine_give_a_device_to_one_pod_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: each waits for the other between looking for what is held and choosing, if the other gets that far."""
    both_looked = threading.Barrier(2)
    held_devices = Records.held_devices

    def held(*given: Any) -> list[Given]:
        found = list(held_devices(*given))
        with suppress(threading.BrokenBarrierError):
            both_looked.wait(timeout=0.5)
        return found

    monkeypatch.setattr(Records, "held_devices", held)
    backends = [LocalBackend(tmp_path, devices=Devices({FPGA: ("0",)})) for _ in range(2)]

    def launched(number: int) -> bool:
        try:
            asyncio.run(backends[number].launch(pod(tmp_path, f"worker-{number}")))
        except NoRoom:
            return False
        return True

    got = await asyncio.gather(*(asyncio.to_thread(launched, number) for number in range(2)))
    assert sorted(got) == [False, True]
    winner = got.index(True)
    await backends[winner].kill("j", f"worker-{winner}")
    await ended(backends[winner])


async def test_a_pod_that_could_not_be_started_holds_nothing(tmp_path: Path) -> None:
    backend = LocalBackend(tmp_path, devices=Devices({FPGA: ("0",)}))
    broken = pod(tmp_path, "worker-0")
    (tmp_path / "pods/j/worker-0").mkdir(parents=True)
    (tmp_path / "pods/j/worker-0/log").mkdir()  # its log cannot be opened
    with pytest.raises(BackendError, match="cannot be started"):
        await backend.launch(broken)
    await backend.launch(pod(tmp_path, "worker-1"))
    await backend.kill("j", "worker-1")
    await ended(backend)


async def test_a_pod_that_asks_for_more_than_the_machine_has_is_refused(tmp_path: Path) -> None:
    backend = LocalBackend(tmp_path, devices=Devices({FPGA: ("0",)}))
    for count, resource, there in ((2, FPGA, "1"), (1, GPU, "none")):
        with pytest.raises(BackendError, match=f"{resource} = {count}: this machine has {there}"):
            await backend.launch(pod(tmp_path, "worker-0", count=count, resource=resource))


NOW_S = 1_767_225_600.0


def container(state: str, created_s: float = NOW_S, devices: Given | None = None) -> Any:
    """Return the container of j/worker-0 as the engine tells of it."""
    module = pytest.importorskip("stretto_actuator.docker.engine")
    engine = module.Engine("", "prod")
    described: dict[str, Any] = {
        "Id": "c",
        "Config": {"Labels": engine.labels("j", "worker-0", {GPU: ("0",)} if devices is None else devices)},
        "Created": datetime.fromtimestamp(created_s, UTC).isoformat(),
        "State": {"Status": state, "StartedAt": "2026-01-01T00:00:00Z", "ExitCode": 0, "OOMKilled": False},
        "HostConfig": {"CpuQuota": 1, "CpuPeriod": 1, "Memory": 1},
    }
    return module._container_of(described, "prod")


def docker_backend(engine: Any = None) -> Any:
    nothing: Any = None
    backend = pytest.importorskip("stretto_actuator.docker.backend").DockerBackend
    return backend(engine, nothing, nothing, clock=lambda: NOW_S, devices=MACHINE)


def of_gpu(name: str) -> PodSpec:
    return PodSpec("j", name, ("a",), {}, 1.0, 2**28, extended=((GPU, 1),))


@pytest.mark.parametrize(
    ("state", "age_s", "is_held"),
    [("created", 1, True), ("created", 3600, False), ("running", 3600, True), ("exited", 1, False)],
)
def test_containers_hold_the_devices_of_their_labels_until_they_exit(state: str, age_s: float, is_held: bool) -> None:
    """Also those that are just being made, by another thread, count; the engine is asked nothing for that.

    One that an actuator made and never started holds nothing: nobody lists, stops or removes it.
    """
    backend = docker_backend()
    backend._containers["j", "worker-0"] = container(state, NOW_S - age_s)
    assert backend._choose_devices(of_gpu("worker-1")) == {GPU: ("1",) if is_held else ("0",)}
    if is_held:
        with pytest.raises(NoRoom):
            backend._choose_devices(of_gpu("worker-2"))
    else:
        assert backend._choose_devices(of_gpu("worker-2")) == {GPU: ("1",)}


@pytest.mark.parametrize(("state", "is_refused"), [("created", True), ("running", True), ("exited", False)])
def test_a_device_that_another_actuator_gave_away_meanwhile_is_not_given_again(state: str, is_refused: bool) -> None:
    """Method: this actuator has not heard of the other's container when it chooses; before its own starts, it looks."""

    class Engine:
        def containers(self) -> list[Any]:
            return [container(state)]

    backend = docker_backend(Engine())
    given = backend._choose_devices(of_gpu("worker-1"))
    assert given == {GPU: ("0",)}
    with pytest.raises(NoRoom, match="j/worker-0 got 0") if is_refused else nullcontext():
        backend._check_is_sole_holder("own", given)
    backend._check_is_sole_holder("own", {GPU: ("1",)})
    backend._check_is_sole_holder("c", given)  # itself
