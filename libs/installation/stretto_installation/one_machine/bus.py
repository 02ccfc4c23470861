"""The bus of an installation for a command: the one that runs, or its streams alone while it is down."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from stretto_bus import Client
from stretto_bus.login import Login
from stretto_runtime import SettingsFault
from stretto_wire.stores.urls import canonical

from ..errors import InstallationError, NotRunning
from ..known_streams import KnownStreams
from ..server import STORE, EmbeddedServer, keys_of
from ..settings import StreamsSettings
from .state import read_state


def known_streams(folder: Path, store_url: str = "", *, forget: bool = False) -> KnownStreams:
    """Return what the installation in ``folder`` knows of its streams. ``store_url``: the URL of its store, if any."""
    elsewhere = bool(store_url) and not store_url.startswith("file:///")
    return KnownStreams(
        folder / "streams.json", (folder / "pods", store_url if elsewhere else store_of(folder, store_url)), forget
    )


def store_url_of(environ: Mapping[str, str]) -> str:
    """Return the URL of the store of checkpoints as the services read it; "": the installation's own folder."""
    url = environ.get("STRETTO_CHECKPOINTS_STORE_URL") or environ.get("STRETTO_STORE_URL", "")
    with contextlib.suppress(ValueError):  # the services refuse it
        url = canonical(url) if url else ""
    return url


def store_of(folder: Path, store_url: str) -> Path:
    """Return the folder of checkpoints: the one of ``store_url``, if it is on this machine, or the installation's."""
    return Path(store_url.removeprefix("file://")) if store_url.startswith("file:///") else folder / "checkpoints"


@asynccontextmanager
async def connected(folder: Path, name: str) -> AsyncGenerator[Client]:
    """Connect to the running installation in ``folder`` as the operator; if it is down, start its bus alone."""
    try:
        url = read_state(folder)["nats_url"]
    except NotRunning:
        if not (folder / "nats" / STORE).is_dir():
            raise
        async with started_alone(folder, name) as client:
            yield client
        return
    client = await Client.connect(url, keys_of(folder / "nats").login(), name)
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def connected_elsewhere(url: str, credentials: Path | None, ca: Path | None, name: str) -> AsyncGenerator[Client]:
    """Connect to the bus of an installation elsewhere, as the operator whose credentials these are."""
    client = await Client.connect(url, Login("operator", None, credentials, ca), name)
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def started_alone(folder: Path, name: str) -> AsyncGenerator[Client]:
    """Start the bus of ``folder`` without services, which cannot start meanwhile. Raises InstallationError."""
    try:
        key = StreamsSettings.of_streams().encryption_key
    except SettingsFault as fault:
        raise InstallationError(str(fault)) from None
    server = EmbeddedServer(folder / "nats", encryption_key=key)
    (folder / "run").mkdir(exist_ok=True)
    with (folder / "run" / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InstallationError(f"an installation is starting or ending in {folder}; try again") from None
        try:
            await server.start()
            client = await Client.connect(server.url, server.login(), name)
            try:
                yield client
            finally:
                await client.close()
        finally:
            server.stop()
