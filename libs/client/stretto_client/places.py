"""Places of a gateway: as given, as the environment names it, or as ``stretto up`` wrote it into its folder."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

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


def locate(folder: Path, url: str | None, token: str | None) -> tuple[str, str]:
    """Return the gateway's URL and token: as given, else as ``stretto up`` wrote them into ``folder``.

    Raises NotRunning if neither names a gateway.
    """
    if url is None:
        where = folder / "run" / "gateway.json"
        try:
            found = json.loads(where.read_text())
        except (OSError, ValueError):
            raise NotRunning(
                f"no gateway runs in {folder}: start one with `stretto up --folder {folder}`, "
                "or name another with --url"
            ) from None
        url = f"{found.get('scheme', 'http')}://{found['host']}:{found['port']}"
    if token is None:
        file = folder / "gateway.token"
        token = file.read_text().strip() if file.is_file() else ""
    return url.rstrip("/"), token


def place_of(
    url: str | None = None,
    token: str | None = None,
    folder: Path | str | None = None,
    authority: Path | str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Place:
    """Return the place that arguments name, and where they do not, the environment. Raises NotRunning."""
    authority = authority or environ.get(AUTHORITY)
    where = Path(folder or environ.get(FOLDER) or DEFAULT_FOLDER)
    url = url or (None if folder else environ.get(URL))
    found = locate(where, url, token or (None if folder else environ.get(TOKEN)))
    return Place(*found, Path(authority) if authority else None)
