"""What makes a pure machine a service: bus, state, ownership, telemetry, health."""

from stretto_runtime.client import Client, Event
from stretto_runtime.faults import (
    BusFault,
    CallRefused,
    CallTimeout,
    PartitionLost,
    RuntimeFault,
    SettingsFault,
)
from stretto_runtime.inputs import Input, Meta
from stretto_runtime.provision import provision
from stretto_runtime.server import EmbeddedServer
from stretto_runtime.service import Runner, Service, run, serve
from stretto_runtime.settings import Settings

__all__ = [
    "BusFault",
    "CallRefused",
    "CallTimeout",
    "Client",
    "EmbeddedServer",
    "Event",
    "Input",
    "Meta",
    "PartitionLost",
    "Runner",
    "RuntimeFault",
    "Service",
    "Settings",
    "SettingsFault",
    "provision",
    "run",
    "serve",
]
