"""A Kubernetes cluster of one node on this machine: the binaries of ``build.py`` on the Docker engine of the tests.

Everything it has lies in one folder and ends with it: processes, containers, mounts, iptables chains.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
import signal
import ssl
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any, TextIO

import httpx
from stretto_installation.access import certificates
from stretto_installation.server import free_port, tied

from tests.containers.engine import Engine
from tests.kubernetes import build, configuration
from tests.kubernetes.configuration import Ports, Secrets

READY_S = 120.0
STOP_S = 5.0
NAME = "stretto-node"
PAUSE = "stretto.test/pause:1"
PAUSE_RECIPE = (
    "FROM debian:bookworm-slim\n"
    'ENTRYPOINT ["bash", "-c", "trap \'exit 0\' TERM INT; while :; do sleep 3600 & wait $!; done"]\n'
)
CGROUPS = Path("/sys/fs/cgroup")


class NodeError(Exception):
    """The node did not start or refused a request. The text names the folder of its logs."""


def unmet(engine: Engine) -> str:
    """Why there can be no node here; empty: there can."""
    if os.geteuid() != 0:
        return "a kubelet needs root"
    missing = [tool for tool in ("docker", "iptables", "mount") if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} is missing"
    return "" if engine.answers() else f"no Docker engine answers at {engine.socket}: python -m tests.containers up"


@dataclass(frozen=True, slots=True)
class Process:
    name: str
    running: subprocess.Popen[bytes]
    log: Path


class Node:
    """See the module. A context manager: ``with Node(folder) as node``."""

    def __init__(self, folder: Path, engine: Engine | None = None) -> None:
        self.folder = folder
        self._engine = engine or Engine()
        self._binaries = build.binaries()
        self._processes: list[Process] = []
        self._held: TextIO | None = None
        self._short: Path | None = None
        """The kubelet's folder: it makes a socket far below, and the kernel takes 107 bytes of a socket's path."""
        self._ports = Ports(*(free_port() for _ in Ports._fields))
        self._secrets = Secrets.in_folder(folder, token=secrets.token_hex(16))
        self._group = f"{NAME}-{os.getpid()}"
        self._network = self._bridge()
        self.gateway = str(self._network[1])
        """this machine as pods reach it"""

    # life ------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Node:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Until the node is ready. Raises NodeError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock()
        self._make_pause_image()
        self._make_secrets()
        self._make_groups()
        files = configuration.write(self.folder, self._ports, self._secrets, str(self._network), NAME)
        self._start("etcd", *configuration.etcd(self.folder, self._ports))
        self._start("kube-apiserver", *configuration.apiserver(self._ports, self._secrets, self.gateway))
        self.until("the API server answers", self._answers)
        self._start("kube-controller-manager", *configuration.controller_manager(files, self._secrets))
        self._start("kube-scheduler", *configuration.scheduler(files))
        self._start("kube-proxy", *configuration.proxy(files))
        self._short = Path(tempfile.mkdtemp(prefix="kubelet-"))
        places = configuration.Places(self._short, self._engine.socket, self._group)
        self._start("kubelet", *configuration.kubelet(files, places, self.gateway, NAME, PAUSE))
        self.until("the node is ready", self.ready)
        self.until("pods may have an account", lambda: bool(self.get("/api/v1/namespaces/default/serviceaccounts")))

    def stop(self) -> None:
        """Stop the node and remove all of its traces; repeating it is harmless."""
        for process in reversed(self._processes):
            process.running.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_S
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.running.wait(max(0.0, deadline - time.monotonic()))
            process.running.kill()
            process.running.wait()
        if self._processes:
            self._remove_containers()
            self._unmount()
            configuration.forget_rules()
            self._remove_groups()
        self._processes.clear()
        if self._short is not None:
            shutil.rmtree(self._short, ignore_errors=True)
        if self._held is not None:
            self._held.close()

    # the API ---------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._ports.api}"

    @property
    def kubeconfig(self) -> Path:
        """Return the kubeconfig of an administrator with all rights."""
        return self.folder / configuration.KUBECONFIG

    def request(self, method: str, path: str, body: Any = None, **options: Any) -> httpx.Response:
        """Whatever the answer is."""
        trust = ssl.create_default_context(cafile=str(self._secrets.ca))
        headers = {"Authorization": f"Bearer {self._secrets.token}", **options.pop("headers", {})}
        content = None if body is None else json.dumps(body)
        if content is not None:
            headers.setdefault("Content-Type", "application/json")
        with httpx.Client(verify=trust, timeout=30) as client:
            return client.request(method, self.url + path, content=content, headers=headers, **options)

    def get(self, path: str) -> Any:
        """Return an object, or None if it does not exist."""
        return self._answer(self.request("GET", path))

    def create(self, path: str, body: Any) -> Any:
        return self._answer(self.request("POST", path, body))

    def apply(self, path: str, body: Any) -> Any:
        """Apply an object like ``kubectl apply --server-side``."""
        headers = {"Content-Type": "application/apply-patch+yaml"}
        return self._answer(
            self.request("PATCH", path, body, headers=headers, params={"fieldManager": "trial", "force": "true"})
        )

    def delete(self, path: str, **options: Any) -> Any:
        return self._answer(self.request("DELETE", path, **options))

    def pods(self, namespace: str, selector: str = "") -> list[dict[str, Any]]:
        query = f"?labelSelector={selector}" if selector else ""
        return self.get(f"/api/v1/namespaces/{namespace}/pods{query}")["items"]

    def log_of(self, namespace: str, pod: str) -> str:
        return self.request("GET", f"/api/v1/namespaces/{namespace}/pods/{pod}/log").text

    def _answer(self, response: httpx.Response) -> Any:
        if response.status_code == 404:
            return None
        if response.status_code >= 400:
            raise NodeError(f"{response.request.method} {response.request.url.path}: {response.text[:1000]}")
        return response.json()

    def ready(self) -> bool:
        node = self.get(f"/api/v1/nodes/{NAME}")
        conditions = node["status"].get("conditions", []) if node else []
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    def until(self, what: str, true: Callable[[], Any], limit_s: float = READY_S) -> Any:
        """Wait for a true value of ``true`` and return it. Raises NodeError after ``limit_s`` or if a process ended."""
        deadline = time.monotonic() + limit_s
        while True:
            with contextlib.suppress(httpx.TransportError):
                if found := true():
                    return found
            for process in self._processes:
                if process.running.poll() is not None:
                    raise NodeError(f"{process.name} ended while waiting until {what}: {_end_of(process.log)}")
            if time.monotonic() > deadline:
                raise NodeError(f"not within {limit_s:g} s: {what}; the logs are in {self.folder}")
            time.sleep(0.2)

    # parts -----------------------------------------------------------------------------------------------------

    def _answers(self) -> bool:
        return self.request("GET", "/readyz").status_code == 200

    def _lock(self) -> None:
        """One node on an engine: a kubelet ends containers of pods that it does not know, and there go another's."""
        self._held = open(f"{self._engine.socket}.node", "w")  # noqa: SIM115
        try:
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NodeError(
                f"another node runs on the engine at {self._engine.socket}: wait for its end, or give --engine a folder"
            ) from None

    def _start(self, name: str, *arguments: str) -> None:
        log = self.folder / f"{name}.log"
        with log.open("ab") as file:
            command = tied([str(self._binaries / name), *arguments], signal.SIGKILL)
            running = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
        self._processes.append(Process(name, running, log))

    def _make_secrets(self) -> None:
        now = time.time()
        authority = certificates.authority(now)
        hosts = ["127.0.0.1", self.gateway, configuration.API_ADDRESS, "kubernetes.default.svc"]
        server = certificates.issue(authority, hosts, now)
        self._secrets.write(authority, server)

    def _make_pause_image(self) -> None:
        command = ["docker", "build", "-q", "-t", PAUSE, "-"]
        done = subprocess.run(
            command, input=PAUSE_RECIPE, env=self._engine.environment, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise NodeError(f"{PAUSE}: {done.stderr.strip()[-500:]}; python -m tests.containers bases makes its base")

    def _bridge(self) -> IPv4Network:
        """Where the engine's containers are, and so the pods."""
        subnet = self._docker("network", "inspect", "bridge", "--format", "{{(index .IPAM.Config 0).Subnet}}")
        return IPv4Network(subnet)

    def _make_groups(self) -> None:
        """Create the node's control groups. A kubelet ends unknown processes in the groups below its own."""
        for hierarchy in CGROUPS.iterdir():
            if hierarchy.is_dir() and not hierarchy.is_symlink():
                Path(hierarchy, self._group).mkdir(exist_ok=True)

    def _remove_groups(self) -> None:
        found = [folder for root in CGROUPS.glob(f"*/{self._group}") for folder in (root, *root.glob("**/"))]
        for folder in sorted(found, key=lambda path: -len(path.parts)):
            with contextlib.suppress(OSError):
                folder.rmdir()

    def _remove_containers(self) -> None:
        found = self._docker("ps", "-aq", "--filter", "label=io.kubernetes.pod.name").split()
        if found:
            self._docker("rm", "-f", "-v", *found)

    def _docker(self, *arguments: str) -> str:
        done = subprocess.run(
            ["docker", *arguments], env=self._engine.environment, capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    def _unmount(self) -> None:
        folders = [self.folder, *([self._short] if self._short is not None else [])]
        mounted = [place for folder in folders for place in _mounted_below(folder)]
        for place in sorted(mounted, key=len, reverse=True):
            subprocess.run(["umount", place], check=False)


def _mounted_below(folder: Path) -> Iterator[str]:
    for line in Path("/proc/self/mounts").read_text().splitlines():
        place = line.split()[1].replace("\\040", " ")
        if place.startswith(f"{folder}/"):
            yield place


def _end_of(log: Path) -> str:
    """Return the line with which a program of Kubernetes gave up, or its last ones."""
    lines = log.read_text(errors="replace").splitlines()
    fatal = [line for line in lines if re.match(r"F\d{4} ", line)]
    return f"{log} ends with: {' | '.join(fatal or lines[-3:])}"
