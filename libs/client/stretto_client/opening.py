"""Opening a client: ``with connect() as s``, or ``async with connect_async() as s``."""

from __future__ import annotations

from pathlib import Path

from .aio import AsyncClient
from .client import Client
from .drivers import AsyncDriver, Driver
from .places import place_of


def connect(
    url: str | None = None,
    token: str | None = None,
    *,
    folder: Path | str | None = None,
    ca: Path | str | None = None,
) -> Client:
    """Return a client of a gateway. It connects with the first request.

    A gateway that no argument names is that of the variables STRETTO_CLI_URL and STRETTO_CLI_TOKEN, else that of
    ``stretto up`` in STRETTO_STATE_FOLDER or ``.stretto``. ``ca``: file with the certificates to trust instead of the
    system's (STRETTO_CLI_CA). Raises NotRunning, Unusable.
    """
    return Client(Driver(place_of(url, token, folder, ca)))


def connect_async(
    url: str | None = None,
    token: str | None = None,
    *,
    folder: Path | str | None = None,
    ca: Path | str | None = None,
) -> AsyncClient:
    """Return a client for asyncio; the same otherwise (:func:`connect`)."""
    return AsyncClient(AsyncDriver(place_of(url, token, folder, ca)))
