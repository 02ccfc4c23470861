"""The listening sockets of an installation, which its supervisor opens before any process starts, and keeps.

A service inherits them, after each restart the same: nobody takes its port meanwhile, and whoever connects waits.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Mapping
from pathlib import Path

import psutil
from stretto_client.places import RUN, SOCKET
from stretto_runtime.process.listeners import at_path, at_port

from ..errors import InstallationError, UnusableOption
from ..server import free_port

GATEWAY = "gateway"
LOOPBACK = "127.0.0.1"
PORT_MOST = 65535
HEALTH_LISTENER = "STRETTO_HEALTH_LISTENER"
LISTENER, LOCAL_LISTENER = "STRETTO_GATEWAY_LISTENER", "STRETTO_GATEWAY_LOCAL_LISTENER"
"""Variables by which a service learns the descriptors of its sockets: for health; for the API, at port and path."""


class Listeners:
    """The sockets of each service, by the variable that tells it of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._of: dict[str, dict[str, socket.socket]] = {}

    def open(self, name: str, settings: Mapping[str, str]) -> None:
        """Open the sockets of a service with these settings.

        Raises UnusableOption for an address of the gateway that cannot be used, InstallationError otherwise.
        """
        if name != GATEWAY:
            host = settings.get("STRETTO_HEALTH_HOST") or LOOPBACK
            self._of[name] = {HEALTH_LISTENER: _listening(host, 0, f"STRETTO_HEALTH_HOST={host}")}
            return
        host = settings.get("STRETTO_GATEWAY_HOST") or LOOPBACK
        port = settings.get("STRETTO_GATEWAY_PORT", "0")
        option = f"--port {port}" if host == LOOPBACK else f"--port {port} with STRETTO_GATEWAY_HOST={host}"
        if not (port.isdecimal() and int(port) <= PORT_MOST):
            raise UnusableOption(f"{option}: give a number from 0 to {PORT_MOST}")
        self._of[name] = {LISTENER: _listening(host, int(port), option)}
        path = self._folder / RUN / SOCKET
        try:
            self._of[name][LOCAL_LISTENER] = at_path(path)
        except OSError as error:
            raise InstallationError(
                f"{path} cannot be made: {error.strerror}; choose a --folder on a local file system"
            ) from None

    def of(self, name: str) -> Mapping[str, socket.socket]:
        """Return the sockets of a service."""
        return self._of.get(name, {})

    def close(self) -> None:
        """Close all: from now on connections are refused."""
        for sockets in self._of.values():
            for listener in sockets.values():
                listener.close()
        self._of.clear()


def _listening(host: str, port: int, option: str) -> socket.socket:
    """Listen at an address; port 0: any below those that the kernel gives away, so that it can be had again."""
    try:
        return at_port(host, port or free_port(host))
    except OSError as error:
        taken = f" by {holder}" if error.errno == errno.EADDRINUSE and (holder := _holder_of(port)) else ""
        raise UnusableOption(f"{option}: {error.strerror}{taken}; give another one, or 0 for any free port") from None


def _holder_of(port: int) -> str:
    """Return the process that listens at a port; empty if it cannot be known, as of another user's."""
    with contextlib.suppress(psutil.Error, OSError):
        for each in psutil.net_connections("tcp"):
            if each.status == psutil.CONN_LISTEN and each.laddr and each.laddr.port == port and each.pid:
                return f"process {each.pid} ({psutil.Process(each.pid).name()})"
    return ""
