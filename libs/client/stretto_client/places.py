"""Places of a gateway: as given, as the environment names it, or in the folder of ``stretto up``.

A folder's token goes only over the gateway's socket in that folder, which no job can make: whoever holds the port that
a file names, as a job may after the gateway's death, is sent nothing.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from .errors import NotRunning, Unusable

FOLDER, URL, TOKEN, AUTHORITY = VARIABLES = (
    "STRETTO_STATE_FOLDER",
    "STRETTO_CLI_URL",
    "STRETTO_CLI_TOKEN",
    "STRETTO_CLI_CA",
)
"""Variables that name folder, URL, token, and the certificates to trust; the command reads the same."""
DEFAULT_FOLDER = Path(".stretto")
RUN, SOCKET = "run", "gateway.sock"
"""Folder in the state folder, and the gateway's socket in it."""


@dataclass(frozen=True, slots=True)
class Place:
    """A gateway. ``token`` may be empty; ``authority``: file with the certificates to trust instead of the system's.

    ``socket``: the gateway's Unix socket, where it is reached in place of the URL's host and port.
    """

    url: str
    token: str = ""
    authority: Path | None = None
    socket: Path | None = None


def locate(folder: Path, url: str | None, token: str | None, remedy: str = "connect(url=…, token=…)") -> Place:
    """Return the place of the gateway that ``url`` names, else of the gateway that runs in ``folder``.

    The gateway in the folder is reached over its socket there, unless both ``url`` and ``token`` are given. Another
    gateway does not get the folder's token. ``remedy``: the caller's way to name another gateway. Raises NotRunning if
    neither names a gateway, or the folder has no socket of one; Unusable if its token is a link.
    """
    own = _recorded(folder)
    if url is None and own is None:
        raise NotRunning(
            f"no gateway runs in {folder}: start one with `stretto up --folder {folder}`, or name another: {remedy}"
        )
    if url is not None and (token is not None or not _same(url, own)):
        return Place(url.rstrip("/"), token or "")
    assert own is not None
    return Place(own, _token_in(folder) if token is None else token, socket=_socket_of(folder, remedy))


def place_of(
    url: str | None = None,
    token: str | None = None,
    folder: Path | str | None = None,
    authority: Path | str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Place:
    """Return the place that arguments name, and where they do not, the environment. Raises NotRunning.

    The environment's token is for the environment's gateway if it names one: another one does not get it.
    """
    authority = authority or environ.get(AUTHORITY)
    where = Path(folder or environ.get(FOLDER) or DEFAULT_FOLDER)
    named = environ.get(URL) or None
    if not token and not folder and (not url or not named or _same(url, named)):
        token = environ.get(TOKEN)
    found = locate(where, url or (None if folder else named), token or None)
    return replace(found, authority=Path(authority) if authority else None)


def _recorded(folder: Path) -> str | None:
    """Return the address that ``stretto up`` wrote into its folder."""
    try:
        found = json.loads((folder / RUN / "gateway.json").read_text())
    except (OSError, ValueError):
        return None
    return f"{found.get('scheme', 'http')}://{found['host']}:{found['port']}"


def _socket_of(folder: Path, remedy: str) -> Path:
    """Return the path of the gateway's socket. Raises NotRunning: none is there of the folder's owner, root or us."""
    path = (folder / RUN / SOCKET).absolute()
    try:
        found, owner = path.lstat(), folder.stat().st_uid
    except OSError:
        found, owner = None, -1
    if found is None or not stat.S_ISSOCK(found.st_mode) or found.st_uid not in (owner, 0, os.geteuid()):
        raise NotRunning(
            f"no gateway listens at {path}: end the installation with `stretto down --folder {folder}` and start it "
            f"again with `stretto up --folder {folder}`; or name a gateway: {remedy}"
        )
    return path


def _token_in(folder: Path) -> str:
    """Return the token in the folder; empty: it has none. Raises Unusable for a link.

    A job that may write where the command is called could lay a folder there whose token is a link to the real one.
    """
    file = folder / "gateway.token"
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return ""
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise Unusable(f"{file} is a link: name the folder to which it leads, or give the token itself") from None
        raise
    with open(descriptor) as opened:
        return opened.read().strip() if stat.S_ISREG(os.fstat(descriptor).st_mode) else ""


def _same(one: str, other: str | None) -> bool:
    """Return whether two URLs name the same gateway. Two names of one machine count as two gateways."""
    try:
        return other is not None and _normal(one) == _normal(other)
    except ValueError:  # one is no URL
        return False


def _normal(url: str) -> tuple[str, str, int | None, str]:
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme, parts.hostname or "", port, parts.path.rstrip("/")
