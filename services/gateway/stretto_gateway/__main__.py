"""The gateway's process: ``python -m stretto_gateway``."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import resource
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog
import uvicorn
from starlette.types import ASGIApp
from stretto_bus.bus import Bus
from stretto_bus.faults import Fault
from stretto_bus.tasks import end
from stretto_runtime.access import tokens
from stretto_runtime.process.connections import Connections, bounded
from stretto_runtime.process.faults import SettingsFault
from stretto_runtime.process.health import Server
from stretto_runtime.process.listeners import BACKLOG, at_path, at_port, handed
from stretto_runtime.program import execute
from stretto_runtime.spans.tracing import Tracing

from .access.audit_log import AuditLog
from .access.buckets import Buckets
from .access.callers import Access, TokenFile, Watched
from .http.app import create_app, health_app
from .service import Gateway
from .settings import GatewaySettings
from .streams.bus import StreamBus
from .streams.storing import try_again_and_again

NAME = "gateway"
LOCAL_SOCKET = "gateway.sock"
RETRY_S = 0.3
QUIET: dict[str, Any] = {
    "log_config": None,
    "access_log": False,
    "lifespan": "off",
    "ws": "none",
    "date_header": False,
    "server_header": False,
    "backlog": BACKLOG,
}
FILES_RESERVED = 300
"""Open files beside connections: to bus, streams and files of spans, and two backlogs that are accepted at once."""
log = structlog.get_logger("stretto.gateway")


def own_token(settings: GatewaySettings) -> Callable[[], str]:
    """Return what gives the gateway's own token: the configured one, else the one that its file has at that moment.

    The file is made (mode 600) if it does not exist. Only a configured empty token accepts everybody, and only on this
    machine. An empty file is a SettingsFault, and so is an empty token at an address that other machines reach.
    """
    if settings.token is not None:
        token = settings.token.get_secret_value()
        if not token and not is_loopback(settings.host):
            raise SettingsFault(
                f"STRETTO_GATEWAY_TOKEN is empty, which makes everybody an admin, and STRETTO_GATEWAY_HOST="
                f"{settings.host} is reached from outside: unset the token, or listen at 127.0.0.1"
            )
        return lambda: token
    path = settings.token_file or settings.state_folder / tokens.OWN_FILE
    tokens.make_own(path)
    return Watched(path, read_token)


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches ``host``."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_token(path: Path) -> str:
    """Read a token. Raises SettingsFault for an empty file."""
    token = path.read_text().strip()
    if not token:
        raise SettingsFault(
            f"token file {path} is empty: remove it and start again to make one; or write a token into it; or "
            "set STRETTO_GATEWAY_TOKEN= to accept everybody"
        )
    return token


async def serve(settings: GatewaySettings, stop: asyncio.Event) -> None:
    """Serve until ``stop``. Settings are checked before the bus is reached: the bus may start later. Raises Fault."""
    access = access_of(settings, own_token(settings))
    if settings.listener is not None:
        listener = handed(settings.listener, "STRETTO_GATEWAY_LISTENER")
    else:
        listener = listening(settings.host, settings.port, "STRETTO_GATEWAY_HOST", "STRETTO_GATEWAY_PORT")
    local = local_listener(settings)
    tracing = Tracing(NAME, settings.state_folder, settings.spans_bytes, settings.spans_per_s)
    stream = StreamBus(tracing)
    gateway = Gateway(stream, settings, time.time)
    audit = AuditLog(stream, time.monotonic, time.time)
    app = create_app(gateway, access, audit, stream.audit_lines)
    allow_files(settings.connections)
    servers = [(Server(configured(app, settings)), listener)]
    if local is not None:
        servers.append((Server(uvicorn.Config(app, **QUIET, **bounds(settings))), local))
    if settings.health_port:  # a second server, in plain HTTP, for monitoring
        where = listening(settings.health_host, settings.health_port, "STRETTO_HEALTH_HOST", "STRETTO_HEALTH_PORT")
        servers.append((Server(uvicorn.Config(health_app(gateway), **QUIET)), where))
    serving = [asyncio.create_task(server.serve(sockets=[socket_])) for server, socket_ in servers]
    looking = (
        follow(gateway, stream, settings),
        gateway.fullness.run(),
        gateway.soundness.run(),
        try_again_and_again(stream),
    )
    following = [asyncio.create_task(each) for each in looking]
    if settings.trainingjobs:
        from .training_jobs import operator  # importing the client of Kubernetes takes a second

        operating = operator.run(gateway.views, gateway.submissions, gateway.changes, audit, settings)
        following.append(asyncio.create_task(operating))
    where_file = settings.state_folder / "run" / f"{NAME}.json"
    scheme = "https" if settings.tls_certificate else "http"
    host, port = listener.getsockname()[:2]
    at = {"scheme": scheme, "host": host, "port": int(port)}
    write(where_file, {"service": NAME, "pid": os.getpid(), **at})
    log.info("listening", **at, token=not access.is_open, oidc=settings.oidc_issuer)
    stopping = asyncio.create_task(stop.wait())
    done, _ = await asyncio.wait([*serving, *following, stopping], return_when=asyncio.FIRST_COMPLETED)
    for task in following:
        await end(task)
    for server, _ in servers:
        server.stop()
    await asyncio.wait(serving, timeout=3)
    await stream.close()
    tracing.close()
    for task in done - {stopping}:
        task.result()


def access_of(settings: GatewaySettings, own: Callable[[], str]) -> Access:
    """Make the authentication. Raises SettingsFault."""
    path = settings.tokens_file or settings.state_folder / tokens.FILE
    issuer = None
    if settings.oidc_issuer is not None:
        from .access.oidc import Issuer  # importing cryptography takes a while

        issuer = Issuer(settings, time.monotonic)
    rates = Buckets(settings.rate_per_s, settings.rate_burst)
    return Access(own, TokenFile(path), issuer, rates, time.monotonic)


def listening(host: str, port: int, host_variable: str, port_variable: str) -> socket.socket:
    """Return a listening socket. Raises SettingsFault."""
    try:
        return at_port(host, port)
    except OSError as error:
        raise SettingsFault(
            f"cannot listen at {host}:{port}: {error.strerror}; set {host_variable} to an address of this machine and "
            f"{port_variable} to a free port, or 0 for any"
        ) from error


def local_listener(settings: GatewaySettings) -> socket.socket | None:
    """Return the socket that commands on this machine use; None: the state folder's file system has none.

    Raises SettingsFault.
    """
    if settings.local_listener is not None:
        return handed(settings.local_listener, "STRETTO_GATEWAY_LOCAL_LISTENER")
    path = settings.state_folder / "run" / LOCAL_SOCKET
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return at_path(path)
    except OSError as error:
        log.warning("commands on this machine have to name the gateway by --url and --token", reason=f"{path}: {error}")
        return None


def bounds(settings: GatewaySettings, proxies: str = "") -> dict[str, Any]:
    """Return the bounds of one listener: strangers have half of its connections, callers with a token the other half.

    Only where there are proxies, whose connections have no bound of their own, does it answer 503: uvicorn counts those
    that are being closed, too, and would answer so to whoever comes during a flood.
    """
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = connections_within(files, settings.connections)
    return {
        "http": bounded(Connections(settings.address_connections, -(-most // 2), proxies), settings.headers_s),
        "timeout_graceful_shutdown": 1,
        "limit_concurrency": most if proxies else None,
        "proxy_headers": bool(proxies),
        "forwarded_allow_ips": proxies,
    }


def connections_within(files: int, wanted: int) -> int:
    """Return the connections of each of two listeners where the process may open so many files; -1: any number."""
    return wanted if files < 0 else max(2, min(wanted, (files - FILES_RESERVED) // 2))


def allow_files(wanted: int) -> None:
    """Let this process open as many files as so many connections of two listeners need, or as many as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * wanted + FILES_RESERVED
    if 0 <= soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed if hard < 0 else min(needed, hard), hard))


def configured(app: ASGIApp, settings: GatewaySettings) -> uvicorn.Config:
    """Return the server's configuration. Raises SettingsFault for an unusable certificate."""
    if (settings.tls_certificate is None) != (settings.tls_key is None):
        raise SettingsFault("STRETTO_GATEWAY_TLS_CERTIFICATE and _TLS_KEY belong together: set both, or none")
    config = uvicorn.Config(
        app,
        **QUIET,
        **bounds(settings, settings.proxies),
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
    )
    try:
        config.load()
    except OSError as error:
        raise SettingsFault(
            f"STRETTO_GATEWAY_TLS_CERTIFICATE={settings.tls_certificate} and _TLS_KEY={settings.tls_key} cannot be "
            f"used: {error.strerror or error}; give readable files in PEM, a certificate and its key"
        ) from error
    return config


async def follow(gateway: Gateway, stream: StreamBus, settings: GatewaySettings) -> None:
    """Follow the stream, also if the bus or its streams do not exist yet. Raises Fault if the bus refuses the login."""
    stream.reached(await Bus.connect(settings.nats_url, settings.login(NAME), NAME))
    while True:
        try:
            await gateway.follow()
        except Fault as fault:
            log.warning("reading the stream again", fault=str(fault))
        await asyncio.sleep(RETRY_S)


def write(path: Path, body: dict[str, object]) -> None:
    """Write ``body`` as JSON to a file: the whole file or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_text(json.dumps(body))
    draft.replace(path)


if __name__ == "__main__":
    execute(NAME, GatewaySettings, serve)
