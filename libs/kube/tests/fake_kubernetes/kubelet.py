"""A scheduler and a kubelet: pods really run, as processes of this machine.

Where a container would see a volume, its process sees a folder: mount paths in command and environment are replaced.
There is no wall between these processes; what is tested here is what the API server says of them.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import copy
import os
import re
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from stretto_kube import parse_quantity

from .admission import requests
from .merging import Object
from .storage import Storage, now_text

LOOK_S = 0.02
MESSAGE_BYTES = 2048


@dataclass
class Running:
    """A process of a pod, by the pod's uid."""

    process: asyncio.subprocess.Process
    folder: Path
    log: Path
    began_at: str
    limit_bytes: int
    told_at_s: float | None = None
    oom_killed: bool = False


@dataclass
class Kubelet:
    """All nodes of a cluster. ``nodes``: name -> CPU cores and bytes."""

    storage: Storage
    folder: Path
    logs: dict[str, str]
    nodes: dict[str, tuple[float, int]] = field(default_factory=lambda: {"node-0": (64.0, 64 << 30)})
    images: set[str] = field(default_factory=set)
    """Images that can be pulled; empty: any."""
    lost: set[str] = field(default_factory=set)
    """Nodes whose kubelet is silent."""
    running: dict[str, Running] = field(default_factory=dict)

    async def run(self) -> None:
        """Run until cancelled."""
        heard = asyncio.Event()
        self.storage.listeners.add(heard)
        while True:
            heard.clear()
            for pod in self.storage.all("pods"):
                self._schedule(pod)
                if pod["spec"].get("nodeName") and pod["spec"]["nodeName"] not in self.lost:
                    await self._look(pod)
            self._end_ownerless()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await heard.wait()

    async def close(self) -> None:
        """End every process."""
        for running in self.running.values():
            _kill(running, signal.SIGKILL)
            await running.process.wait()

    # scheduling ------------------------------------------------------------------------------------------------

    def _schedule(self, pod: Object) -> None:
        if pod["spec"].get("nodeName") or pod["spec"].get("schedulingGates"):
            return
        cpu, size = requests(pod)
        for node in sorted(self.nodes.keys() - self.lost):
            free_cpu, free = self._free(node, pod)
            if cpu <= free_cpu and size <= free:
                bound = {**pod, "spec": {**pod["spec"], "nodeName": node}}
                self._tell(bound, {}, {"type": "PodScheduled", "status": "True"})
                return
        message = f"0/{len(self.nodes)} nodes are available: {len(self.nodes)} Insufficient cpu."
        unfit = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        self._tell(pod, {}, unfit)

    def _free(self, node: str, but: Object) -> tuple[float, float]:
        cpu, size = self.nodes[node]
        for pod in self.storage.all("pods"):
            here = pod["spec"].get("nodeName") == node and pod["metadata"]["name"] != but["metadata"]["name"]
            if here and pod["status"].get("phase") not in ("Succeeded", "Failed"):
                used_cpu, used = requests(pod)
                cpu, size = cpu - used_cpu, size - used
        return cpu, size

    # a pod -----------------------------------------------------------------------------------------------------

    async def _look(self, pod: Object) -> None:
        running = self.running.get(pod["metadata"]["uid"])
        if pod["status"].get("phase") in ("Succeeded", "Failed"):
            return
        if running is None:
            if not pod["metadata"].get("deletionTimestamp"):
                await self._start(pod)
            else:
                self.storage.remove("pods", pod["metadata"]["name"])
            return
        if running.process.returncode is not None:
            self._tell_end(pod, running)
            return
        self._watch_memory(running)
        self._resize(pod, running)
        if pod["metadata"].get("deletionTimestamp"):
            self._end(pod, running)

    async def _start(self, pod: Object) -> None:
        container = pod["spec"]["containers"][0]
        if self.images and container["image"] not in self.images:
            seen = (_container(pod).get("state") or {}).get("waiting", {}).get("reason")
            reason = "ImagePullBackOff" if seen in ("ErrImagePull", "ImagePullBackOff") else "ErrImagePull"
            waiting = {"reason": reason, "message": f'failed to pull "{container["image"]}": not found'}
            self._tell_container(pod, {"waiting": waiting}, "Pending")
            return
        mounts = self._mount(pod)
        if mounts is None:
            self._tell_container(pod, {"waiting": {"reason": "ContainerCreating"}}, "Pending")
            return
        folder = self.folder / pod["metadata"]["uid"]
        environment = {each["name"]: _value(each) for each in container.get("env", [])}
        log = folder / "log"
        with log.open("ab") as out:
            process = await asyncio.create_subprocess_exec(
                *(_inside(mounts, part) for part in container["command"]),
                env={name: _inside(mounts, value) for name, value in environment.items()},
                cwd=folder,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self.logs[pod["metadata"]["name"]] = str(log)
        limit = int(parse_quantity(container["resources"]["limits"]["memory"]))
        self.running[pod["metadata"]["uid"]] = Running(process, folder, log, now_text(), limit)
        self._tell_running(pod)

    def _mount(self, pod: Object) -> dict[str, str] | None:
        """Return mount path -> folder; None if something is missing yet."""
        folder = self.folder / pod["metadata"]["uid"]
        volumes: dict[str, Path] = {}
        for volume in pod["spec"].get("volumes", []):
            volumes[volume["name"]] = path = folder / "volumes" / volume["name"]
            path.mkdir(parents=True, exist_ok=True)
            if "secret" in volume:
                secret = self.storage.get("secrets", volume["secret"]["secretName"])
                if secret is None:
                    return None
                path.chmod(0o700)
                for name, data in secret.get("data", {}).items():
                    (path / name).write_bytes(base64.b64decode(data))
                    (path / name).chmod(volume["secret"]["defaultMode"] & 0o700)
        mounts = pod["spec"]["containers"][0].get("volumeMounts", [])
        own = (each for each in mounts if each["mountPath"] != "/tmp")  # which every process has
        return {each["mountPath"]: str(volumes[each["name"]]) for each in own}

    def _end(self, pod: Object, running: Running) -> None:
        grace_s = pod["metadata"]["deletionGracePeriodSeconds"]
        if running.told_at_s is None:
            running.told_at_s = time.monotonic()
            _kill(running, signal.SIGTERM)
        elif time.monotonic() - running.told_at_s > grace_s:
            _kill(running, signal.SIGKILL)

    def _watch_memory(self, running: Running) -> None:
        if _resident_bytes(running) > running.limit_bytes:
            running.oom_killed = True
            _kill(running, signal.SIGKILL)

    def _resize(self, pod: Object, running: Running) -> None:
        wanted = pod["spec"]["containers"][0]["resources"]
        if _container(pod).get("resources") == wanted:
            self._tell(pod, {}, {"type": "PodResizePending"}, {"type": "PodResizeInProgress"})
            return
        cpu, size = requests(pod)
        free_cpu, free = self._free(pod["spec"]["nodeName"], pod)
        most_cpu, most = self.nodes[pod["spec"]["nodeName"]]
        limit = int(parse_quantity(wanted["limits"]["memory"]))
        if cpu > most_cpu or size > most:
            why = {"type": "PodResizePending", "status": "True", "reason": "Infeasible"}
        elif cpu > free_cpu or size > free:
            why = {"type": "PodResizePending", "status": "True", "reason": "Deferred"}
        elif limit < _resident_bytes(running):
            why = {"type": "PodResizeInProgress", "status": "True", "reason": "Error", "message": "memory is in use"}
        else:
            running.limit_bytes = limit
            self._tell_running(pod)
            return
        self._tell(pod, {}, why)

    def _end_ownerless(self) -> None:
        """End the processes of pods whose objects are gone."""
        present = {pod["metadata"]["uid"] for pod in self.storage.all("pods")}
        for uid in self.running.keys() - present:
            _kill(self.running[uid], signal.SIGKILL)
            if self.running[uid].process.returncode is not None:
                del self.running[uid]

    # telling ---------------------------------------------------------------------------------------------------

    def _tell_running(self, pod: Object) -> None:
        running = self.running[pod["metadata"]["uid"]]
        self._tell_container(pod, {"running": {"startedAt": running.began_at}}, "Running")

    def _tell_end(self, pod: Object, running: Running) -> None:
        code = running.process.returncode
        assert code is not None
        code = 128 - code if code < 0 else code
        reason = "OOMKilled" if running.oom_killed else "Completed" if code == 0 else "Error"
        ended = {"exitCode": code, "reason": reason, "startedAt": running.began_at, "finishedAt": now_text()}
        if code:
            ended["message"] = running.log.read_text(errors="replace")[-MESSAGE_BYTES:]
        self._tell_container(pod, {"terminated": ended}, "Failed" if code else "Succeeded")
        if pod["metadata"].get("deletionTimestamp"):
            self.storage.remove("pods", pod["metadata"]["name"])

    def _tell_container(self, pod: Object, state: Object, phase: str) -> None:
        container = pod["spec"]["containers"][0]
        status = {
            "name": container["name"], "image": container["image"], "imageID": "", "ready": "running" in state,
            "restartCount": 0, "state": state, "resources": copy.deepcopy(container["resources"]),
        }  # fmt: skip
        self._tell(pod, {"phase": phase, "containerStatuses": [status]})

    def _tell(self, pod: Object, status: Object, *conditions: Object) -> None:
        """Write a pod's status; ``conditions`` without a status are removed."""
        kept = [
            each for each in pod["status"].get("conditions", []) if each["type"] not in {c["type"] for c in conditions}
        ]
        before = {each["type"]: each for each in pod["status"].get("conditions", [])}
        for each in conditions:
            if "status" in each:
                since = before.get(each["type"], {}).get("lastTransitionTime") or now_text()
                kept.append({**each, "lastTransitionTime": since})
        kept.sort(key=lambda each: each["type"])
        self.storage.put("pods", {**pod, "status": {**pod["status"], **status, "conditions": kept}})


def _container(pod: Object) -> Object:
    return (pod["status"].get("containerStatuses") or [{}])[0]


def _value(variable: Object) -> str:
    """Return a container's environment; the only field reference supported is the pod's address."""
    return variable.get("value", "127.0.0.1")


def _inside(mounts: dict[str, str], text: str) -> str:
    longest_first = sorted(mounts, key=len, reverse=True)
    return re.sub("|".join(map(re.escape, longest_first)), lambda found: mounts[found[0]], text) if mounts else text


def _kill(running: Running, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(running.process.pid, number)


def _resident_bytes(running: Running) -> int:
    total = 0
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(running.process.pid)
        for each in [process, *process.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                total += each.memory_info().rss
    return total
