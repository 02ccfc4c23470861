"""Behaviour of every backend, whatever its place is. A test module subclasses ``BackendContract`` and has a fixture
``place``: how to start pods there that sleep, fail, eat memory, how to lose the watch, what the place cannot do.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import textwrap
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import pytest
from stretto_actuator.backend import Backend, BackendError, PodSpec, PodStatus

from tests.waits import until

MIB = 2**20
LIMIT_S = 60.0
JOB = "contract"

SLEEP = "print('up', flush=True); time.sleep(600)"
DONE = "print('done')"
FAIL = "print('bad column 7'); sys.exit(3)"
LINES = "print('\\n'.join(f'line {n}' for n in range(50)))"
GLUTTON = "eaten = [b'x' * 2**20 for _ in range(400)]"
FED = "eaten = [b'x' * 2**20 for _ in range(96)]; print('fed', flush=True); time.sleep(600)"
STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
POLITE = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); print('up', flush=True); time.sleep(600)"


class Place(Protocol):
    """The part that a backend's test module supplies."""

    backend: Backend
    """open"""
    python: str
    """the interpreter of pods there"""
    image: str
    """that pods run; empty: there are none"""
    memory_bytes: int
    """of a pod that may hold 100 MiB, and not 400"""
    resizes: bool
    """whether limits change in place"""
    absent: Mapping[str, str]
    """tests that the place has no room for: name -> why"""

    async def restart(self) -> None:
        """Another actuator: ``backend`` is closed, and a new one opened."""

    async def break_watch(self) -> None:
        """Whatever tells the backend of changes is cut off; it may come back at once."""

    async def age(self) -> None:
        """So much time passes that nothing that is over matters any more."""

    async def other(self) -> Backend:
        """The open backend of another installation at the same place."""
        ...

    async def slay(self, job: str, pod: str) -> None:
        """SIGKILL from outside, past the backend."""
        ...

    def too_large(self) -> PodSpec:
        """A pod for which there is no room."""
        ...

    async def enforced(self, job: str, pod: str) -> tuple[float, int]:
        """Cores and bytes that the place itself keeps the pod to."""
        ...


def spec(place: Place, pod: str = "worker-0", script: str = SLEEP, **more: Any) -> PodSpec:
    """A pod that runs ``script`` with a Python of the place."""
    program = "import json, os, signal, sys, time\n" + textwrap.dedent(script)
    given: dict[str, Any] = {
        "job": JOB,
        "pod": pod,
        "command": (place.python, "-S", "-c", program),
        "environment": {"PATH": "/usr/local/bin:/usr/bin:/bin", "STRETTO_POD": pod},
        "cpu_cores": 1.0,
        "memory_bytes": place.memory_bytes,
        "image": place.image,
    }
    given["environment"]["STRETTO_POD_FOLDER"] = place.backend.places(given["job"], pod).scratch
    return PodSpec(**{**given, **more})


async def status(place: Place, pod: str = "worker-0", job: str = JOB) -> PodStatus | None:
    """Return None also while the place cannot be reached: callers ask again."""
    with contextlib.suppress(BackendError):
        return next((each for each in await place.backend.list(job) if each.pod == pod), None)
    return None


async def running(place: Place, pod: str = "worker-0", says: str = "up") -> PodStatus:
    """The pod, once it has said that it is there."""

    async def check() -> PodStatus | None:
        now = await status(place, pod)
        assert now is None or now.state != "exited", now
        runs = now is not None and now.state == "running"
        return now if runs and says in await place.backend.logs(JOB, pod, 100) else None

    return await until(check, lambda: f"{pod} runs and says {says}")


async def exited(place: Place, pod: str = "worker-0") -> PodStatus:
    async def check() -> PodStatus | None:
        now = await status(place, pod)
        return now if now is not None and now.state == "exited" else None

    return await until(check, lambda: f"{pod} has exited")


async def said(place: Place, pod: str = "worker-0") -> str:
    """Everything that a pod wrote, which has exited."""

    async def check() -> str:
        return await place.backend.logs(JOB, pod, 1000)

    await exited(place, pod)
    return await until(check, lambda: f"{pod} has a log")


class BackendContract:
    """See the module."""

    @pytest.fixture(autouse=True)
    def _present(self, request: pytest.FixtureRequest, place: Place) -> None:
        if (why := place.absent.get(request.node.name)) is not None:
            pytest.skip(why)

    # starting ----------------------------------------------------------------------------------------------------

    async def test_a_pod_is_started_once_however_often_it_is_asked_for(self, place: Place) -> None:
        asked = spec(place)
        await asyncio.gather(*(place.backend.launch(asked) for _ in range(4)))
        first = await running(place)
        await place.backend.launch(asked)
        assert [pod.pod for pod in await place.backend.list(JOB)] == ["worker-0"]
        now = await running(place)
        assert (now.launched_at_s, now.pids) == (first.launched_at_s, first.pids)
        assert (await place.backend.logs(JOB, "worker-0", 100)).count("up") == 1

    async def test_a_name_is_not_used_again_by_its_job(self, place: Place) -> None:
        asked, leave = spec(place, script=DONE), place.backend.follow(JOB, lambda: None)
        await place.backend.launch(asked)
        ended = await exited(place)
        await place.backend.launch(asked)
        assert await exited(place) == ended
        await place.backend.forget(JOB, "worker-0")
        await place.backend.forget(JOB, "worker-0")
        await place.backend.launch(asked)
        assert await place.backend.list(JOB) == []

        async def begun() -> PodStatus | None:
            await place.backend.launch(asked)
            return await status(place)

        leave()
        await place.age()
        assert await until(begun, lambda: "another job of the same name has its own pods")

    async def test_command_environment_and_files_reach_the_pod_and_nothing_else_does(self, place: Place) -> None:
        script = """
            folder = os.environ["FILES"]
            names = [name for name in os.listdir(folder) if not name.startswith("..")]
            modes = {name: oct(os.stat(os.path.join(folder, name)).st_mode & 0o777) for name in names}
            content = {name: open(os.path.join(folder, name)).read() for name in modes}
            secrets = [name for name in os.environ if "SECRET" in name]
            print(json.dumps([modes, content, secrets, os.environ["GREETING"]]))
        """
        asked = spec(place, script=script, files={"job.json": b"{}", "bus.creds": b"key"})
        asked.environment.update(GREETING="hello, you", FILES=place.backend.places(JOB, "worker-0").files)
        await place.backend.launch(asked)
        modes, content, secrets, greeting = json.loads((await said(place)).splitlines()[-1])
        assert content == {"job.json": "{}", "bus.creds": "key"}
        assert set(modes.values()) <= {"0o400", "0o440"}, "nobody else reads them"
        assert (secrets, greeting) == ([], "hello, you")

    async def test_a_pod_may_write_its_scratch_folder_and_temporary_files(self, place: Place) -> None:
        script = """
            import tempfile
            with open(os.path.join(os.environ["STRETTO_POD_FOLDER"], "image"), "wb") as file:
                file.write(bytes(5 * 2**20))
            with tempfile.TemporaryFile() as file:
                file.write(b"x")
            print("written")
        """
        await place.backend.launch(spec(place, script=script))
        assert await said(place) == "written"

    async def test_an_image_that_cannot_be_had_is_awaited_and_told(self, place: Place) -> None:
        if not place.image:
            pytest.skip("pods have no images here")
        missing = "registry.invalid/shop/trainer:2"
        await place.backend.launch(spec(place, image=missing))

        async def told() -> PodStatus | None:
            now = await status(place)
            waits = now is not None and now.waiting is not None and now.waiting.reason == "image-pull"
            return now if waits else None

        waiting = await until(told, lambda: "it waits for its image")
        assert waiting.state == "pending"
        assert missing in waiting.waiting.detail
        await place.backend.launch(spec(place, image=missing))
        assert len(await place.backend.list(JOB)) == 1
        await place.backend.kill(JOB, "worker-0")

        async def gone() -> bool:
            now = await status(place)
            return now is None or (now.state, now.reason) == ("exited", "image-pull")

        await until(gone, lambda: "nobody waits for the image any more")
        await place.backend.forget(JOB, "worker-0")
        assert await place.backend.list(JOB) == []

    async def test_a_pod_without_room_is_pending_and_says_why(self, place: Place) -> None:
        asked = place.too_large()
        await place.backend.launch(asked)

        async def told() -> PodStatus | None:
            now = await status(place, asked.pod, asked.job)
            return now if now is not None and now.waiting and now.waiting.reason in ("no-room", "quota") else None

        waiting = await until(told, lambda: "it waits for room")
        assert waiting.state == "pending"
        assert waiting.waiting.detail
        await place.backend.kill(asked.job, asked.pod)

    # ending ------------------------------------------------------------------------------------------------------

    ENDS: ClassVar = {
        "completed": (DONE, ("completed", 0)),
        "failed": (FAIL, ("failed", 3)),
        "oom-killed": (GLUTTON, ("oom-killed", 137)),
    }

    @pytest.mark.parametrize("how", ENDS)
    async def test_ends_are_told_apart(self, place: Place, how: str) -> None:
        script, ends = self.ENDS[how]
        await place.backend.launch(spec(place, script=script))
        pod = await exited(place)
        assert (pod.reason, pod.exit_code) == ends
        assert ("bad column 7" in pod.log) == (how == "failed")

    async def test_a_pod_that_is_killed_from_outside_says_so(self, place: Place) -> None:
        await place.backend.launch(spec(place))
        await running(place)
        await place.slay(JOB, "worker-0")
        pod = await exited(place)
        assert (pod.reason, pod.exit_code) == ("killed", 137)

    async def test_a_pod_is_asked_first_and_killed_after_its_grace(self, place: Place) -> None:
        await place.backend.launch(spec(place, "worker-0", POLITE))
        await place.backend.launch(spec(place, "worker-1", STUBBORN))
        for pod in ("worker-0", "worker-1"):
            await running(place, pod)

        async def ended(pod: str, grace_s: float) -> PodStatus | None:
            await place.backend.stop(JOB, pod, grace_s)
            now = await status(place, pod)
            return now if now is not None and now.state == "exited" else None

        polite = await until(lambda: ended("worker-0", 60.0), lambda: "worker-0 leaves")
        assert (polite.reason, polite.exit_code) == ("completed", 0)
        await place.backend.stop(JOB, "worker-1", 60.0)
        assert (await running(place, "worker-1")).state == "running"
        stubborn = await until(lambda: ended("worker-1", 0.5), lambda: "worker-1 is made to leave")
        assert (stubborn.reason, stubborn.exit_code) == ("killed", 137)

    async def test_a_killed_pod_ends_at_once(self, place: Place) -> None:
        await place.backend.launch(spec(place, script=STUBBORN))
        await running(place)
        await place.backend.kill(JOB, "worker-0")
        assert (await exited(place)).reason == "killed"
        await place.backend.kill(JOB, "worker-0")
        await place.backend.stop(JOB, "worker-0", 0.0)

    async def test_what_is_not_there_can_be_ended_and_forgotten_but_not_resized(self, place: Place) -> None:
        await place.backend.stop(JOB, "worker-9", 0.0)
        await place.backend.kill(JOB, "worker-9")
        await place.backend.forget(JOB, "worker-9")
        assert await place.backend.logs(JOB, "worker-9", 10) == ""
        with pytest.raises(BackendError, match="worker-9"):
            await place.backend.resize(JOB, "worker-9", 1.0, 64 * MIB)

    async def test_a_pod_that_runs_is_not_forgotten(self, place: Place) -> None:
        await place.backend.launch(spec(place))
        await running(place)
        await place.backend.forget(JOB, "worker-0")
        assert (await running(place)).state == "running"

    # limits ------------------------------------------------------------------------------------------------------

    async def test_limits_change_while_the_pod_runs(self, place: Place) -> None:
        if not place.resizes:
            pytest.skip("limits do not change in place here")
        await place.backend.launch(spec(place))
        before = await running(place)
        assert before.limits
        for cpu_cores, memory_bytes in ((0.5, 2 * place.memory_bytes), (2.0, place.memory_bytes)):
            assert await place.backend.resize(JOB, "worker-0", cpu_cores, memory_bytes) == (cpu_cores, memory_bytes)
            now = await running(place)
            assert (now.cpu_cores, now.memory_bytes) == (cpu_cores, memory_bytes)
            assert await place.enforced(JOB, "worker-0") == (cpu_cores, memory_bytes)
        assert now.launched_at_s == before.launched_at_s, "it is the same one"

    async def test_memory_in_use_is_never_taken_away(self, place: Place) -> None:
        if not place.resizes:
            pytest.skip("limits do not change in place here")
        await place.backend.launch(spec(place, script=FED))
        await running(place, says="fed")
        _, memory_bytes = await place.backend.resize(JOB, "worker-0", 1.0, 32 * MIB)
        assert 96 * MIB < memory_bytes < place.memory_bytes
        now = await running(place, says="fed")
        assert now.memory_bytes == memory_bytes

    # what is there -----------------------------------------------------------------------------------------------

    async def test_pods_are_listed_by_job(self, place: Place) -> None:
        await place.backend.launch(spec(place, "ps-0"))
        await place.backend.launch(spec(place, "ps-0", job="another"))
        await running(place, "ps-0")
        assert [(pod.job, pod.pod) for pod in await place.backend.list(JOB)] == [(JOB, "ps-0")]

        async def both() -> bool:
            return {(pod.job, pod.pod) for pod in await place.backend.list()} == {(JOB, "ps-0"), ("another", "ps-0")}

        await until(both, lambda: "both are listed")

    async def test_two_installations_do_not_see_each_other(self, place: Place) -> None:
        other = await place.other()
        await place.backend.launch(spec(place))
        await running(place)
        assert await other.list() == []
        await other.kill(JOB, "worker-0")
        await other.forget(JOB, "worker-0")
        assert (await running(place)).state == "running"
        await other.launch(spec(place))

        async def there() -> bool:
            return [(pod.pod, pod.state) for pod in await other.list()] == [("worker-0", "running")]

        await until(there, lambda: "the other one has a pod of the same name")
        await place.backend.kill(JOB, "worker-0")
        await exited(place)
        assert await there()

    async def test_a_restarted_actuator_goes_on_with_its_pods(self, place: Place) -> None:
        await place.backend.launch(spec(place, "worker-0"))
        await place.backend.launch(spec(place, "worker-1"))
        first, second = await running(place, "worker-0"), await running(place, "worker-1")
        assert not first.adopted
        await place.slay(JOB, "worker-1")
        await place.restart()
        adopted = await running(place, "worker-0")
        assert adopted.adopted
        assert adopted.launched_at_s == pytest.approx(first.launched_at_s, abs=0.01)
        assert (adopted.cpu_cores, adopted.memory_bytes) == (first.cpu_cores, first.memory_bytes)
        await place.backend.launch(spec(place, "worker-0"))
        assert (await place.backend.logs(JOB, "worker-0", 100)).count("up") == 1
        missed = await exited(place, "worker-1")
        assert (missed.reason, missed.exit_code) == ("killed", 137)
        assert second.pod == missed.pod

    async def test_followers_hear_of_every_end_of_their_job_also_after_a_lost_watch(self, place: Place) -> None:
        heard = asyncio.Event()
        leave = place.backend.follow(JOB, heard.set)
        for number, breaks in enumerate((False, True, True)):
            pod = f"worker-{number}"
            await place.backend.launch(spec(place, pod))
            await running(place, pod)
            if breaks:
                await place.break_watch()
            heard.clear()
            await place.slay(JOB, pod)
            await exited(place, pod)
            await asyncio.wait_for(heard.wait(), LIMIT_S)
        leave()
        heard.clear()
        await place.backend.launch(spec(place, "worker-9", DONE))
        await exited(place, "worker-9")
        assert not heard.is_set()

    async def test_the_last_lines_of_a_log_are_shown(self, place: Place) -> None:
        await place.backend.launch(spec(place, script=LINES))
        await said(place)
        assert (await place.backend.logs(JOB, "worker-0", 3)).splitlines() == ["line 47", "line 48", "line 49"]
