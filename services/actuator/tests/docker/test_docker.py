"""Behaviour of containers only, and the reach of a hostile job on an engine that it shares with others."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import textwrap
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from backend_contract import DONE, JOB, SLEEP, exited, running, said, spec, status
from engine_place import IMAGE, Containers
from stretto_actuator.backend import BackendError, NoRoom
from stretto_actuator.docker import backend as docker_backend
from stretto_actuator.docker.backend import backend_of
from stretto_actuator.docker.engine import INSTALLATION
from stretto_actuator.docker.manifest import PROCESSES_MAX
from stretto_actuator.docker.volumes import Volume, volumes_of
from stretto_actuator.settings import ActuatorSettings
from stretto_runtime import SettingsFault

from tests.waits import until


@pytest.fixture
def volume(place: Containers) -> Any:
    """A volume with checkpoints of two jobs."""
    name = f"{place.name}-checkpoints"
    place.client.create_volume(name)
    yield name
    place._remove()
    place.client.remove_volume(name)


async def test_a_hostile_job_finds_nothing_of_another_one(place: Containers, volume: str) -> None:
    backend = place.backend = await place.opened(docker_volumes=f"{volume}:/checkpoints")
    keep = """
        open("/var/lib/stretto/pod/mine", "w").write("rows")
        open("/checkpoints/victim/1.image", "w").write("parameters")
        print("up", flush=True); time.sleep(600)
    """
    secret = {"bus.creds": b"the victim's key"}
    await backend.launch(spec(place, "ps-0", keep, job="victim", files=secret))

    async def kept() -> bool:
        return "up" in await backend.logs("victim", "ps-0", 10)

    await until(kept, lambda: "the victim has something to lose")
    hostile = """
        def peek(path):
            try:
                return os.listdir(path) if os.path.isdir(path) else open(path).read()
            except OSError as error:
                return type(error).__name__
        seen = {path: peek(path) for path in (
            "/run/stretto", "/checkpoints", "/checkpoints/victim", "/var/lib/stretto", "/var/lib/stretto/pod",
            "/proc/1/root/run/stretto", "/var/lib/docker", "/var/run/docker.sock",
        )}
        seen["processes"] = sum(name.isdigit() for name in os.listdir("/proc"))
        seen["environment"] = [v for v in os.environ.values() if "victim" in v]
        seen["identity"] = [os.getuid(), os.getgid(), os.getgroups()]
        told = dict(line.split(":\\t") for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
        seen["rights"] = [told["CapEff"], told["CapBnd"], told["NoNewPrivs"]]
        try:
            open("/usr/bin/evil", "w")
        except OSError as error:
            seen["root"] = os.strerror(error.errno)
        print(json.dumps(seen))
    """
    await backend.launch(spec(place, "worker-0", hostile, files={"bus.creds": b"its own"}))
    seen = json.loads((await said(place)).splitlines()[-1])
    assert seen == {
        "/run/stretto": ["bus.creds"],
        "/checkpoints": [JOB],
        "/checkpoints/victim": "FileNotFoundError",
        "/var/lib/stretto": ["pod"],
        "/var/lib/stretto/pod": [],
        "/proc/1/root/run/stretto": ["bus.creds"],
        "/var/lib/docker": "FileNotFoundError",
        "/var/run/docker.sock": "FileNotFoundError",
        "processes": seen["processes"],
        "environment": [],
        "identity": [10001, 10001, [10001]],
        "rights": ["0" * 16, "0" * 16, "1"],
        "root": "Read-only file system",
    }
    assert seen["processes"] < 4, "its own, and the one that reaps"


async def test_a_job_reads_the_checkpoint_that_it_starts_from_and_writes_its_own(
    place: Containers, volume: str
) -> None:
    backend = place.backend = await place.opened(docker_volumes=f"{volume}:/checkpoints")
    await backend.launch(spec(place, "ps-0", "open('/checkpoints/first/m', 'w').write('7')", job="first"))

    async def written() -> bool:
        return [pod.state for pod in await backend.list("first")] == ["exited"]

    await until(written, lambda: "the first job has a checkpoint")
    script = """
        print(open("/checkpoints/first/m").read())
        open(f"/checkpoints/contract/m", "w").write("8")
        open("/checkpoints/first/m", "w")
    """
    url = "file:///checkpoints/first/m"
    await backend.launch(spec(place, script=script, reads=(url, "s3://bucket/x", "file:///checkpoints/../etc/passwd")))
    assert "7" in (await said(place)).splitlines()
    assert (await exited(place)).exit_code == 1
    assert "Read-only file system" in (await exited(place)).log


async def test_pods_of_a_job_reach_each_other_by_the_name_that_they_are_told(place: Containers) -> None:
    serve = """
        import socket
        with socket.create_server(("0.0.0.0", 7000)) as server:
            print("up", os.environ["STRETTO_POD_HOST"], flush=True)
            server.accept()[0].sendall(b"here")
    """
    await place.backend.launch(spec(place, "ps-0", serve))
    await running(place, "ps-0")
    host = (await place.backend.logs(JOB, "ps-0", 1)).split()[1]
    ask = f"import socket; print(socket.create_connection(({host!r}, 7000), 5).recv(9))"
    await place.backend.launch(spec(place, "worker-0", ask))
    assert await said(place) == "b'here'"


async def test_jobs_with_networks_of_their_own_reach_the_bus_and_not_each_other(
    place: Containers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker_backend, "JOIN_S", 0.2)
    backend = place.backend = await place.opened()
    serve = """
        import socket
        with socket.create_server(("0.0.0.0", 7000)) as server:
            print(socket.gethostbyname(os.environ["STRETTO_POD_HOST"]), flush=True)
            while True:
                server.accept()[0].sendall(b"here")
    """
    program = "import os, socket\n" + textwrap.dedent(serve).replace('os.environ["STRETTO_POD_HOST"]', '"bus"')

    def bus() -> str:
        there = {f"{place.name}-pods": place.client.create_endpoint_config(aliases=["bus"])}
        host = place.client.create_host_config(network_mode=f"{place.name}-pods")
        made = place.client.create_container(
            IMAGE,
            ["python", "-c", program],
            name=f"{place.name}-bus",
            networking_config=place.client.create_networking_config(there),
            host_config=host,
            labels=place.backend._engine.own,
        )
        place.client.start(made)
        return str(made["Id"])

    first = bus()
    await backend.launch(spec(place, "ps-0", serve, job="victim"))

    async def address() -> str:
        return await backend.logs("victim", "ps-0", 1)

    victim = await until(address, lambda: "the victim listens")
    script = f"""
        import socket
        def reach(host):
            try:
                return socket.create_connection((host, 7000), 2).recv(9).decode()
            except OSError as error:
                return "refused"
        while reach("bus") != "here":
            time.sleep(0.1)
        print(reach({victim!r}), reach("ps-0.victim.{place.name}"), flush=True)
        while reach("bus") == "here":
            time.sleep(0.1)
        print("gone", flush=True)
        while reach("bus") != "here":
            time.sleep(0.1)
        print("back", flush=True)
    """
    await backend.launch(spec(place, "worker-0", script))
    await running(place, says="refused refused")
    place.client.remove_container(first, force=True)
    await running(place, says="gone")
    bus()
    assert "back" in await said(place)
    await backend.forget(JOB, "worker-0")
    own = place.client.networks(filters={"label": f"stretto.dev/installation={place.name}"})
    assert {network["Name"] for network in own} == {f"{place.name}-pods", f"{place.name}.victim"}


async def test_logs_processes_and_memory_of_a_container_are_bounded(place: Containers) -> None:
    await place.backend.launch(spec(place))
    told = await asyncio.to_thread(place.client.inspect_container, place.container(JOB, "worker-0"))
    host = told["HostConfig"]
    assert host["LogConfig"] == {"Type": "json-file", "Config": {"max-file": "2", "max-size": "10m"}}
    assert host["PidsLimit"] == PROCESSES_MAX
    assert (host["Memory"], host["MemorySwap"]) == (place.memory_bytes, place.memory_bytes)
    assert host["RestartPolicy"]["Name"] in ("", "no")
    assert host["NetworkMode"] == f"{place.name}.{JOB}"


async def test_pods_that_start_at_once_share_their_jobs_folder(place: Containers, volume: str) -> None:
    """A plan's servers are launched together, and each finds nothing made yet."""
    backend = place.backend = await place.opened(docker_volumes=f"{volume}:/checkpoints")
    names = [f"ps-{number}" for number in range(6)]
    await asyncio.gather(*(backend.launch(spec(place, name, SLEEP)) for name in names))
    assert sorted(pod.pod for pod in await backend.list(JOB)) == names


async def test_pods_that_wait_for_an_image_hold_nobody_up(place: Containers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry that does not answer keeps those who ask it, and no one else."""
    backend, answered = place.backend, threading.Event()
    monkeypatch.setattr(backend._engine, "pull", lambda image: answered.wait(60))
    waiting = [spec(place, f"worker-{number}", image="nobody.has/it:1") for number in range(20)]
    try:
        await asyncio.gather(*(backend.launch(each) for each in waiting))
        async with asyncio.timeout(60):
            await backend.launch(spec(place, "ps-0", SLEEP))
    finally:
        answered.set()


async def test_a_stream_of_events_that_cannot_be_closed_any_more_is_a_gap_like_others(place: Containers) -> None:
    """A stream of events from an engine by TCP that has reset the connection; by SSH none can be closed."""

    class Torn:
        def __iter__(self) -> Iterator[Any]:
            return iter(())

        def close(self) -> None:
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

    with pytest.raises(BackendError, match="tells nothing any more"):
        await place.backend._listen(Torn())


async def test_an_answer_of_the_engine_that_cannot_be_read_is_a_gap_like_others(
    place: Containers, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, inspect, unread = place.backend, place.backend._engine.inspect, threading.Event()

    def unreadable(container: str) -> Any:
        if not unread.is_set():
            unread.set()
            raise KeyError("State")
        return inspect(container)

    await backend.launch(spec(place, script=SLEEP))
    await running(place)
    monkeypatch.setattr(backend._engine, "inspect", unreadable)
    await place.slay(JOB, "worker-0")
    assert (await exited(place)).exit_code == 137
    assert unread.is_set()


async def test_volumes_go_with_their_container(place: Containers) -> None:
    await place.backend.launch(spec(place, script=DONE))
    await exited(place)
    told = await asyncio.to_thread(place.client.inspect_container, place.container(JOB, "worker-0"))
    mine = {mount["Name"] for mount in told["Mounts"]}
    assert len(mine) == 2
    await place.backend.forget(JOB, "worker-0")
    left = {volume["Name"] for volume in place.client.volumes()["Volumes"] or []}
    assert not mine & left


async def test_why_a_registry_does_not_give_an_image_is_said_though_it_has_begun_to(place: Containers) -> None:
    """A layer that is missing, or that one may not read, is found out long after the engine has answered 200."""
    kind = "application/vnd.docker.distribution.manifest.v2+json"
    blob = {"mediaType": "application/octet-stream", "digest": f"sha256:{'0' * 64}", "size": 9}
    manifest = json.dumps({"schemaVersion": 2, "mediaType": kind, "config": blob, "layers": [blob]}).encode()

    class Registry(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = b"" if "/blobs/" in self.path else manifest
            self.send_response(200 if content else 403)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content if self.command == "GET" else b"")

        do_HEAD = do_GET

    with ThreadingHTTPServer(("127.0.0.1", 0), Registry) as registry:
        threading.Thread(target=registry.serve_forever, daemon=True).start()
        try:
            with pytest.raises(BackendError, match=r"cannot be pulled: .*(403|denied|forbidden)"):
                await asyncio.to_thread(place.backend._engine.pull, f"127.0.0.1:{registry.server_port}/it:1")
        finally:
            registry.shutdown()


async def test_an_image_that_comes_in_the_end_is_run(place: Containers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker_backend, "PULL_AGAIN_S", 0.2)
    late = f"registry.invalid/{place.name}:1"
    await place.backend.launch(spec(place, image=late))
    assert (await status(place)).waiting.reason == "image-pull"
    place.client.tag(IMAGE, f"registry.invalid/{place.name}", "1")
    try:
        assert (await running(place)).waiting is None
    finally:
        place.client.remove_image(late)


async def test_a_container_that_was_made_and_never_started_is_made_anew(
    place: Containers, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.client.create_container(
        IMAGE, ["true"], name=place.container(JOB, "worker-0"), labels=place.backend._engine.labels(JOB, "worker-0", {})
    )
    await place.restart()
    assert await place.backend.list() == []
    await place.backend.launch(spec(place))
    assert await place.backend.list() == [], "another actuator may be just about to start it"
    monkeypatch.setattr(docker_backend, "HALF_MADE_S", 0.0)

    async def started() -> bool:
        await place.backend.launch(spec(place))
        return [pod.state for pod in await place.backend.list()] == ["running"]

    await until(started, lambda: "it was made anew")


async def test_a_strangers_container_of_that_name_is_left_alone(place: Containers) -> None:
    stranger = place.client.create_container(IMAGE, ["true"], name=place.container(JOB, "worker-0"))["Id"]
    try:
        with pytest.raises(BackendError, match="none of ours; remove it"):
            await place.backend.launch(spec(place))
    finally:
        place.client.remove_container(stranger)


async def test_a_pod_that_the_engine_refuses_leaves_nothing(place: Containers, volume: str) -> None:
    backend = place.backend = await place.opened(docker_volumes=f"{volume}:/checkpoints")
    with pytest.raises(BackendError, match="/never"):
        await backend.launch(spec(place, reads=("file:///checkpoints/never/m",)))
    assert await backend.list() == []
    assert place.client.containers(all=True, filters={"name": place.name}) == []


async def test_a_command_that_is_not_in_the_image_says_so(place: Containers) -> None:
    await place.backend.launch(spec(place, command=("/nowhere",)))
    pod = await exited(place)
    assert (pod.reason, pod.exit_code) == ("failed", 127)
    assert "/nowhere" in pod.log


async def test_a_pod_without_an_image_is_refused(place: Containers) -> None:
    with pytest.raises(BackendError, match="STRETTO_ACTUATOR_POD_IMAGE"):
        await place.backend.launch(spec(place, image=""))


async def test_an_engine_that_is_away_is_said_to_be_and_found_again(place: Containers) -> None:
    await place.backend.launch(spec(place, script=SLEEP))
    await running(place)
    await place.proxy.stop()

    async def away() -> bool:
        try:
            await place.backend.list()
        except BackendError as error:
            return "see that the engine runs" in str(error)
        return False

    await until(away, lambda: "the engine is away, and that is said")
    await place.proxy.start()
    assert (await running(place)).state == "running"


async def test_an_engine_that_cannot_be_reached_is_named(tmp_path: Path) -> None:
    url = f"unix://{tmp_path}/none.sock"
    backend = backend_of(ActuatorSettings(docker_url=url, pod_nats_url="nats://bus:4222", state_folder=tmp_path))
    with pytest.raises(BackendError, match="the engine cannot be reached"):
        await backend.open()
    await backend.close()


@pytest.mark.parametrize("setting", ["name", "name:", ":/x", "name:relative", "name:/", "a:/b,c"])
def test_volumes_that_make_no_sense_are_refused(setting: str) -> None:
    with pytest.raises(SettingsFault, match=r"DOCKER_VOLUMES=.*name:/path"):
        volumes_of(setting)


def test_volumes_are_read() -> None:
    assert volumes_of(" store:/checkpoints/, /srv/x:/y ") == (Volume("store", "/checkpoints"), Volume("/srv/x", "/y"))
    assert volumes_of("") == ()


async def test_two_actuators_give_a_device_to_one_pod_alone(place: Containers) -> None:
    """Both choose before either hears of the other's container. Whoever finds no room asks again, as at every look."""
    name = "example.com/fpga"
    of_machine: dict[str, Any] = {"extended_resources": {name: 1}, "devices": {name: ["/dev/null"]}}
    backends = await place.opened(**of_machine), await place.opened(**of_machine)
    place._others += backends
    pods = [spec(place, job=job, extended=((name, 1),)) for job in ("ads", "feed")]
    ask = [backend.launch(pod) for backend, pod in zip(backends, pods, strict=True)]
    refused = [each for each in await asyncio.gather(*ask, return_exceptions=True) if each is not None]
    assert refused
    assert {type(each) for each in refused} == {NoRoom}, refused

    async def one_runs() -> bool:
        for backend, pod in zip(backends, pods, strict=True):
            with contextlib.suppress(NoRoom):
                await backend.launch(pod)
        return bool(await place.backend.list())

    await until(one_runs, lambda: "one of them got the device")
    there = place.client.containers(filters={"label": f"{INSTALLATION}={place.name}"})
    assert len(there) == 1


async def test_a_pod_whose_image_came_too_late_for_its_device_is_launched_again(
    place: Containers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves the list, so that the next look launches it; it is not pulled over and over until there is room."""
    monkeypatch.setattr(docker_backend, "PULL_AGAIN_S", 0.2)
    name, late = "example.com/fpga", f"registry.invalid/{place.name}:1"
    backend = await place.opened(extended_resources={name: 1}, devices={name: ["/dev/null"]})
    place._others.append(backend)
    waiting, holder = (spec(place, pod, extended=((name, 1),)) for pod in ("worker-1", "worker-0"))
    waiting = replace(waiting, image=late)
    await backend.launch(waiting)
    await backend.launch(holder)
    place.client.tag(IMAGE, f"registry.invalid/{place.name}", "1")
    try:

        async def is_gone() -> bool:
            return [pod.pod for pod in await backend.list()] == ["worker-0"]

        await until(is_gone, lambda: "its image is there, and no device is")
        with pytest.raises(NoRoom):
            await backend.launch(waiting)
        await backend.kill(JOB, "worker-0")
        await exited(place)
        await backend.launch(waiting)
        assert (await running(place, "worker-1")).waiting is None
    finally:
        await backend.kill(JOB, "worker-1")
        place.client.remove_image(late, force=True)
