"""A cluster of three real servers on loopback, or each in a network namespace of its own that can be cut off."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stretto_bus import BusFault, Client
from stretto_bus.login import Login
from stretto_installation.provision import provision
from stretto_installation.server import binary, free_port, keys_of, server_config
from stretto_installation.settings import StreamsSettings
from stretto_wire.contract.registry import OPERATOR

SIZE = 3
READY_S = 40.0


class Node:
    """One server: its addresses, its store, its process."""

    def __init__(self, number: int, host: str, folder: Path, port: int, cluster_port: int, prefix: Sequence[str]):
        self.number = number
        self.name = f"n{number}"
        self.host = host
        self.folder = folder / self.name
        self.port = port
        self.route = f"{host}:{cluster_port}"
        self.prefix = list(prefix)
        """what runs a command where this server is: ``ip netns exec <name>``, or nothing"""
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://{self.host}:{self.port}"

    @property
    def store(self) -> Path:
        return self.folder / "jetstream"

    def start(self) -> None:
        with (self.folder / "nats.log").open("ab") as log:
            command = [*self.prefix, binary(), "-c", str(self.folder / "nats.conf")]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)
            self.process.wait(60)
        self.process = None


class Cluster:
    """Three servers with streams of three replicas. Has what ``Replicas`` and ``connect`` want of a server."""

    def __init__(self, folder: Path, sync_interval: str = "", network: Network | None = None) -> None:
        self.folder = folder / "cluster"
        self.folder.mkdir(parents=True)
        self.keys = keys_of(self.folder)
        self.sync_interval = sync_interval
        self.nodes: list[Node] = []
        for number in range(SIZE):
            host, prefix = network.place(number) if network else ("127.0.0.1", [])
            ports = (4222, 6222) if network else (free_port(), free_port())
            node = Node(number, host, self.folder, *ports, prefix)
            node.folder.mkdir()
            self.nodes.append(node)
        for node in self.nodes:
            routes = [node.route, *(other.route for other in self.nodes if other is not node)]
            text = server_config(
                str(node.store), node.port, self.keys.trust, node.host, sync_interval, node.name, routes
            )
            (node.folder / "nats.conf").write_text(text)

    @property
    def url(self) -> str:
        return ",".join(node.url for node in self.nodes)

    def login(self, user: str = OPERATOR) -> Login:
        return self.keys.login(user)

    def environment(self, user: str) -> dict[str, str]:
        """Return the environment with which a process of ``user`` connects."""
        return {"STRETTO_NATS_URL": self.url, "STRETTO_NATS_CREDENTIALS": str(self.keys.credentials(user))}

    def start(self) -> None:
        for node in self.nodes:
            node.start()

    def end(self) -> None:
        for node in self.nodes:
            node.kill()

    async def leader(self, client: Client, stream: str = "STRETTO") -> Node:
        """The server that leads ``stream``, and the moment's truth only."""
        async with asyncio.timeout(READY_S):
            while True:
                with contextlib.suppress(BusFault):
                    info = await client.bus.ask(f"STREAM.INFO.{stream}")
                    name = info.get("cluster", {}).get("leader")
                    for node in self.nodes:
                        if node.name == name and node.process is not None:
                            return node
                await asyncio.sleep(0.1)

    async def whole(self, client: Client) -> None:
        """Until every stream has a leader and every replica is current."""
        async with asyncio.timeout(READY_S):
            for stream in ("STRETTO", "KV_STATE"):
                while not await self._current(client, stream):
                    await asyncio.sleep(0.2)

    async def _current(self, client: Client, stream: str) -> bool:
        with contextlib.suppress(BusFault):
            cluster: dict[str, Any] = (await client.bus.ask(f"STREAM.INFO.{stream}")).get("cluster", {})
            followers = cluster.get("replicas", [])
            return bool(cluster.get("leader")) and len(followers) == SIZE - 1 and all(f["current"] for f in followers)
        return False


async def provisioned(cluster: Cluster) -> Client:
    """Connect to a cluster that starts, and make its streams."""
    connected = await Client.connect(cluster.url, cluster.login())
    async with asyncio.timeout(READY_S):
        while True:
            try:
                await provision(connected.bus, StreamsSettings(replicas=SIZE, sync_interval=cluster.sync_interval))
                break
            except BusFault:  # the three have not found each other yet
                await asyncio.sleep(0.2)
    await cluster.whole(connected)
    return connected


class ThreeServers:
    """A cluster with the parts of an ``EmbeddedServer`` that a stage uses: it starts, and is killed, as one."""

    def __init__(self, folder: Path) -> None:
        self.cluster = Cluster(folder)
        self.url, self.keys = self.cluster.url, self.cluster.keys
        self.login, self.environment, self.kill = self.cluster.login, self.cluster.environment, self.cluster.end

    async def start(self) -> None:
        """Start all three, and wait until they lead themselves."""
        self.cluster.start()
        client = await Client.connect(self.url, self.login())
        try:
            async with asyncio.timeout(READY_S):
                while True:
                    with contextlib.suppress(BusFault):
                        await client.bus.ask("INFO")
                        return
                    await asyncio.sleep(0.2)
        finally:
            await client.close()


class Network:
    """A bridge in a namespace, and for the tests and each server a cable to it. Needs root and iproute2.

    A server's namespace is cut off by pulling its cable: packets vanish without any answer, as on a dead line.
    """

    def __init__(self) -> None:
        self._tag = f"{os.getpid() % 100000}"
        self._hub = f"hub{self._tag}"
        self._subnet = f"10.{200 + os.getpid() // 250 % 50}.{os.getpid() % 250}"

    @staticmethod
    def missing() -> str:
        """Why there can be none here; empty if there can."""
        if os.geteuid() != 0:
            return "network namespaces need root"
        if shutil.which("ip") is None:
            return "network namespaces need the command ip (package iproute2)"
        probe = f"probe{os.getpid()}"
        done = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return f"network namespaces are not allowed here: {done.stderr.strip()}"
        subprocess.run(["ip", "netns", "del", probe], check=False)
        return ""

    def up(self) -> None:
        _ip("netns", "add", self._hub)
        _ip("-n", self._hub, "link", "add", "hub", "type", "bridge")
        _ip("-n", self._hub, "link", "set", "hub", "up")
        self._cable(f"t{self._tag}", None, 254)
        for number in range(SIZE):
            name = self._namespace(number)
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
            self._cable(f"c{number}x{self._tag}", name, number + 1)

    def down(self) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("link", "del", f"t{self._tag}")
        for name in (self._hub, *map(self._namespace, range(SIZE))):
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("netns", "del", name)

    def place(self, number: int) -> tuple[str, list[str]]:
        """Return the address of server ``number``, and the command prefix that runs in its network."""
        return f"{self._subnet}.{number + 1}", ["ip", "netns", "exec", self._namespace(number)]

    def cut(self, number: int) -> None:
        _ip("-n", self._hub, "link", "set", f"h{number + 1}", "down")

    def heal(self, number: int) -> None:
        _ip("-n", self._hub, "link", "set", f"h{number + 1}", "up")

    def part(self, number: int) -> None:
        """Cut server ``number`` off from the other servers; its clients still reach it."""
        self._to_others(number, "add")

    def rejoin(self, number: int) -> None:
        self._to_others(number, "del")

    def _to_others(self, number: int, verb: str) -> None:
        for other in range(SIZE):
            if other != number:
                _ip("-n", self._namespace(number), "route", verb, "blackhole", f"{self.place(other)[0]}/32")

    def _namespace(self, number: int) -> str:
        return f"nats{number}x{self._tag}"

    def _cable(self, name: str, namespace: str | None, host: int) -> None:
        """From the hub to ``namespace`` (None: where the tests run)."""
        _ip("link", "add", name, "type", "veth", "peer", "name", f"h{host}", "netns", self._hub)
        _ip("-n", self._hub, "link", "set", f"h{host}", "master", "hub", "up")
        if namespace is not None:
            _ip("link", "set", name, "netns", namespace)
        inside = ["-n", namespace] if namespace is not None else []
        _ip(*inside, "addr", "add", f"{self._subnet}.{host}/24", "dev", name)
        _ip(*inside, "link", "set", name, "up")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
