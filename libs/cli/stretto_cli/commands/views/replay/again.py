"""Finds the services of an installation, and lets the runtime decide again."""

from __future__ import annotations

import importlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stretto_bus import BusFault
from stretto_bus.faults import Fault
from stretto_bus.login import redacted
from stretto_installation.one_machine.bus import connected, connected_elsewhere
from stretto_runtime import Service, SettingsFault
from stretto_runtime.process.faults import VersionRefusal
from stretto_runtime.process.telemetry import configure_logs
from stretto_runtime.replay import Replayed, replay
from stretto_runtime.streams import BusStreams, Streams
from stretto_wire.contract.registry import SERVICES

from ....errors import BadInput, CliError
from ....options import connect
from .gateway_streams import GatewayStreams

MACHINES = tuple(name for name in SERVICES if name != "gateway")
"""Services that decide by machines; the gateway only shows what they decided."""


def service_named(name: str, folder: Path) -> Service:
    """Make the service of that name with its defaults. Raises BadInput, or CliError if it is not installed."""
    if name not in MACHINES:
        raise BadInput(f"--service {name}: give one of {', '.join(MACHINES)}")
    try:
        module = importlib.import_module(f"stretto_{name}.service")  # by name, as `up` starts them
    except ImportError as error:
        raise CliError(f"stretto-{name} cannot be loaded ({error}); install stretto-cli[embedded]") from error
    (found,) = (
        kind
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Service) and kind.__module__ == module.__name__
    )
    return found(found.settings_type.load(name, {"STRETTO_STATE_FOLDER": str(folder)}))


def overrides(service: Service, settings: Sequence[str]) -> dict[str, Any]:
    """Select this service's settings among ``STRETTO_<SERVICE>_<FIELD>=value``. Raises BadInput."""
    given: dict[str, str] = {}
    for entry in settings:
        name, equals, value = entry.partition("=")
        if not equals or not name.startswith(tuple(f"STRETTO_{one.upper()}_" for one in MACHINES)):
            raise BadInput(f"--set {entry}: give NAME=VALUE with a name such as STRETTO_ARBITER_RHO")
        if name.startswith(f"STRETTO_{service.name.upper()}_"):
            given[name] = value
    try:
        found = service.settings_type.load(service.name, given)
    except SettingsFault as fault:
        raise BadInput(f"--set: {fault}") from fault
    return {field: getattr(found, field) for field in found.model_fields_set}


@dataclass(frozen=True, slots=True)
class BusElsewhere:
    """The bus of an installation on other machines, with an operator's credentials and the authority of its servers."""

    url: str
    credentials: Path | None = None
    ca: Path | None = None


@dataclass(frozen=True, slots=True)
class GatewayElsewhere:
    """The gateway of an installation on other machines, with an admin's token."""

    url: str
    token: str | None = None


Elsewhere = BusElsewhere | GatewayElsewhere


@asynccontextmanager
async def streams_of(folder: Path, job: str, elsewhere: Elsewhere | None) -> AsyncGenerator[Streams]:
    """Open the streams of the installation in ``folder``, or of the installation elsewhere.

    Raises BusFault, CliError, InstallationError.
    """
    if isinstance(elsewhere, GatewayElsewhere):
        with connect(folder, elsewhere.url, elsewhere.token) as gateway:
            yield GatewayStreams(gateway, job)
        return
    if elsewhere is None:
        connecting = connected(folder, "replay")
    else:
        connecting = connected_elsewhere(elsewhere.url, elsewhere.credentials, elsewhere.ca, "replay")
    async with connecting as client:
        yield BusStreams(client.bus)


async def decide_again(
    folder: Path, job: str, services: Sequence[str], settings: Sequence[str], elsewhere: Elsewhere | None = None
) -> list[Replayed]:
    """Repeat every decision of ``services`` about ``job``, of the installation in ``folder`` unless one is elsewhere.

    Raises:
        BadInput: no such service, setting or job.
        CliError: the stream cannot be read, or this code cannot continue from a snapshot.
        InstallationError: nothing was ever started in ``folder``, or its bus does not start.
    """
    configure_logs("replay", "critical")  # machines refuse again what they refused then: no news
    chosen = [service_named(name, folder) for name in services or MACHINES]
    changed = {service.name: overrides(service, settings) for service in chosen}
    if missed := [entry for entry in settings if not any(_concerns(entry, service) for service in chosen)]:
        raise BadInput(f"--set {missed[0]}: this service is not replayed; add it with --service")
    try:
        async with streams_of(folder, job, elsewhere) as streams:
            return [await replay(streams, service, job, changed[service.name]) for service in chosen]
    except BusFault as fault:
        where = redacted(elsewhere.url) if elsewhere else folder
        raise CliError(f"the stream of {where} cannot be read: {fault}") from fault
    except VersionRefusal as fault:
        raise CliError(str(fault)) from fault
    except Fault as fault:
        raise BadInput(str(fault)) from fault


def _concerns(entry: str, service: Service) -> bool:
    return entry.startswith(f"STRETTO_{service.name.upper()}_")
