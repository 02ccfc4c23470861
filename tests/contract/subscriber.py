"""Runs the Node subscriber against a server and checks every event against proto/."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from stretto_wire.contract.inboxes import inbox_of

PROTO = Path(__file__).parents[2] / "proto"
SOURCE = PROTO / "subscribers" / "node"
_FILES = ("package.json", "package-lock.json", "subscriber.mjs")


UNREACHABLE = frozenset(
    {
        "EAI_AGAIN", "ECONNREFUSED", "ECONNRESET", "EHOSTUNREACH", "EIDLETIMEOUT", "ENETUNREACH", "ENOTFOUND",
        "ERR_SOCKET_TIMEOUT", "ETIMEDOUT", "E502", "E503", "E504",
    }
)  # fmt: skip
"""npm's codes for a registry that is not there; every other failure is one of ours"""


class SubscriberUnavailable(Exception):
    """Node or its packages are not available. The text names the missing part and the reason."""


def install() -> Path:
    """The folder of an installed subscriber, made once per version of its files.

    Raises SubscriberUnavailable, and RuntimeError when npm fails for another reason.
    """
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            raise SubscriberUnavailable(f"{program} is not on the PATH")
    digest = hashlib.sha256(b"".join((SOURCE / name).read_bytes() for name in _FILES)).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"stretto-node-subscriber-{os.getuid()}-{digest}"
    if folder.is_dir():
        return folder
    with tempfile.TemporaryDirectory(prefix="stretto-node-", ignore_cleanup_errors=True) as parent:
        fresh = Path(parent) / "subscriber"
        fresh.mkdir()
        for name in _FILES:
            shutil.copy(SOURCE / name, fresh / name)
        _npm_ci(fresh)
        try:
            fresh.rename(folder)
        except OSError:  # another process was first
            if not folder.is_dir():
                raise
    return folder


def _npm_ci(folder: Path) -> None:
    command = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--prefer-offline"]
    command += ["--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--fetch-timeout=20000"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    except subprocess.TimeoutExpired as error:
        raise SubscriberUnavailable("the npm registry did not answer within 120 s") from error
    if done.returncode:
        told = done.stderr.strip()[-1000:]
        code = re.search(r"^npm (?:error|ERR!) code (\S+)", done.stderr, re.MULTILINE)
        if code is not None and code[1] in UNREACHABLE:
            raise SubscriberUnavailable(f"the npm registry cannot be reached: {told}")
        raise RuntimeError(f"npm ci failed: {told}")


def validate_run(
    nats_url: str, credentials: Path, until_sequence: int | None = None, idle_s: float = 2.0
) -> dict[str, Any]:
    """Read and validate every event that the server keeps, as the operator whose ``credentials`` these are.

    Returns ``{events, types: {ce-type: count}, invalid: [{sequence, subject, reason}], invalid_total,
    last_sequence}``. Raises SubscriberUnavailable without Node, RuntimeError when the stream cannot be read.
    """
    folder = install()
    command = ["node", str(folder / "subscriber.mjs"), "--server", nats_url, "--proto", str(PROTO)]
    command += ["--stream", "STRETTO", "--filter", "*.evt.v1.>"]
    command += ["--credentials", str(credentials), "--inbox", inbox_of("operator"), "--idle-s", str(idle_s)]
    if until_sequence is not None:
        command += ["--until-sequence", str(until_sequence)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode not in (0, 1):
        raise RuntimeError(done.stderr.strip())
    summary: dict[str, Any] = json.loads(done.stdout)
    assert (done.returncode == 1) == bool(summary["invalid"])
    return summary
