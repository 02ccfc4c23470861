"""A real Docker engine for the tests: Debian's dockerd, started by hand and detached, its log in a file.

With a folder, it is one of its own beside any other: state, socket and log lie in that folder, and its networks in a
network namespace. Two engines in one namespace take away each other's bridge and rules. Nothing outside is reached
from it: images come by ``docker save`` and ``load``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("docker.io", "debootstrap", "iptables")
INSTALL = "STRETTO_TEST_ENGINE"
"""``1``: tests may install the engine's packages and start it; else they take the one that is there, or skip"""
READY_S = 30.0
STOP_S = 30.0


class EngineUnavailable(Exception):
    """No Docker engine is available. The text names the reason and the remedy."""


@dataclass(frozen=True)
class Engine:
    """The engine of the machine, or one of its own in ``folder``."""

    folder: Path | None = None

    @property
    def socket(self) -> Path:
        return self.folder / "docker.sock" if self.folder else Path("/var/run/docker.sock")

    @property
    def log(self) -> Path:
        return self.folder / "dockerd.log" if self.folder else Path("/var/log/dockerd.log")

    @property
    def pid_file(self) -> Path:
        return self.folder / "docker.pid" if self.folder else Path("/var/run/docker.pid")

    @property
    def environment(self) -> dict[str, str]:
        """For the client; with the classic builder, which is all that Debian's engine has."""
        return {**os.environ, "DOCKER_HOST": f"unix://{self.socket}", "DOCKER_BUILDKIT": "0"}

    def answers(self) -> bool:
        if shutil.which("docker") is None or not self.socket.exists():
            return False
        asked = subprocess.run(["docker", "version"], env=self.environment, capture_output=True, check=False)
        return asked.returncode == 0

    def up(self, install: bool) -> None:
        """Start it unless it runs. Raises EngineUnavailable."""
        if self.answers():
            return
        if os.geteuid() != 0:
            raise EngineUnavailable("no Docker engine answers, and only root can start one")
        if shutil.which("dockerd") is None:
            if not install:
                raise EngineUnavailable(f"no Docker engine is installed; {INSTALL}=1 lets the tests install Debian's")
            install_packages()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            process = subprocess.Popen(self._command(), stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + READY_S
        while not self.answers():
            if process.poll() is not None or time.monotonic() > deadline:
                process.terminate()
                last = self.log.read_text(errors="replace").splitlines()[-3:]
                raise EngineUnavailable(f"dockerd does not start; {self.log} ends with: {' | '.join(last)}")
            time.sleep(0.1)

    def _command(self) -> list[str]:
        if self.folder is None:
            return ["dockerd", "--log-level=warn"]
        places = {"data-root": "data", "exec-root": "exec", "pidfile": "docker.pid"}
        return [
            *("unshare", "--net", "dockerd", "--log-level=warn", f"--host=unix://{self.socket}"),
            *(f"--{option}={self.folder / name}" for option, name in places.items()),
        ]

    def down(self) -> None:
        """Stop it, and with it every container."""
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            pid = int(self.pid_file.read_text())
            os.kill(pid, signal.SIGTERM)
            deadline = time.monotonic() + STOP_S
            while Path("/proc", str(pid)).exists() and time.monotonic() < deadline:
                time.sleep(0.1)


def install_packages() -> None:
    """Raises EngineUnavailable: this is no Debian, or its archive cannot be reached."""
    if shutil.which("apt-get") is None:
        raise EngineUnavailable("no Docker engine is installed, and no apt-get to install one with")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (["update"], ["install", "-y", "--no-install-recommends", *PACKAGES]):
        done = subprocess.run(
            ["apt-get", "-qq", *arguments], env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise EngineUnavailable(f"apt-get {arguments[0]} fails: {done.stderr.strip()[-500:]}")
