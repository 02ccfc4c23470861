"""``docker compose`` version 2 on an engine: the machine's, or the one of Debian's package, unpacked beside it."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.containers.archive import archive
from tests.containers.bases import STAND_INS, run
from tests.containers.engine import Engine, EngineUnavailable

FILE = Path(__file__).parents[2] / "compose" / "compose.yaml"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stretto-tests"
PACKAGE = "docker-compose"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


def command(engine: Engine, install: bool) -> list[str]:
    """Return the first words of a Compose command line. Raises EngineUnavailable if Compose is missing."""
    asked = subprocess.run(["docker", "compose", "version"], env=engine.environment, capture_output=True, check=False)
    if asked.returncode == 0:
        return ["docker", "compose"]
    found = next(CACHE.glob(f"**/cli-plugins/{PACKAGE}"), None)
    if found is None and install:
        found = unpack(engine)
    if found is None:
        raise EngineUnavailable("no docker compose here; install its plugin")
    return [str(found)]


def unpack(engine: Engine) -> Path:
    """Debian's package of its coming release, without installing it: bookworm's is version 1."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="stretto-compose-") as name:
        folder = Path(name)
        (folder / "sources").write_text(f"deb [signed-by={KEYRING}] {archive()} sid main\n")
        (folder / "lists" / "partial").mkdir(parents=True)
        options = {
            "Dir::Etc::SourceList": folder / "sources",
            "Dir::Etc::SourceParts": "/dev/null",
            "Dir::State::Lists": folder / "lists",
            "Dir::Cache": folder,
            "APT::Sandbox::User": "root",
        }
        apt = ["apt-get", "-qq", *(f"-o{option}={value}" for option, value in options.items())]
        run(engine, *apt, "update")
        run(engine, *apt, "download", PACKAGE, folder=folder)
        [package] = folder.glob(f"{PACKAGE}_*.deb")
        run(engine, "dpkg", "-x", str(package), str(CACHE))
    return next(CACHE.glob(f"**/cli-plugins/{PACKAGE}"))


def _limits() -> Path | None:
    """Return a file of changes for a machine where nobody may have as many open files as the bus is given."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    limits = yaml.safe_load(FILE.read_text())["services"]["nats"]["ulimits"]
    if most == resource.RLIM_INFINITY or most >= limits["nofile"]:
        return None
    CACHE.mkdir(parents=True, exist_ok=True)
    lower = CACHE / f"nofile-{most}.yaml"
    lower.write_text(yaml.safe_dump({"services": {"nats": {"ulimits": {"nofile": most}}}}))
    return lower


class Project:
    """One installation by the compose file, under a name of its own. ``own``: a file of changes to it, or none."""

    def __init__(self, engine: Engine, name: str, settings: Mapping[str, str], own: Path | None = None) -> None:
        self.engine = engine
        self.name = name
        files = [argument for file in (FILE, own, _limits()) if file for argument in ("--file", str(file))]
        self._command = [*command(engine, install=False), *files, "--project-name", name]
        self._environment = {**engine.environment, "REDIS_IMAGE": STAND_INS["redis"], **settings}

    def __call__(self, *arguments: str, limit_s: float = 120.0) -> str:
        """Run a Compose command and return its output. Raises EngineUnavailable with the end of its error."""
        done = subprocess.run(
            [*self._command, *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=limit_s,
        )
        if done.returncode != 0:
            raise EngineUnavailable(f"compose {' '.join(arguments)}: {(done.stdout + done.stderr)[-3000:]}")
        return done.stdout

    def containers(self) -> list[dict[str, Any]]:
        """Return the containers of its services, ended ones included."""
        lines = self("ps", "--all", "--format", "json").splitlines()
        return [json.loads(line) for line in lines if line.strip()]

    def up(self, *arguments: str, limit_s: float = 120.0) -> None:
        self("up", "--detach", "--wait", *arguments, limit_s=limit_s)

    def down(self) -> None:
        """With its volumes."""
        self("--profile", "*", "down", "--volumes", "--remove-orphans", "--timeout", "15")
