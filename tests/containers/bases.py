"""Stand-ins for the public base images, for where nothing can be pulled: made from Debian's archive, named alike.

What the host trusts (its CA bundle) goes into the stand-ins; Stretto's own Dockerfile knows nothing of it.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from stretto_installation.server import binary

from tests.containers.archive import RELEASE, archive
from tests.containers.engine import Engine, EngineUnavailable, install_packages

RECIPES = Path(__file__).parent / "stand_ins"
DEBIAN = "debian:bookworm-slim"
CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
STAND_INS = {"python": "python:3.11-slim-bookworm", "nats": "nats:2.15.1-alpine", "redis": "redis:7-alpine"}
"""Recipe -> the public name that it stands in for"""


def make(engine: Engine) -> list[str]:
    """Make the images that the engine lacks; return their names. Raises EngineUnavailable."""
    missing = {recipe: name for recipe, name in STAND_INS.items() if not has(engine, name)}
    if missing and not has(engine, DEBIAN):
        bootstrap(engine)
    with tempfile.TemporaryDirectory(prefix="stretto-bases-") as folder:
        context = Path(folder)
        shutil.copy(CA_BUNDLE, context / "ca-certificates.crt")
        shutil.copy(binary(), context / "nats-server")
        for recipe, name in missing.items():
            docker(engine, "build", "-q", "-t", name, "-f", str(RECIPES / f"{recipe}.Dockerfile"), folder)
    return list(missing.values())


def has(engine: Engine, image: str) -> bool:
    asked = ["docker", "image", "inspect", image]
    return subprocess.run(asked, env=engine.environment, capture_output=True, check=False).returncode == 0


def bootstrap(engine: Engine) -> None:
    """Debian's smallest system, some 70 seconds."""
    if shutil.which("debootstrap") is None:
        install_packages()
    with tempfile.TemporaryDirectory(prefix="stretto-debian-") as folder:
        run(engine, "debootstrap", "--variant=minbase", "--include=ca-certificates", RELEASE, folder, archive())
        shutil.rmtree(Path(folder, "var/cache/apt/archives"))
        with subprocess.Popen(["tar", "-C", folder, "-c", "."], stdout=subprocess.PIPE) as tar:
            imported = ["docker", "import", "-c", 'CMD ["bash"]', "-", DEBIAN]
            done = subprocess.run(imported, stdin=tar.stdout, env=engine.environment, capture_output=True, check=False)
    if done.returncode != 0:
        raise EngineUnavailable(f"docker import: {done.stderr.decode()[-500:]}")


def docker(engine: Engine, *arguments: str) -> str:
    """Run docker and return its output. Raises EngineUnavailable with its error."""
    return run(engine, "docker", *arguments)


def run(engine: Engine, *command: str, folder: Path | None = None) -> str:
    done = subprocess.run(command, env=engine.environment, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise EngineUnavailable(f"{' '.join(command[:2])}: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout.strip()
