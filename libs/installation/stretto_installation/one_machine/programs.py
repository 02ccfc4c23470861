"""The programs of an installation: command line, environment and log of each process."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import json
import secrets
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from stretto_runtime.process.faults import SettingsFault
from stretto_runtime.settings import Settings
from stretto_wire.contract.registry import FORWARDER, SERVICES

from ..access.keys import Keys, write_private
from ..errors import UnusableOption
from ..server import KEY_VARIABLE, STORE, binary, free_port, server_config
from ..settings import StreamsSettings
from . import redis_server
from .listeners import Listeners
from .nursery import ONE_THREAD, one_thread
from .processes import Command


def _kinds() -> dict[str, type[Settings]]:
    with one_thread():  # processes are forked from this one
        return {
            service: getattr(importlib.import_module(f"stretto_{service}.settings"), f"{service.capitalize()}Settings")
            for service in (*SERVICES, FORWARDER)
        }


@dataclass(frozen=True, slots=True)
class StartOptions:
    """The options of ``stretto up``.

    ``settings``: further STRETTO_* variables of the services. ``forget``: take a store that lacks streams as it is.
    """

    folder: Path
    cpu_cores: float | None = None
    memory_bytes: int | None = None
    gateway_port: int = 0
    settings: dict[str, str] = field(default_factory=dict[str, str])
    forget: bool = False

    def as_argument(self) -> str:
        """Return the options as the command-line argument of the detached supervisor."""
        return json.dumps({**asdict(self), "folder": str(self.folder)})

    def check_settings(self, environ: Mapping[str, str]) -> None:
        """Load the settings of every service, as each will at its start. Raises UnusableOption for the first fault.

        A name in ``settings`` must be a setting of some service; a variable of the environment may be a program's.
        """
        given = {**environ, **self.settings}
        kinds = _kinds()
        known = {name for service, kind in kinds.items() for name in kind.names(service)}
        known |= {name for name in StreamsSettings.names("streams") if name.startswith("STRETTO_STREAMS_")}
        for name in sorted(self.settings.keys() - known):
            near = difflib.get_close_matches(name, known, n=1)
            raise UnusableOption(f"{name} is a setting of no service{f'; did you mean {near[0]}?' if near else ''}")
        try:
            StreamsSettings.of_streams(given)
            for service, kind in kinds.items():
                others = known - kind.names(service).keys()
                kind.load(service, {name: value for name, value in given.items() if name not in others})
        except SettingsFault as fault:
            raise UnusableOption(str(fault)) from fault

    @classmethod
    def from_argument(cls, text: str) -> Self:
        """Read what ``as_argument`` wrote."""
        fields: dict[str, Any] = json.loads(text)
        fields["folder"] = Path(fields["folder"])
        return cls(**fields)


class Programs:
    """Makes the command of every process. ``memory``: folder in shared memory for the images of checkpoints."""

    def __init__(
        self, folder: Path, options: StartOptions, environ: Mapping[str, str], keys: Keys, memory: Path | None
    ) -> None:
        self.folder = folder
        self.memory = memory
        self.keys = keys
        self.nats_url = ""
        self._options = options
        self._environ = environ
        self._redis_url = ""
        self._kinds = _kinds()
        self.listeners = Listeners(folder)

    def nats(self, sync_interval: str, encryption_key: str = "") -> Command:
        """Return the command of nats-server with JetStream; its configuration file is written."""
        port, folder = free_port(), self.folder / "nats"
        self.nats_url = f"nats://127.0.0.1:{port}"
        config = folder / "nats.conf"
        store = str(folder / STORE)
        encrypted = bool(encryption_key)
        text = server_config(store, port, self.keys.trust, sync_interval=sync_interval, encrypted=encrypted)
        write_private(config, text)
        environment = {**self._without_settings(), **({KEY_VARIABLE: encryption_key} if encrypted else {})}
        return self._command("nats", [binary(), "-c", str(config)], environment)

    def redis(self, server: str) -> Command:
        """Return the command of the cache ``server``, with a new password; its configuration file is written."""
        port, password = free_port(), secrets.token_urlsafe(24)
        self._redis_url = f"redis://:{password}@127.0.0.1:{port}/0"
        config = self.folder / "redis" / "redis.conf"
        write_private(config, redis_server.config(config.parent, port, password))
        return self._command("redis", [server, str(config)], self._without_settings())

    def listen(self, services: Iterable[str]) -> None:
        """Open the sockets of all services. Raises InstallationError; then none is open."""
        try:
            for name in services:
                self.listeners.open(name, self._given(name))
        except BaseException:
            self.listeners.close()
            raise

    def service(self, name: str) -> Command:
        """Return the command of a service.

        The address file of its earlier run is removed: readers would take it for this run's.
        """
        environment = {
            **({} if name == "actuator" else ONE_THREAD),  # pods inherit the actuator's
            **self._without_settings(),
            "STRETTO_ALLOWED_SECRETS": "*",  # of the folder secrets, which holds nothing else
            "STRETTO_CHECKPOINTS_REDIS_URL": self._redis_url,
            **({"STRETTO_CHECKPOINTS_MEMORY_FOLDER": str(self.memory)} if self.memory else {}),
            "STRETTO_ACTUATOR_SIGNING_KEY_FILE": str(self.keys.signing_file),
            "STRETTO_ACTUATOR_CONNECTIONS_CREDENTIALS": str(self.keys.counter_file),
            **self._given(name),
            "STRETTO_STATE_FOLDER": str(self.folder),
            "STRETTO_NATS_URL": self.nats_url,
            "STRETTO_NATS_CREDENTIALS": str(self.keys.credentials(name)),
        }
        is_here = self._given("actuator").get("STRETTO_ACTUATOR_BACKEND", "local") == "local"
        environment.setdefault("STRETTO_GATEWAY_CODE_IS_HERE", str(is_here).lower())
        of_checkpoints = environment | self._given("checkpoints")
        for setting in ("STORE_URL", "MEMORY_FOLDER"):  # the actuator opens to each pod its job's folder there
            if value := of_checkpoints.get(f"STRETTO_CHECKPOINTS_{setting}"):
                environment.setdefault(f"STRETTO_ACTUATOR_{setting}", value)
        with contextlib.suppress(FileNotFoundError):
            (self.folder / "run" / f"{name}.json").unlink()
        command = self._command(name, [sys.executable, "-m", f"stretto_{name}"], environment)
        return replace(command, listeners=self.listeners.of(name))

    def _given(self, service: str) -> dict[str, str]:
        """Return the settings that a service is given from outside, by their longer names."""
        others = {name for other, kind in self._kinds.items() if other != service for name in kind.names(other)}
        given = {**self._environ, **self._of_options(), **self._options.settings}
        return self._kinds[service].own(service, given, others)

    def _of_options(self) -> dict[str, str]:
        found = {"STRETTO_GATEWAY_PORT": str(self._options.gateway_port)} if self._options.gateway_port else {}
        for service in ("ARBITER", "PLANNER"):
            if self._options.cpu_cores is not None:
                found[f"STRETTO_{service}_CPU_CORES"] = f"{self._options.cpu_cores:g}"
            if self._options.memory_bytes is not None:
                found[f"STRETTO_{service}_MEMORY_BYTES"] = str(self._options.memory_bytes)
        return found

    def _without_settings(self) -> dict[str, str]:
        return {key: value for key, value in self._environ.items() if not key.startswith("STRETTO_")}

    def _command(self, name: str, argv: list[str], environment: dict[str, str]) -> Command:
        return Command(name, argv, environment, self.folder / "logs" / f"{name}.log")
