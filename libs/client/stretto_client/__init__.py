"""A client of Stretto's gateway: ``with stretto_client.connect() as s: job = s.submit("job.yaml"); job.wait()``.

Names are loaded when they are used: an import of this package reads no other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .aio import AsyncClient, AsyncJob, connect_async
    from .answers.records import Decision, Forecast, Pareto
    from .answers.series import Series
    from .client import Client, Job, connect
    from .errors import ClientError, NotReady, NotRunning, PackageMissing, Refused, Unreachable, Unusable
    from .protocol.events import Event

__all__ = [
    "AsyncClient",
    "AsyncJob",
    "Client",
    "ClientError",
    "Decision",
    "Event",
    "Forecast",
    "Job",
    "NotReady",
    "NotRunning",
    "PackageMissing",
    "Pareto",
    "Refused",
    "Series",
    "Unreachable",
    "Unusable",
    "connect",
    "connect_async",
]
_PLACES = {
    "aio": ("AsyncClient", "AsyncJob", "connect_async"),
    "answers.records": ("Decision", "Forecast", "Pareto"),
    "answers.series": ("Series",),
    "client": ("Client", "Job", "connect"),
    "errors": ("ClientError", "NotReady", "NotRunning", "PackageMissing", "Refused", "Unreachable", "Unusable"),
    "protocol.events": ("Event",),
}


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    from importlib import import_module

    for module, names in _PLACES.items():
        if name in names:
            return getattr(import_module(f".{module}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
