"""The images of Stretto on an engine: made by the target that users make them with, run as compose runs them."""

from __future__ import annotations

import json
import subprocess
import tomllib
from pathlib import Path
from typing import Any

from tests.containers.bases import STAND_INS, docker, has
from tests.containers.engine import Engine, EngineUnavailable

ROOT = Path(__file__).parents[2]
VERSION = tomllib.loads((ROOT / "libs" / "wire" / "pyproject.toml").read_text())["project"]["version"]
SERVICES = tuple(sorted(path.parent.name for path in ROOT.glob("services/*/pyproject.toml")))
IMAGES = (*SERVICES, "trainer", "tools")
HARDENED = (
    *("--read-only", "--tmpfs=/tmp", "--tmpfs=/var/lib/stretto:uid=10001,gid=10001,mode=700"),
    *("--cap-drop=ALL", "--security-opt=no-new-privileges"),
)


def name_of(image: str) -> str:
    return f"stretto/{image}:{VERSION}"


def build(engine: Engine) -> None:
    """Build every image from the checkout. Raises EngineUnavailable with the end of the failing step's output."""
    environment = {name: value for name, value in engine.environment.items() if name not in ("MAKEFLAGS", "MFLAGS")}
    done = subprocess.run(
        ["make", "images", f"BASE={STAND_INS['python']}"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise EngineUnavailable(f"make images fails: {(done.stdout + done.stderr)[-3000:]}")


def unfit(engine: Engine) -> str:
    """Return why the engine's images cannot stand for this checkout, and the remedy; empty: they can."""
    for name in map(name_of, IMAGES):
        if not has(engine, name):
            return f"the engine has no {name}: run `make images`"
        if reason := of_another_revision(name, described(engine, "image", name)):
            return reason
    return ""


def of_another_revision(name: str, image: dict[str, Any]) -> str:
    """Say that an image, as the engine describes it, holds other code than this checkout; empty: the same.

    Such an image may not understand this code, which says nothing of either. A checkout without Git knows no revision.
    """
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    here = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    there = (image["Config"]["Labels"] or {}).get("org.opencontainers.image.revision", "unknown")
    return (
        f"the image {name} is of revision {there}, this is {here}: run `make images`" if here not in ("", there) else ""
    )


def described(engine: Engine, kind: str, name: str) -> dict[str, Any]:
    """Return the engine's description of an ``image`` or a ``container``."""
    found: list[dict[str, Any]] = json.loads(docker(engine, kind, "inspect", name))
    return found[0]


def added_bytes(engine: Engine, image: str) -> int:
    """Return the bytes that an image adds to its base."""
    return described(engine, "image", name_of(image))["Size"] - described(engine, "image", STAND_INS["python"])["Size"]
