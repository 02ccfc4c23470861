"""The contract of a service: the class that its author subclasses."""

from __future__ import annotations

from collections.abc import Coroutine
from importlib import import_module
from threading import Thread
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from stretto_core.machine import Tick
from stretto_messages.base import Message
from stretto_wire.contract.registry import EVENTS_KEPT_S, inputs_of, requests_of

from stretto_runtime.inputs import Input, Meta
from stretto_runtime.process.faults import RuntimeFault
from stretto_runtime.settings import Settings

Json = dict[str, Any]
"""A JSON object."""
SettingsT = TypeVar("SettingsT", bound=Settings)
StateT = TypeVar("StateT")
MachineT = TypeVar("MachineT")


class Host(Protocol):
    """The replica that runs a service."""

    async def observe(self, key: str, message: Message, trace: str) -> None:
        """Journal an observation as an input of ``key``."""
        ...

    async def call(self, request: Message, timeout_s: float, trace: str) -> Any:
        """Ask the owner of a job in another service."""
        ...

    async def call_pod(self, pod: str, request: Message, timeout_s: float, trace: str) -> Any:
        """Ask one pod, once."""
        ...

    def trace_of(self, key: str) -> str:
        """The ``traceparent`` of the job's first traced message."""
        ...

    def machine_of(self, key: str) -> Any:
        """The machine of ``key``, or None. Raises PartitionLost."""
        ...

    def reporting_pods(self) -> int:
        """Number of pods that have reported within the last hour."""
        ...

    def server_now(self) -> float:
        """The time by the server's clock."""
        ...

    def wake(self) -> None:
        """Look again which partitions are owned and live."""
        ...


class Service(Generic[SettingsT, StateT, MachineT]):
    """A pure machine per job (and per cluster), made durable. A subclass sets the class attributes and the hooks.

    It names its types: ``class Fitter(Service[FitterSettings, FitState, FitMachine])``.
    """

    name: ClassVar[str]
    version: ClassVar[int]
    settings_type: ClassVar[type[Settings]] = Settings
    inputs: ClassVar[tuple[Input, ...]]
    """Stored messages that the machines consume. Derived from the registry by ``name`` unless stated."""
    rpcs: ClassVar[tuple[type[Message], ...]]
    """Requests that the machines answer. Derived from the registry by ``name`` unless stated."""
    queries: ClassVar[tuple[type[Message], ...]]
    """Requests that decide nothing: ``answer`` answers at once, nothing is journalled or remembered. Derived, too."""
    observations: ClassVar[tuple[type[Message], ...]] = ()
    """Types of ``observe`` that have no channel of their own"""
    tick_s: float | None = None
    """Seconds between ticks of a partition that has keys; None: no ticks"""
    state_types: ClassVar[dict[str, type]] = {}
    forgotten_after_s: ClassVar[float] = EVENTS_KEPT_S + 24 * 3600
    """An ended key without an input for so long is as unknown. It exceeds the age of all inputs in the stream."""
    late_imports: ClassVar[tuple[str, ...]] = ()
    """Modules that decisions import late, since they take longer than the rest of a start. A thread imports them once
    the first input has come: a decision that waits for them keeps all jobs waiting."""
    warning: str = ""
    """An operator reads this at /readyz: how the service runs."""

    @property
    def lacks(self) -> str:
        """The reason why the service is not ready although it runs, for /readyz; empty: nothing."""
        return ""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" not in cls.__dict__:  # an unnamed base has no inputs of its own that its subclasses could inherit
            return
        for attribute, derived in (
            ("inputs", inputs_of(cls.name)),
            ("rpcs", requests_of(cls.name)),
            ("queries", requests_of(cls.name, query=True)),
        ):
            if not hasattr(cls, attribute):
                setattr(cls, attribute, derived)

    def __init__(self, settings: SettingsT) -> None:
        self.settings = settings
        self._host: Host | None = None
        self._importing: Thread | None = None

    # hooks of a service ------------------------------------------------------------------------------------

    def machine(self, key: str, state: StateT | None) -> MachineT:
        """The machine of ``key`` (a job, or ``"_"``), continuing from ``state`` or fresh when that is None."""
        raise NotImplementedError

    def to_event(self, message: Message, meta: Meta) -> object:
        """Return the event of a message for the machine, or None to ignore it: the message itself. Pure."""
        return message

    def to_message(self, key: str, fact: object) -> Message | None:
        """Return the message of a fact or reply of the machine: the fact itself. None publishes nothing. Pure."""
        assert isinstance(fact, Message)
        return fact

    def tick_event(self, machines: int) -> object:
        """The event of a tick, with the number of machines of the partition that get it; 0: not told."""
        return Tick(machines)

    def deciding(self) -> Json:
        """The settings that decisions depend on, in JSON. The stream records them, readable for everybody."""
        own = self.settings_type.model_fields.keys() - Settings.model_fields.keys()
        return self.settings.model_dump(mode="json", include=own)

    def answer(self, query: Message, machine: MachineT | None) -> Message:
        """Answer a query about the machine of its job (None: the job is unknown). A WireError is a refusal."""
        raise NotImplementedError

    def answer_slowly(self, query: Message) -> Coroutine[Any, Any, Message] | None:
        """Return what will answer a query that needs I/O, and no machine; None: ``answer`` does."""
        return None

    async def reconcile(self, key: str, machine: MachineT) -> None:
        """Make what runs follow the state of ``key``, which has changed or was just taken over (level-triggered)."""

    async def released(self, key: str) -> None:
        """Stop background work for ``key`` at once: its partition is no longer ours."""

    async def opened(self) -> None:
        """Reach what the side effects need; the replica takes nothing before this returns."""

    async def closed(self) -> None:
        """Release what ``opened`` reached; the replica owns nothing any more."""

    async def stopped(self) -> None:
        """Clean up after the last replica: this one was stopped, and no other is there to go on."""

    # tools of side effects -----------------------------------------------------------------------

    async def observe(self, key: str, message: Message, trace: str = "") -> None:
        """Journal an observation; it comes back as an input. Returns when it is stored.

        Raises:
            PartitionLost: this replica does not own ``key``; the new owner observes for itself.
        """
        await self._running.observe(key, message, trace)

    async def call(self, request: Message, timeout_s: float = 15.0, trace: str = "") -> Any:
        """Ask the owner of a job in another service, in the job's trace. Raises CallRefused, CallTimeout."""
        return await self._running.call(request, timeout_s, trace or self.trace_of(request.job))

    async def call_pod(self, pod: str, request: Message, timeout_s: float = 5.0, trace: str = "") -> Any:
        """Ask one pod, once. Raises CallRefused, CallTimeout."""
        return await self._running.call_pod(pod, request, timeout_s, trace or self.trace_of(request.job))

    def server_now(self) -> float:
        """The time by the server's clock, seconds since the epoch: for side effects only, never for decisions."""
        return self._running.server_now()

    def reporting_pods(self) -> int:
        """The number of pods that have reported within the last hour; 0 for a service that reads no telemetry."""
        return self._running.reporting_pods()

    def trace_of(self, key: str) -> str:
        """The ``traceparent`` of the job's first traced message, for what a side effect sends."""
        return self._running.trace_of(key)

    def machine_of(self, key: str) -> MachineT | None:
        """The machine of ``key``, to look at; None: there is no such key, or it is forgotten.

        Raises:
            PartitionLost: this replica cannot tell: another one owns ``key``, or its state is damaged.
        """
        machine: MachineT | None = self._running.machine_of(key)
        return machine

    # called by the runtime -------------------------------------------------------------------------------------

    @property
    def has_side_effects(self) -> bool:
        """True if it defines ``reconcile`` or ``released``."""
        return type(self).reconcile is not Service.reconcile or type(self).released is not Service.released

    def import_late(self) -> None:
        """Begin, once, to import ``late_imports``."""
        if self.late_imports and self._importing is None:
            self._importing = Thread(target=lambda: [*map(import_module, self.late_imports)], daemon=True)
            self._importing.start()

    def partition_changed(self) -> None:
        """A partition went live or ended."""
        self._running.wake()

    def attach(self, host: Host) -> None:
        self._host = host

    @property
    def _running(self) -> Host:
        if self._host is None:
            raise RuntimeFault(f"{self.name} is not running; start it with stretto_runtime.run")
        return self._host
