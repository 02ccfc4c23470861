"""The state of an installation in its folder: ``run/up.json``, the services' addresses and their readiness."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

import psutil
from stretto_bus.source_port import open_line
from stretto_client import figures
from stretto_client.places import SOCKET
from stretto_runtime.process.listeners import short

from ..errors import InstallationError, NotRunning
from .bus_health import Reserve
from .listeners import GATEWAY
from .processes import named_in, works_in

FREE_BYTES_LEAST = 256 << 20
"""With less than this free, the bus would refuse the first events of a job."""
READINESS_TIMEOUT_S = 1.0
REFUSED = "refused.json"
"""File in ``run/`` that says why the last start refused the store of the bus."""


def make_folder(folder: Path) -> None:
    """Make the folder of an installation. Raises InstallationError when its disk is full."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    free_bytes = shutil.disk_usage(folder).free + Reserve(folder).size_bytes  # of one that was killed
    if free_bytes < FREE_BYTES_LEAST:
        free, needed = figures.size(free_bytes), figures.size(FREE_BYTES_LEAST)
        raise InstallationError(
            f"{folder}: its disk has {free} free, an installation needs {needed} to start: make room, "
            "or choose another --folder"
        )


def write_json(path: Path, body: dict[str, Any]) -> None:
    """Write the whole file or nothing: others read it meanwhile."""
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(body, indent=1))
    draft.replace(path)


def read_json(path: Path) -> dict[str, Any] | None:
    """Read what ``write_json`` wrote; None if there is no such document."""
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(path.read_text())
        return found if isinstance(found, dict) else None
    return None


def read_state(folder: Path) -> dict[str, Any]:
    """Return ``up.json`` of a living supervisor. Raises NotRunning."""
    state = read_json(folder / "run" / "up.json")
    if state is None:
        refused = (read_json(folder / "run" / REFUSED) or {}).get("why")
        why = f"the last start was refused: {refused}" if refused else f"`stretto up --folder {folder}` starts it"
        raise NotRunning(f"nothing runs in {folder}: {why}")
    supervisor_of(state, folder)
    return state


def supervisor_of(state: dict[str, Any], folder: Path) -> psutil.Process:
    """Return the supervisor that ``up.json`` names by process id and birth. Raises NotRunning."""
    found = named_in(state)
    if found is None or not works_in(found.pid, folder):
        raise NotRunning(f"the supervisor of {folder} is gone; `stretto down --folder {folder}` ends what it left")
    return found


def describe(folder: Path) -> dict[str, Any]:
    """Return the addresses and files of a running installation. Raises NotRunning."""
    state = read_state(folder)
    gateway = json.loads((folder / "run" / "gateway.json").read_text())
    return {
        "folder": str(folder.resolve()),
        "pid": state["pid"],
        "ready_s": state["ready_s"],
        "gateway_url": f"{gateway['scheme']}://{gateway['host']}:{gateway['port']}",
        "token_file": str(folder.resolve() / "gateway.token"),
        "nats_url": state["nats_url"],
        "power": state.get("power", ""),
        "warnings": state["warnings"],
    }


async def readiness(folder: Path, name: str, pid: int | None) -> dict[str, Any]:
    """Return the answer at /readyz of the process ``pid`` of a service; the key ``ready`` is always there.

    Nobody else can answer in its place: the supervisor, and each process of the service, hold the socket that it got.
    """
    unknown = {"ready": False}
    where = read_json(folder / "run" / f"{name}.json")
    if where is None or pid is None or where["pid"] != pid:  # of an earlier process
        return unknown
    try:
        async with asyncio.timeout(READINESS_TIMEOUT_S):
            if name == GATEWAY:  # its port may speak TLS only
                with short(folder / "run" / SOCKET) as path:
                    reader, writer = await asyncio.open_unix_connection(path)
            else:
                reader, writer = await open_line(where["host"], where["port"])
            writer.write(b"GET /readyz HTTP/1.0\r\nHost: localhost\r\n\r\n")
            answer = await reader.read()
            writer.close()
    except OSError:
        return unknown
    head, _, body = answer.partition(b"\r\n\r\n")
    ready = b" 200 " in head[:20]
    with contextlib.suppress(ValueError):
        found = json.loads(body)
        if isinstance(found, dict):
            return {**found, "ready": ready, "port": where["port"]}
    lines = body.decode(errors="replace").splitlines()  # the gateway's: what it lacks, then its warnings
    return {"ready": ready, "port": where["port"], "warning": "; ".join(lines[1:] if ready else lines)}
