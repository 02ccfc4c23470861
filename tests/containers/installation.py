"""An installation under Compose as its users have it: brought up, spoken to with the command, hurt, taken down."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from stretto_client.documents import Documents
from stretto_client.errors import ClientError
from stretto_client.places import Place
from stretto_installation.server import free_port

from tests.containers.bases import docker
from tests.containers.compose import Project
from tests.containers.engine import Engine, EngineUnavailable
from tests.containers.images import SERVICES, described, name_of

READY_S = 120.0
LOOK_S = 0.5
ENDS = ("finished", "failed", "cancelled")
JOB: dict[str, Any] = {
    "model": {
        "entry": "stretto.examples.wide_deep:WideDeep",
        "arguments": {"categories": 20000, "new_categories": 20000, "seed": 1},
        "learning_rate": 0.05,
    },
    "dataset": {"batch_size": 256, "batches_per_shard": 8, "seed": 1},
}


class Unwell(Exception):
    """The installation failed to do what was requested. The text holds its output."""


class Installation:
    """An installation under its own project name, independent of others on the engine.

    ``own``: a file of changes to the compose file.
    """

    def __init__(self, engine: Engine, own: Path | None = None) -> None:
        self.engine = engine
        self.name = f"stretto-{uuid.uuid4().hex[:8]}"
        self.port = free_port()
        self.healthy_s = 0.0
        chosen = {
            "COMPOSE_PROJECT_NAME": self.name,
            "GATEWAY_PORT": str(self.port),
            "DOCKER_SOCKET": str(engine.socket),
            "DOCKER_GID": str(engine.socket.stat().st_gid),
        }
        self.project = Project(engine, self.name, chosen, own)
        self.gateway = Documents(Place(""))
        self.token = ""

    def up(self, *arguments: str) -> None:
        began = time.monotonic()
        self.project.up(*arguments, limit_s=READY_S)
        self.healthy_s = time.monotonic() - began
        self.token = self.project("exec", "-T", "gateway", "cat", "/var/lib/stretto/gateway.token").strip()
        self.gateway = Documents(Place(f"http://127.0.0.1:{self.port}", self.token))

    def down(self) -> None:
        """Remove everything. The actuator goes first: it restarts pods that are removed."""
        self.project("stop", "--timeout", "15", "actuator")
        for container in self._found("--all", labels=[f"stretto.dev/installation={self.name}"]):
            docker(self.engine, "rm", "--force", "--volumes", container)
        self.project.down()

    # asked -----------------------------------------------------------------------------------------------------------

    def submit(self, name: str, samples: int) -> None:
        model = {**JOB["model"], "arguments": {**JOB["model"]["arguments"], "samples": samples}}
        spec = {"name": name, "model": model, "dataset": {**JOB["dataset"], "samples": samples}}
        self.gateway.submit(yaml.safe_dump(spec))

    def status(self, job: str) -> str:
        return str(self.gateway.job(job)["status"])

    def trained_samples(self, job: str) -> int:
        return int(self.gateway.job(job)["progress"]["samples_done"])

    def ended(self, job: str) -> bool:
        return self.status(job) in ENDS

    def until(self, condition: Callable[[], bool], what: str, limit_s: float = 300.0) -> None:
        """A gateway that is away answers later. Raises Unwell when it does not come about."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            with contextlib.suppress(ClientError):
                if condition():
                    return
            time.sleep(LOOK_S)
        raise Unwell(f"not within {limit_s:.0f} s: {what}")

    # its containers --------------------------------------------------------------------------------------------------

    def containers(self, service: str) -> list[str]:
        """Ids of the running replicas of a service."""
        labels = [f"com.docker.compose.project={self.name}", f"com.docker.compose.service={service}"]
        return self._found(labels=labels)

    def pods(self, role: str = "") -> list[str]:
        labels = [f"stretto.dev/installation={self.name}"]
        return self._found(labels=[*labels, *([f"stretto.dev/role={role}"] if role else [])])

    def left(self) -> list[str]:
        """Return its remaining containers, networks and volumes."""
        found: list[str] = []
        for kind, every in (("container", ["--all"]), ("network", []), ("volume", [])):
            for label in ("com.docker.compose.project", "stretto.dev/installation"):
                filters = ["--filter", f"label={label}={self.name}"]
                found += docker(self.engine, kind, "ls", *every, "--quiet", *filters).split()
        return found

    def _found(self, *options: str, labels: Sequence[str]) -> list[str]:
        filters = [argument for label in labels for argument in ("--filter", f"label={label}")]
        return docker(self.engine, "ps", "--quiet", "--no-trunc", *options, *filters).split()

    def crash(self, container: str) -> None:
        """Kill the process from inside: the engine does not restart a container that was killed through it."""
        pid = described(self.engine, "container", container)["State"]["Pid"]
        if pid:
            os.kill(pid, signal.SIGKILL)

    def ready(self, service: str) -> bool:
        containers = self.containers(service)
        health = [described(self.engine, "container", each)["State"]["Health"]["Status"] for each in containers]
        return bool(health) and set(health) == {"healthy"}


@contextmanager
def filled(engine: Engine, name: str, folder: Path) -> Iterator[str]:
    """Make a volume whose name begins so, with what is in the folder; return its name, and remove it at the end."""
    volume = f"{name}-{uuid.uuid4().hex[:8]}"
    docker(engine, "volume", "create", volume)
    try:
        filler = docker(engine, "create", "--volume", f"{volume}:/filled", name_of("trainer"))
        docker(engine, "cp", f"{folder}/.", f"{filler}:/filled")
        docker(engine, "rm", filler)
        yield volume
    finally:
        docker(engine, "volume", "rm", volume)


@contextmanager
def installed(engine: Engine, *arguments: str, own: Path | None = None) -> Iterator[Installation]:
    """Start an installation and always remove it. Raises EngineUnavailable with the logs of failed services."""
    installation = Installation(engine, own)
    try:
        try:
            installation.up(*arguments)
        except EngineUnavailable as error:
            raise EngineUnavailable(f"{error}\n{installation.project('logs', '--tail', '5')[-6000:]}") from None
        yield installation
    finally:
        installation.down()


EVERY_SERVICE = tuple(name for name in SERVICES if name not in ("forwarder", "decider"))
