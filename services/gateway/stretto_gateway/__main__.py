"""``python -m stretto_gateway``"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import socket
import tempfile
import time
from pathlib import Path

import structlog
import uvicorn
from stretto_runtime import RuntimeFault
from stretto_runtime.bus import Bus
from stretto_runtime.faults import SettingsFault
from stretto_runtime.health import Server
from stretto_runtime.telemetry import Tracing, configure_logs

from .app import create_app
from .bus import StreamBus
from .service import Gateway
from .settings import GatewaySettings

NAME = "gateway"
RETRY_S = 0.3
log = structlog.get_logger("stretto.gateway")


def token_of(settings: GatewaySettings) -> str:
    """The configured token; else the one in the file, which is made (mode 600) when it is not there.

    Only a configured empty token lets everybody in: an empty file is a SettingsFault.
    """
    if settings.token is not None:
        return settings.token.get_secret_value()
    path = settings.token_file or settings.state_folder / "gateway.token"
    with contextlib.suppress(FileNotFoundError):
        return read_token(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # linked under its name once it is whole: no other replica, and no restart after a crash, sees half a token
    handle, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        os.unlink(draft)
    return read_token(path)


def read_token(path: Path) -> str:
    """Raises SettingsFault for an empty file."""
    token = path.read_text().strip()
    if not token:
        raise SettingsFault(
            f"token file {path} is empty: remove it and start again, and one is made; or write a token into it; or "
            "set STRETTO_GATEWAY_TOKEN= to let everybody in"
        )
    return token


async def serve(settings: GatewaySettings, token: str) -> None:
    """Until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    tracing = Tracing(NAME, settings.state_folder, settings.spans_bytes, settings.spans_per_s)
    bus = await Bus.connect(settings.nats_url, settings.login(NAME), NAME)
    gateway = Gateway(StreamBus(bus, tracing), settings, token, time.time)
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        raise SettingsFault(
            f"cannot listen at {settings.host}:{settings.port}: {error.strerror}; set STRETTO_GATEWAY_HOST to an "
            "address of this machine and STRETTO_GATEWAY_PORT to a free port, or 0 for any"
        ) from error
    port = int(listener.getsockname()[1])
    config = uvicorn.Config(
        create_app(gateway),
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        date_header=False,
        timeout_graceful_shutdown=1,
    )
    server = Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    following = asyncio.create_task(follow(gateway))
    where = settings.state_folder / "run" / f"{NAME}.json"
    write(where, {"service": NAME, "pid": os.getpid(), "host": settings.host, "port": port})
    log.info("listening", host=settings.host, port=port, token=bool(gateway.token))
    stopping = asyncio.create_task(stop.wait())
    done, _ = await asyncio.wait([serving, following, stopping], return_when=asyncio.FIRST_COMPLETED)
    following.cancel()
    server.stop()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(3):
            await serving
    await bus.close()
    tracing.close()
    for task in done - {stopping}:
        task.result()


async def follow(gateway: Gateway) -> None:
    """The streams may not be there yet: somebody provisions them while we start."""
    while True:
        try:
            await gateway.follow()
        except RuntimeFault as fault:
            log.warning("reading the stream again", fault=str(fault))
        await asyncio.sleep(RETRY_S)


def write(path: Path, body: dict[str, object]) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_text(json.dumps(body))
    draft.replace(path)


def main() -> None:
    """Settings from the environment, then serve."""
    try:
        settings = GatewaySettings.load(NAME)
        token = token_of(settings)
    except RuntimeFault as fault:
        raise SystemExit(f"{NAME}: {fault}") from None
    configure_logs(NAME, settings.log_level)
    try:
        asyncio.run(serve(settings, token))
    except SettingsFault as fault:
        raise SystemExit(f"{NAME}: {fault}") from None


if __name__ == "__main__":
    main()
