"""Places of a gateway: as given, as the environment names it, or as ``stretto up`` wrote it into its folder."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from .errors import NotRunning

FOLDER, URL, TOKEN, AUTHORITY = VARIABLES = (
    "STRETTO_STATE_FOLDER",
    "STRETTO_CLI_URL",
    "STRETTO_CLI_TOKEN",
    "STRETTO_CLI_CA",
)
"""Variables that name folder, URL, token, and the certificates to trust; the command reads the same."""
DEFAULT_FOLDER = Path(".stretto")


@dataclass(frozen=True, slots=True)
class Place:
    """A gateway. ``token`` may be empty; ``authority``: file with the certificates to trust instead of the system's."""

    url: str
    token: str = ""
    authority: Path | None = None


def locate(
    folder: Path, url: str | None, token: str | None, remedy: str = "connect(url=…, token=…)"
) -> tuple[str, str]:
    """Return the gateway's URL and token: as given, else as ``stretto up`` wrote them into ``folder``.

    A folder's token is for the gateway in it: another one does not get it. ``remedy``: the caller's way to name another
    gateway. Raises NotRunning if neither names a gateway.
    """
    own = _recorded(folder)
    url = url or own
    if url is None:
        raise NotRunning(
            f"no gateway runs in {folder}: start one with `stretto up --folder {folder}`, or name another: {remedy}"
        )
    if token is None:
        file = folder / "gateway.token"
        token = file.read_text().strip() if _same(url, own) and file.is_file() else ""
    return url.rstrip("/"), token


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
    return Place(*found, Path(authority) if authority else None)


def _recorded(folder: Path) -> str | None:
    """Return the address that ``stretto up`` wrote into its folder."""
    try:
        found = json.loads((folder / "run" / "gateway.json").read_text())
    except (OSError, ValueError):
        return None
    return f"{found.get('scheme', 'http')}://{found['host']}:{found['port']}"


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
