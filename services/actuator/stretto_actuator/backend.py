"""What the actuator asks of a place where pods run. The local one is ``local.py``.

Every call is idempotent: the actuator repeats it until what it sees is what it wants, also after its own restart.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol


class BackendError(Exception):
    """A backend could not do what it was asked; says what, with which value, and what to do."""


@dataclass(frozen=True, slots=True)
class PodSpec:
    """A pod to run. ``command`` is an argument vector, ``environment`` is complete."""

    job: str
    pod: str
    command: tuple[str, ...]
    environment: dict[str, str]
    cpu_cores: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class PodStatus:
    """A pod that exists or has existed. ``exit_code`` as a shell tells it (128 + signal); None: nobody saw the end.

    ``limits``: how the limits in force are kept here. ``detail``: the last words of its log, when it failed.
    ``adopted``: this backend found it running when it started.
    """

    job: str
    pod: str
    state: Literal["running", "exited"]
    cpu_cores: float
    memory_bytes: int
    limits: tuple[str, ...] = ()
    launched_at_s: float = 0.0
    exit_code: int | None = None
    oom_killed: bool = False
    detail: str = ""
    adopted: bool = False
    pids: tuple[int, ...] = field(default=())


class Backend(Protocol):
    """Pods by name. Never two of one name, and never a name again once it has exited."""

    async def list(self, job: str | None = None) -> list[PodStatus]:
        """Pods that exist, and exited ones until they are forgotten."""
        ...

    async def launch(self, spec: PodSpec) -> None:
        """Start a pod unless one of this name exists or existed. Raises BackendError."""
        ...

    async def stop(self, job: str, pod: str, grace_s: float) -> None:
        """Ask a pod to end; asked again after ``grace_s``, end it."""
        ...

    async def kill(self, job: str, pod: str) -> None:
        """End a pod at once."""
        ...

    async def resize(self, job: str, pod: str, cpu_cores: float, memory_bytes: int) -> tuple[float, int]:
        """Change the limits of a running pod; returns those now in force (memory in use is never taken away)."""
        ...

    async def forget(self, job: str, pod: str) -> None:
        """Its end is known: clear what is left of a pod that has exited. Its log stays."""
        ...
