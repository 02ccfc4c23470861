"""The whole installation on one machine: nats-server, redis-server, the services and the gateway as processes.

Everything is in one folder: ``nats/`` (streams, credentials), ``redis/``, ``run/`` (where things listen; ``up.json``
says what runs), ``logs/``, ``spans/``, ``pods/``, ``checkpoints/``, ``gateway.token``. All of it listens on loopback;
the parameter servers of jobs, which the actuator starts, do not: TensorFlow's gRPC server takes every interface.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stretto_bus.faults import Fault
from stretto_bus.login import Login
from stretto_core.algorithms import REINSTALL
from stretto_runtime import SettingsFault
from stretto_runtime.access.keys import Keys, write_private
from stretto_runtime.access.permissions import FORWARDER, SERVICES
from stretto_runtime.access.provision import make, server_config
from stretto_runtime.process.pid import ProcessIdentity
from stretto_runtime.server import binary, free_port, keys_of, store_of
from stretto_runtime.settings import StreamsSettings

from . import figures, redis_server
from .errors import BadInput, CliError, NotRunning, of_system
from .leftovers import claim_memory, end_leftovers, free_memory, name_processes, read, sweep_memory, write
from .processes import Child, Command, end_all, named_in, pods_of

READY_S = 60.0
POLL_S = 0.04
HOME_S = 1.0
STOP_S = 12.0
LOG_BYTES = 16 << 20
ROOM_BYTES = 256 << 20
"""with less than this free, the bus would refuse the first events of a job"""
NOT_INSTALLED = re.compile(r"^(ModuleNotFound|Import)Error: ", re.MULTILINE)
"""what the installed packages are too old for"""
FAILED = "error: "
"""begins what a supervisor says last when it gives up"""


@dataclass(frozen=True, slots=True)
class Plan:
    """How to bring an installation up. ``settings``: further STRETTO_* variables of the services."""

    folder: Path
    cpu_cores: float | None = None
    memory_bytes: int | None = None
    gateway_port: int = 0
    settings: dict[str, str] = field(default_factory=dict[str, str])


class Installation:
    """Brings the processes up, keeps them alive, takes them down."""

    def __init__(self, plan: Plan, environ: dict[str, str]) -> None:
        self.plan = plan
        self.folder = plan.folder.resolve()
        self.children: dict[str, Child] = {}
        self.ready_s: float | None = None
        self._environ = environ
        try:
            self._streams = StreamsSettings.read({k: v for k, v in environ.items() if k.startswith("STRETTO_STREAMS_")})
        except SettingsFault as fault:
            raise BadInput(str(fault)) from None
        self._state = "starting"
        self._began_s = time.time()
        self._lock: Any = None
        self._keys: Keys
        self._nats_url = self._redis_url = ""
        self._memory: Path | None = None
        forwards = "STRETTO_FORWARDER_ENDPOINTS_FILE" in environ | plan.settings
        self._services = (*SERVICES, FORWARDER) if forwards else SERVICES
        self._gateway_port = plan.gateway_port or free_port()  # fixed, so that clients find it again after a restart

    # up --------------------------------------------------------------------------------------------------------

    async def up(self, progress: Callable[[str], None] = lambda _: None) -> None:
        """Start everything and wait until it is ready. Raises CliError with the last words of what does not start."""
        began = time.monotonic()
        self._claim()
        self._check_port()
        for name in ("run", "logs", "nats", "redis"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self._cut_logs()
        self._memory = claim_memory(self.folder)
        self._keys = keys_of(self.folder / "nats")
        nats_port, redis_port = free_port(), free_port()
        self._nats_url = f"nats://127.0.0.1:{nats_port}"
        await self._start("nats", self._nats(nats_port))
        await self._start("redis", self._redis(redis_port))
        # services wait for the streams, and importing is what takes their time: all at once
        for name in self._services:
            await self._start(name, self._service(name))
        progress("nats-server, redis-server, eight services and the gateway started")
        await self._provision()
        async for name, ready_s in self._waiting(self._services):
            progress(f"{name} ready after {ready_s:.1f} s")
        self.ready_s = time.monotonic() - began
        self._state = "ready"
        self._tell()

    async def down(self) -> None:
        """End everything: services before what they speak to, pods between."""
        self._state = "stopping"
        self._tell()
        await asyncio.gather(*(self.children[n].stop(STOP_S) for n in self._services if n in self.children))
        if self._at_home() or not self.folder.exists():  # else they are another's
            await asyncio.to_thread(end_all, pods_of(self.folder), 3.0)
        for name in ("redis", "nats"):
            if name in self.children:
                await self.children[name].stop(STOP_S)
        if self._at_home():
            (self.folder / "run" / "up.json").unlink(missing_ok=True)
        if self._at_home() or not self.folder.exists():
            free_memory(self.folder)
        if self._lock is not None:
            self._lock.close()

    async def stay(self) -> None:
        """Raises CliError as soon as its folder is gone, or another's: nothing that runs here can keep its state."""
        while self._lock is None or self._at_home():
            await asyncio.sleep(HOME_S)
        raise CliError(f"{self.folder} was removed while an installation ran in it: everything of it has been ended")

    def url_and_token(self) -> tuple[str, str]:
        """Where the gateway listens, and its token."""
        found = json.loads((self.folder / "run" / "gateway.json").read_text())
        file = self.folder / "gateway.token"
        return f"http://{found['host']}:{found['port']}", file.read_text().strip() if file.is_file() else ""

    def operator(self) -> tuple[str, Login]:
        """URL of the bus, and how the operator connects."""
        return self._nats_url, keys_of(self.folder / "nats").login()

    # what runs -------------------------------------------------------------------------------------------------

    def _nats(self, port: int) -> Command:
        folder, sync = self.folder / "nats", self._streams.sync_interval
        config = folder / "nats.conf"
        store = str(store_of(folder, self._keys))
        write_private(config, server_config(store, port, self._keys.trust, sync_interval=sync))
        return self._command("nats", [binary(), "-c", str(config)], self._plain())

    def _redis(self, port: int) -> Command:
        password = secrets.token_urlsafe(24)
        self._redis_url = f"redis://:{password}@127.0.0.1:{port}/0"
        config = self.folder / "redis" / "redis.conf"
        write_private(config, redis_server.config(config.parent, port, password))
        return self._command("redis", [redis_server.binary(), str(config)], self._plain())

    def _service(self, name: str) -> Command:
        # numeric libraries start a thread per core in processes that only ever need one; pods inherit the actuator's
        quiet = {} if name == "actuator" else {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        environment = {
            **quiet,
            **self._plain(),
            **{key: value for key, value in self._environ.items() if key.startswith("STRETTO_")},
            "STRETTO_CHECKPOINTS_REDIS_URL": self._redis_url,
            **({"STRETTO_CHECKPOINTS_MEMORY_FOLDER": str(self._memory)} if self._memory else {}),
            "STRETTO_ACTUATOR_SIGNING_KEY_FILE": str(self._keys.signing_file),
            "STRETTO_GATEWAY_PORT": str(self._gateway_port),
            **self._capacity(),
            **self.plan.settings,
            "STRETTO_STATE_FOLDER": str(self.folder),
            "STRETTO_NATS_URL": self._nats_url,
            "STRETTO_NATS_CREDENTIALS": str(self._keys.credentials(name)),
        }
        with contextlib.suppress(FileNotFoundError):
            (self.folder / "run" / f"{name}.json").unlink()  # of an earlier run: it would be taken for this one's
        return self._command(name, [sys.executable, "-m", f"stretto_{name}"], environment)

    def _capacity(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for service in ("ARBITER", "PLANNER"):
            if self.plan.cpu_cores is not None:
                found[f"STRETTO_{service}_CPU_CORES"] = f"{self.plan.cpu_cores:g}"
            if self.plan.memory_bytes is not None:
                found[f"STRETTO_{service}_MEMORY_BYTES"] = str(self.plan.memory_bytes)
        return found

    def _plain(self) -> dict[str, str]:
        return {key: value for key, value in self._environ.items() if not key.startswith("STRETTO_")}

    def _command(self, name: str, argv: list[str], environment: dict[str, str]) -> Command:
        return Command(name, argv, environment, self.folder / "logs" / f"{name}.log")

    async def _start(self, name: str, command: Command) -> None:
        self.children[name] = Child(command, self._tell)
        try:
            await self.children[name].start()
        except OSError as error:
            raise CliError(f"{name} cannot be started as {command.argv[0]}: {error}; run `make setup` again") from error

    # readiness -------------------------------------------------------------------------------------------------

    async def _provision(self) -> None:
        try:
            async with asyncio.timeout(READY_S):
                await make(self._nats_url, self._keys.login(), self._streams)
        except TimeoutError:
            nats = self.children["nats"]
            raise CliError(f"nats did not answer at {self._nats_url} within {READY_S:.0f} s; {nats.command.log} ends "
                           f"with:\n{nats.last_words()}") from None  # fmt: skip
        except Fault as fault:
            raise CliError(f"the bus refuses to make its streams: {fault}; see {self.folder / 'logs'}") from fault

    async def _waiting(self, names: tuple[str, ...]) -> AsyncIterator[tuple[str, float]]:
        began = time.monotonic()
        left = set(names)
        while left:
            for name in sorted(left):
                child = self.children[name]
                if child.restarts >= 2 or (child.pid is None and child.last_exit is not None):
                    words = child.last_words()
                    remedy = f"\n{REINSTALL}" if NOT_INSTALLED.search(words) else ""
                    raise CliError(f"{name} does not stay up (exit status {child.last_exit}); {child.command.log} ends "
                                   f"with:\n{words}{remedy}")  # fmt: skip
                said = await readiness(self.folder, name, child.pid)
                if said.get("refusal"):  # it waits for a replica of another version, which nobody starts here
                    raise CliError(f"{name}: {said['refusal']}; or begin anew in another --folder")
                if said["ready"]:
                    left.discard(name)
                    yield name, time.monotonic() - began
            if left and time.monotonic() - began > READY_S:
                raise CliError(f"not ready after {READY_S:.0f} s: {', '.join(sorted(left))}; see {self.folder}/logs")
            await asyncio.sleep(POLL_S)

    # files -----------------------------------------------------------------------------------------------------

    def _claim(self) -> None:
        make_folder(self.folder)
        (self.folder / "run").mkdir(exist_ok=True)
        self._lock = (self.folder / "run" / "lock").open("a")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CliError(f"an installation runs in {self.folder} already; `stretto status` shows it, "
                           "`stretto down` ends it") from None  # fmt: skip
        end_leftovers(self.folder)
        sweep_memory()

    def _at_home(self) -> bool:
        """Whether the folder is there, and has not become another's."""
        with contextlib.suppress(FileNotFoundError):
            there = (self.folder / "run" / "lock").stat()
            return self._lock is not None and os.path.samestat(there, os.fstat(self._lock.fileno()))
        return False

    def _check_port(self) -> None:
        """Before anything is started: the gateway would find it out last."""
        port = self.plan.gateway_port
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                raise BadInput(f"--port {port}: {error.strerror}; another one, or 0 for any that is free") from None

    def _cut_logs(self) -> None:
        for log in (self.folder / "logs").glob("*.log"):
            if log.stat().st_size > LOG_BYTES:
                log.replace(log.with_suffix(".log.1"))

    def _tell(self) -> None:
        processes = {
            name: {"pid": c.pid, "birth": c.birth, "restarts": c.restarts, "last_exit": c.last_exit}
            for name, c in self.children.items()
        }
        body = {
            "pid": os.getpid(),
            "birth": ProcessIdentity.of(os.getpid()),
            "state": self._state,
            "began_s": self._began_s,
            "ready_s": self.ready_s,
            "nats_url": self._nats_url,
            "processes": processes,
        }
        if not self._at_home():
            return
        write(self.folder / "run" / "up.json", body)
        if self._memory is not None:
            with contextlib.suppress(OSError):  # it may be full, and is what is asked only when the folder is gone
                name_processes(self._memory, self.folder, processes)


def make_folder(folder: Path) -> None:
    """For the state of an installation. Raises CliError when the disk has no room for it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < ROOM_BYTES:
        free, needed = figures.size(free_bytes), figures.size(ROOM_BYTES)
        raise CliError(f"{folder}: {free} are free on its disk, {needed} are needed to begin with: make room, "
                       "or choose another --folder")  # fmt: skip


async def readiness(folder: Path, name: str, pid: int | None) -> dict[str, Any]:
    """What a service says of itself at /readyz; ``ready`` is always there."""
    unknown = {"ready": False}
    try:
        where = json.loads((folder / "run" / f"{name}.json").read_text())
    except (OSError, ValueError):
        return unknown
    if pid is not None and where["pid"] != pid:
        return unknown
    try:
        async with asyncio.timeout(1.0):
            reader, writer = await asyncio.open_connection(where["host"], where["port"])
            writer.write(b"GET /readyz HTTP/1.0\r\nHost: localhost\r\n\r\n")
            answer = await reader.read()
            writer.close()
    except (OSError, TimeoutError):
        return unknown
    head, _, body = answer.partition(b"\r\n\r\n")
    ready = b" 200 " in head[:20]
    with contextlib.suppress(ValueError):
        found = json.loads(body)
        if isinstance(found, dict):
            return {**found, "ready": ready, "port": where["port"]}
    return {"ready": ready, "port": where["port"]}


def read_state(folder: Path) -> dict[str, Any]:
    """``up.json`` of a living supervisor. Raises NotRunning."""
    state = read(folder / "run" / "up.json")
    if state is None:
        raise NotRunning(f"nothing runs in {folder}: `stretto up --folder {folder}` starts it")
    if named_in(state) is None:
        raise NotRunning(f"the supervisor of {folder} is gone; `stretto down --folder {folder}` ends what it left")
    return state


async def run(plan: Plan, progress: Callable[[str], None], ready: Callable[[Installation], None]) -> None:
    """Up, supervise until SIGTERM or SIGINT, down."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    installation = Installation(plan, dict(os.environ))
    starting = asyncio.create_task(installation.up(progress))
    ending = {asyncio.create_task(stop.wait()), asyncio.create_task(installation.stay())}
    try:
        await asyncio.wait({starting, *ending}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            ready(installation)
            await asyncio.wait(ending, return_when=asyncio.FIRST_COMPLETED)
        for task in ending:
            if task.done():
                task.result()
    finally:
        for task in (starting, *ending):
            task.cancel()
        await asyncio.gather(starting, *ending, return_exceptions=True)
        if installation.children:
            await installation.down()


def main() -> None:
    """``python -m stretto_cli.embedded <plan as JSON>``: the supervisor that ``stretto up --detach`` leaves behind."""
    given: dict[str, Any] = json.loads(sys.argv[1])
    given["folder"] = Path(given["folder"])

    def say(text: str) -> None:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()

    try:
        asyncio.run(run(Plan(**given), say, lambda done: say(f"ready after {done.ready_s:.1f} s")))
    except (CliError, OSError) as error:
        told = error if isinstance(error, CliError) else of_system(error)
        say(f"{FAILED}{told}")
        raise SystemExit(told.status) from None


def as_argument(plan: Plan) -> str:
    """The plan for ``main``."""
    return json.dumps({**asdict(plan), "folder": str(plan.folder)})


if __name__ == "__main__":
    main()
