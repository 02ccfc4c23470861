"""An installation with a real arbiter and a real planner, which answer the gateway's questions."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stretto_messages.base import GIB, Message

from .gateway_process import Running, installed
from .rest_documents import spec
from .token_holders import given

CORES = 12.0
WAIT_S = 60.0


@dataclass
class Cluster:
    """An installation that decides, and a viewer's token of another team."""

    running: Running
    viewer: str

    def publish(self, *messages: Message) -> None:
        self.running.publish(*messages)

    def until(self, path: str, reached: Callable[[Any], bool]) -> Any:
        """Ask until the answer is as wanted."""
        deadline = time.monotonic() + WAIT_S
        with self.running.http() as http:
            while time.monotonic() < deadline:
                answer = http.get(path, timeout=WAIT_S)
                if answer.status_code == 200 and reached(answer.json()):
                    return answer.json()
                time.sleep(0.05)
        raise AssertionError(f"{path}: {answer.text}")

    def submit(self, **more: Any) -> str:
        document = spec(**more)
        with self.running.http() as http:
            http.post("/jobs", json=document).raise_for_status()
        return document["name"]


@contextlib.contextmanager
def deciding(folder: Path) -> Iterator[Cluster]:
    """Start a gateway with the arbiter and the planner, and wait until both are ready."""
    viewer = given(folder, "eve", "viewer", team="feed")
    with installed(folder, {"STRETTO_GATEWAY_CALL_TIMEOUT_S": "5"}) as running, contextlib.ExitStack() as closing:
        for service in ("arbiter", "planner"):
            environment = {key: value for key, value in os.environ.items() if not key.startswith("STRETTO_")}
            environment |= running.server.environment(service)
            environment |= {"STRETTO_STATE_FOLDER": str(folder), "STRETTO_CPU_CORES": str(CORES)}
            environment |= {"STRETTO_MEMORY_BYTES": str(64 * GIB)}
            log = closing.enter_context((folder / f"{service}.log").open("ab"))
            command = [sys.executable, "-m", f"stretto_{service}"]
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
            closing.callback(process.wait, 20)
            closing.callback(process.terminate)
        found = Cluster(running, viewer)
        ready = {"arbiter", "planner"}
        found.until("/cluster", lambda told: ready <= {one["service"] for one in told["services"] if one["ready"]})
        yield found
