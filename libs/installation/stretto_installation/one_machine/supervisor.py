"""The supervisor: brings the processes of an installation up, keeps them alive, takes them down."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from stretto_bus.faults import Fault
from stretto_bus.login import Login
from stretto_bus.reading.damage import UNREAD
from stretto_bus.tasks import end
from stretto_core.algorithms import REINSTALL
from stretto_runtime import SettingsFault
from stretto_runtime.process.pid import ProcessIdentity
from stretto_wire.contract.registry import FORWARDER, SERVICES

from ..access.keys import SUPERVISOR, Keys
from ..errors import ForeignStore, InstallationError, UnusableOption, sentence_of
from ..known_streams import named
from ..provision import make
from ..server import STORE, keys_of
from ..settings import StreamsSettings
from . import redis_server
from .bus import known_streams, store_url_of
from .bus_health import LOOK_S, BusHealth, Reserve
from .leftovers import claim_memory, end_leftovers, free_memory, name_processes, sweep_memory
from .noting import Noting
from .nursery import Nursery
from .processes import Child, Command, Start, end_pods, started
from .programs import Programs, StartOptions
from .state import REFUSED, make_folder, readiness, write_json

READY_S = 60.0
READ_S = 6.0
"""Seconds for which the gateway, once it is ready, may look whether the stored messages can be read."""
POLL_S = 0.04
FOLDER_POLL_S = 1.0
STOP_S = 12.0
PODS_STOP_S = 3.0
LOG_BYTES_MOST = 16 << 20
NOT_INSTALLED = re.compile(r"^(ModuleNotFound|Import)Error: ", re.MULTILINE)
"""In a log: the installed packages are older than the code."""
FAILED = "error: "
"""Prefix of the supervisor's last line when it gives up."""


class Installation:
    """Brings the processes up, keeps them alive, takes them down."""

    def __init__(self, options: StartOptions, environ: dict[str, str]) -> None:
        self.options = options
        self.folder = options.folder.resolve()
        self.children: dict[str, Child] = {}
        self.ready_s: float | None = None
        self._environ = environ
        given = {**environ, **options.settings}
        try:
            self._streams = StreamsSettings.of_streams(given)
            self._encryption_key = self._streams.encryption_key
        except SettingsFault as fault:
            raise UnusableOption(str(fault)) from None
        self._state = "starting"
        self._warnings: list[str] = []
        self._power = ""
        self._known = known_streams(self.folder, store_url_of(given), forget=options.forget)
        self._noting = Noting(self._known, self._streams, self.operator)
        self._began_s = time.time()
        self._lock: Any = None
        self._programs: Programs | None = None
        self._healing: asyncio.Task[None] | None = None
        forwards = bool(given.keys() & {"STRETTO_FORWARDER_ENDPOINTS_FILE", "STRETTO_ENDPOINTS_FILE"})
        self._services = (*SERVICES, FORWARDER) if forwards else SERVICES
        self.nursery = Nursery(self._services, self.folder, environ, self.folder / "logs" / "nursery.log")

    # up --------------------------------------------------------------------------------------------------------

    async def up(self, progress: Callable[[str], None] = lambda _: None) -> None:
        """Start everything and wait until it is ready.

        Raises InstallationError with the last words of a process that does not start.
        """
        began = time.monotonic()
        self._claim_folder()
        for name in ("run", "logs", "nats", "redis"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        rotate_logs(self.folder / "logs")
        (self.folder / "run" / REFUSED).unlink(missing_ok=True)
        keys = keys_of(self.folder / "nats")
        self._programs = programs = Programs(self.folder, self.options, self._environ, keys, claim_memory(self.folder))
        programs.listen(self._services)  # before any process runs, and before any pod could take a port
        self.nursery.start()  # it imports while the bus starts
        await self._start(programs.nats(self._streams.sync_interval, self._encryption_key))
        cache = redis_server.find()
        if cache.warning:
            self._warnings.append(f"redis: {cache.warning}")
        await self._start(programs.redis(cache.path))
        await self._provision(programs.nats_url, keys)  # before any service: a store that is not ours serves nobody
        for name in self._services:  # each waits for its streams itself: start all at once
            await self._start(programs.service(name), self.nursery.fork)
        progress("nats-server, redis-server, eight services and the gateway started")
        self._healing = asyncio.create_task(self._heal(programs.nats_url, keys), name="heal the bus")
        async for name, ready_s in self._until_ready(self._services):
            progress(f"{name} ready after {ready_s:.1f} s")
        self.ready_s = time.monotonic() - began
        self._state = "ready"
        self._write_state()
        self._noting.start()

    async def down(self) -> None:
        """End everything in order: services, then pods, then redis and nats, to which services and pods speak."""
        self._state = "stopping"
        self._note_state()
        if self._healing is not None:
            await end(self._healing)
        await asyncio.gather(*(self.children[n].stop(STOP_S) for n in self._services if n in self.children))
        self.nursery.close()
        if self._programs is not None:
            self._programs.listeners.close()
        if self._owns_folder() or not self.folder.exists():  # otherwise the pods are another installation's
            await asyncio.to_thread(end_pods, self.folder, PODS_STOP_S)
        await self._noting.stop()
        for name in ("redis", "nats"):
            if name in self.children:
                await self.children[name].stop(STOP_S)
        if self._owns_folder():
            await asyncio.to_thread(Reserve(self.folder).give_up)  # the next start looks for room
            await asyncio.to_thread(self._noting.finish, self.folder / "nats" / STORE)
        if self._owns_folder() or not self.folder.exists():
            free_memory(self.folder)
        if self._owns_folder():  # last: who waits for the end may start the next one at once
            (self.folder / "run" / "up.json").unlink(missing_ok=True)
        if self._lock is not None:
            self._lock.close()

    async def watch_folder(self) -> None:
        """Watch the folder of the installation, and the size of its logs, for as long as it is this one's.

        Raises InstallationError once the folder is gone, or another installation's: no process can keep its state then.
        """
        while self._lock is None or self._owns_folder():
            await asyncio.to_thread(rotate_logs, self.folder / "logs")
            await asyncio.sleep(FOLDER_POLL_S)
        raise InstallationError(
            f"{self.folder} was removed while an installation ran in it: all its processes were ended"
        )

    async def _heal(self, url: str, keys: Keys) -> None:
        """Restart the bus when it has stopped to store, once there is room, and keep a note of why it does not."""
        nats = self.children["nats"]
        health = BusHealth(self.folder, self.folder / "nats" / STORE, lambda: nats.pid, nats.restart)
        while True:
            try:
                await health.run(url, keys.login(SUPERVISOR), _say)
            except (Fault, OSError) as error:
                _say(f"whether the bus stores is not known for a while: {error}")
            await asyncio.sleep(LOOK_S)

    def operator(self) -> tuple[str, Login]:
        """Return the URL of the bus and the operator's login."""
        assert self._programs is not None
        return self._programs.nats_url, self._programs.keys.login()

    async def _start(self, command: Command, how: Start = started) -> None:
        child = self.children[command.name] = Child(command, self._note_state, how)
        try:
            await child.start()
        except OSError as error:
            raise InstallationError(
                f"{command.name} cannot be started as {command.argv[0]}: {error}; run `make setup` again"
            ) from error

    # readiness -------------------------------------------------------------------------------------------------

    async def _provision(self, nats_url: str, keys: Keys) -> None:
        """Make the streams; those of tools outside too, so that a tool of this machine can replay events."""
        login, settings = keys.login(), self._streams
        if settings.external_credentials is None:
            settings = settings.model_copy(update={"external_credentials": keys.keeper_folder})
        try:
            async with asyncio.timeout(READY_S):
                made = await make(nats_url, login, settings, self._known)
        except TimeoutError:
            nats = self.children["nats"]
            raise InstallationError(
                f"nats did not answer at {nats_url} within {READY_S:.0f} s; {nats.command.log} ends with:\n"
                f"{nats.last_words()}"
            ) from None
        except Fault as fault:
            raise InstallationError(
                f"the bus refuses to make its streams: {fault}; see {self.folder / 'logs'}"
            ) from fault
        except ForeignStore as refused:
            write_json(self.folder / "run" / REFUSED, {"why": str(refused)})
            raise
        self._power = made.power
        if made.forgotten:
            self._warnings.append(f"forgotten, their names never to be given again: {named(made.forgotten)}")

    async def _until_ready(self, names: tuple[str, ...]) -> AsyncIterator[tuple[str, float]]:
        """Yield each service with the seconds until it was ready.

        Raises InstallationError for a service that does not stay up.
        """
        began = time.monotonic()
        left = set(names)
        lacks: dict[str, str] = {}
        read_until: dict[str, float] = {}
        while left:
            for name in sorted(left):
                child = self.children[name]
                if child.restarts >= 2 or (child.pid is None and child.last_exit is not None):
                    words = child.last_words()
                    remedy = f"\n{REINSTALL}" if NOT_INSTALLED.search(words) else ""
                    raise InstallationError(
                        f"{name} does not stay up (exit status {child.last_exit}); {child.command.log} ends with:\n"
                        f"{words}{remedy}"
                    )
                answer = await readiness(self.folder, name, child.pid)
                if answer.get("refusal"):  # it waits for a replica of another version, which nobody starts here
                    raise InstallationError(f"{name}: {answer['refusal']}; or start anew in another --folder")
                warning = answer.get("warning", "")
                if answer["ready"]:  # on a slow machine late, but in time for the whole start
                    read_until.setdefault(name, min(time.monotonic() + READ_S, began + READY_S - READ_S))
                if answer["ready"] and (UNREAD not in warning or time.monotonic() >= read_until[name]):
                    left.discard(name)
                    if warning:
                        self._warnings.append(f"{name}: {warning}")
                    yield name, time.monotonic() - began
                else:
                    lacks[name] = warning
            if left and time.monotonic() - began > READY_S:
                reasons = "".join(f"\n  {name}: {lacks[name]}" for name in sorted(left) if lacks.get(name))
                raise InstallationError(
                    f"not ready after {READY_S:.0f} s: {', '.join(sorted(left))}; see {self.folder}/logs{reasons}"
                )
            await asyncio.sleep(POLL_S)

    # files -----------------------------------------------------------------------------------------------------

    def _claim_folder(self) -> None:
        make_folder(self.folder)
        (self.folder / "run").mkdir(exist_ok=True)
        self._lock = (self.folder / "run" / "lock").open("a")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InstallationError(
                f"an installation runs in {self.folder} already; `stretto status` shows it, `stretto down` ends it"
            ) from None
        end_leftovers(self.folder)
        sweep_memory()

    def _owns_folder(self) -> bool:
        """Return whether the folder exists and has not become another installation's."""
        with contextlib.suppress(FileNotFoundError):
            there = (self.folder / "run" / "lock").stat()
            return self._lock is not None and os.path.samestat(there, os.fstat(self._lock.fileno()))
        return False

    def _note_state(self) -> None:
        """Write the state if the disk has room: processes are kept alive, and ended, also while it is full."""
        with contextlib.suppress(OSError):
            self._write_state()

    def _write_state(self) -> None:
        if not self._owns_folder():
            return
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
            "nats_url": self._programs.nats_url if self._programs else "",
            "power": self._power,
            "warnings": self._warnings,
            "processes": processes,
        }
        write_json(self.folder / "run" / "up.json", body)
        if self._programs is not None and self._programs.memory is not None:
            with contextlib.suppress(OSError):  # shared memory may be full; the copy there serves only a lost folder
                name_processes(self._programs.memory, self.folder, processes)


def rotate_logs(folder: Path) -> None:
    """Copy what a log of more than ``LOG_BYTES_MOST`` has to a second file, in place of what that had, and empty it.

    A job makes the bus write a line for each message that is refused, hundred thousand a second. The process goes on
    with the file that it has open, to whose end it appends, wherever that is. Lines that it writes between the copy and
    the emptying are in neither file.
    """
    for log in folder.glob("*.log"):
        with contextlib.suppress(OSError):
            if log.stat().st_size > LOG_BYTES_MOST:
                kept = log.with_suffix(".log.1")
                kept.unlink(missing_ok=True)
                try:
                    shutil.copyfile(log, kept)  # of a disk that is full, as much as there is room for
                finally:
                    os.truncate(log, 0)


def run(options: StartOptions, progress: Callable[[str], None], ready: Callable[[Installation], None]) -> None:
    """Bring an installation up, keep it alive until SIGTERM or SIGINT, take it down."""
    installation = Installation(options, dict(os.environ))
    installation.nursery.begin()
    asyncio.run(_run(installation, progress, ready))


async def _run(
    installation: Installation, progress: Callable[[str], None], ready: Callable[[Installation], None]
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    starting = asyncio.create_task(installation.up(progress))
    ending = {asyncio.create_task(stop.wait()), asyncio.create_task(installation.watch_folder())}
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


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # the log lies on a disk that may be full
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def main(options: StartOptions) -> None:
    """Run an installation that nobody watches; exit with the status of the error, if any."""
    try:
        run(options, _say, lambda done: _say(f"ready after {done.ready_s:.1f} s"))
    except InstallationError as error:
        _say(f"{FAILED}{error}")
        raise SystemExit(error.status) from None
    except OSError as error:
        _say(f"{FAILED}{sentence_of(error)}")
        raise SystemExit(InstallationError.status) from None
