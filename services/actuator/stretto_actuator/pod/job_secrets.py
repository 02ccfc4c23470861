"""Secrets that jobs name in ``environment_from``, as files of this machine: lines ``KEY=value``, of mode 600.

Their values go into one file of the pod, which its program reads into its environment: neither ``docker inspect`` nor
the environment of a process at its start shows them. No text of an error holds a value.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path

from ..backend import BackendError

SIZE_MAX_BYTES = 256 << 10
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")


def content(folder: Path, names: Iterable[str]) -> bytes:
    """Return the file of a pod with the variables of all these secrets; of two of a name the later one.

    Raises BackendError: a secret is not there, can be read by others, or is malformed.
    """
    variables: dict[str, str] = {}
    for name in names:
        variables |= _variables(folder / name, _read(folder / name))
    return json.dumps(variables).encode()


def _read(file: Path) -> str:
    try:
        # a pipe would be waited for otherwise
        opened = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        remedy = "put a file of mode 600 with lines KEY=value there"
        raise BackendError(f"environment_from: {file} cannot be read ({error.strerror}); {remedy}") from error
    with os.fdopen(opened, "rb") as source:
        status = os.fstat(opened)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & _OTHERS:
            raise BackendError(
                f"environment_from: {file} has mode {stat.S_IMODE(status.st_mode):o} and owner {status.st_uid}; it has "
                f"to be a plain file that only user {os.geteuid()} can read: chmod 600 {file}"
            )
        raw = source.read(SIZE_MAX_BYTES + 1)
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise BackendError(f"environment_from: {file} is not UTF-8; save it as UTF-8") from None  # it shows the bytes
    if len(raw) > SIZE_MAX_BYTES:
        raise BackendError(f"environment_from: {file} has more than {SIZE_MAX_BYTES} bytes; keep files elsewhere")
    return text


def _variables(file: Path, text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, is_set, value = line.partition("=")
        if not is_set or not _NAME.fullmatch(name) or name.startswith("STRETTO_"):
            raise BackendError(
                f"environment_from: line {number} of {file} is not KEY=value, with a name that is none of STRETTO_…; "
                "correct it"
            )
        found[name] = value
    return found
