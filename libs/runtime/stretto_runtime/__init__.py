"""The runtime makes a pure machine a service: durable state, ownership, telemetry, health."""

from stretto_runtime.inputs import CLUSTER, Input, Meta
from stretto_runtime.process.faults import PartitionLost, RuntimeFault, SettingsFault
from stretto_runtime.runner import Runner, run, serve
from stretto_runtime.service import Json, Service
from stretto_runtime.settings import Settings

__all__ = [
    "CLUSTER",
    "Input",
    "Json",
    "Meta",
    "PartitionLost",
    "Runner",
    "RuntimeFault",
    "Service",
    "Settings",
    "SettingsFault",
    "run",
    "serve",
]
