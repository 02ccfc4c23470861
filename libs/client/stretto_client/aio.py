"""The client for asyncio: the names of :mod:`stretto_client.client`, to be awaited."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable
from typing import Literal, Self, overload

from stretto_messages.values import DataPartition
from stretto_wire.rest.answers import (
    CheckpointAnswer,
    ClusterView,
    DataAnswer,
    GatewayStatus,
    JobTrace,
    Me,
    Prediction,
    Preview,
    Requested,
)
from stretto_wire.rest.audits import JobAudit
from stretto_wire.rest.summaries import JobSummary, Order, PastJob
from stretto_wire.rest.views import JobView, Status

from . import calls
from .answers.facts import JobFacts, Until, shown
from .answers.reading import Specification, asked, text_of, with_name
from .answers.series import Series
from .drivers import AsyncDriver
from .protocol import events, logs, operations
from .protocol.events import Event
from .protocol.logs import LOG_LINES


class AsyncClient:
    """A gateway. Use with ``async with``; every method raises ClientError."""

    def __init__(self, driver: AsyncDriver) -> None:
        self._driver = driver

    @property
    def url(self) -> str:
        """Return the gateway's address."""
        return self._driver.place.url

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._driver.close()

    async def submit(self, spec: Specification, name: str | None = None) -> AsyncJob:
        """Submit a job, under another ``name`` if one is given. The same specification again changes nothing."""
        return AsyncJob(self._driver, await self._driver.run(calls.submitted(spec, name)))

    async def preview(self, spec: Specification, name: str | None = None) -> Preview:
        """Return the outcome that a submission would have: findings, costs and the first plan."""
        request = operations.preview(with_name(text_of(spec), name))
        return await self._driver.run(asked(Preview, request))

    async def job(self, name: str) -> AsyncJob:
        """Return a job by its name."""
        return AsyncJob(self._driver, await self._driver.run(calls.view(name)))

    async def jobs(
        self, status: Status | Collection[Status] = (), owner: str = "", q: str = "", order: Order = "submitted"
    ) -> Series[JobSummary]:
        """Return the jobs in one of these states, of this owner, or with this text in name or owner."""
        return await self._driver.run(calls.jobs(status, owner, q, order))

    def events(
        self, job: str | None = None, *, after: int = 0, follow: bool = True, names: Iterable[str] = ()
    ) -> AsyncGenerator[Event]:
        """Yield the events after a sequence, each once and in order, also when the connection breaks in between.

        Without ``follow`` it ends after the last one stored now.
        """
        return self._driver.iterate(events.events(job, after, follow, tuple(names)))

    async def stored_events(
        self, job: str | None = None, *, after: int = 0, names: Iterable[str] = ()
    ) -> Series[Event]:
        """Return the events that are stored now."""
        found: list[Event] = []
        await self._driver.run(calls.stored_events(job, after, names), found.append)
        return Series(Event, found)

    async def cluster(self) -> ClusterView:
        """Return capacity, holders and queue of the cluster."""
        return await self._driver.run(calls.cluster())

    async def me(self) -> Me:
        """Return the caller, as its token says."""
        return await self._driver.run(asked(Me, operations.me()))

    async def status(self) -> GatewayStatus:
        """Return how far the gateway has read the stream."""
        return await self._driver.run(asked(GatewayStatus, operations.status()))

    async def history(self) -> Series[PastJob]:
        """Return the past jobs that warm start reads."""
        return await self._driver.run(calls.history())

    async def audit_log(self) -> bytes:
        """Return the audit log, an entry a line."""
        return await self._driver.run(calls.audit_log())


class AsyncJob(JobFacts):
    """A job of a gateway, as it was last read: :meth:`refresh` and :meth:`wait` read it again."""

    def __init__(self, driver: AsyncDriver, view: JobView) -> None:
        super().__init__(view)
        self._driver = driver
        self._told = 0
        """Sequence of the last event that a wait gave to its reader."""

    async def refresh(self) -> Self:
        """Read the job again."""
        self.view = await self._driver.run(calls.view(self.name))
        return self

    async def wait(
        self,
        timeout_s: float | None = None,
        *,
        until: Until = None,
        on_event: Callable[[Event], None] | None = None,
    ) -> Self:
        """Wait for a condition, without one for the job's end, whichever it is.

        ``on_event`` gets each event of the job once, from its first one or the end of the wait before. Raises NotReady
        after ``timeout_s``, and for a job that ended without the condition.
        """

        def told(event: Event) -> None:
            self._told = event.id
            if on_event is not None:
                on_event(event)

        steps = calls.waited(self.name, timeout_s, until, on_event, self._told)
        self.view = await self._driver.run(steps, told)
        return self

    def events(self, *, after: int = 0, follow: bool = True, names: Iterable[str] = ()) -> AsyncGenerator[Event]:
        """Yield the job's events after a sequence, each once and in order."""
        return self._driver.iterate(events.events(self.name, after, follow, tuple(names)))

    async def stored_events(self, *, after: int = 0, names: Iterable[str] = ()) -> Series[Event]:
        """Return the job's events that are stored now."""
        found: list[Event] = []
        await self._driver.run(calls.stored_events(self.name, after, names), found.append)
        return Series(Event, found)

    @overload
    def logs(self, pod: str, *, lines: int = LOG_LINES, follow: Literal[False] = False) -> Awaitable[list[str]]: ...
    @overload
    def logs(self, pod: str, *, lines: int = LOG_LINES, follow: Literal[True]) -> AsyncGenerator[str]: ...
    def logs(
        self, pod: str, *, lines: int = LOG_LINES, follow: bool = False
    ) -> Awaitable[list[str]] | AsyncGenerator[str]:
        """Return the last lines of a pod; with ``follow``, yield them and those that follow until the pod's end."""
        if follow:
            return self._driver.iterate(logs.follow_log(self.name, pod, lines))
        return self._driver.run(logs.log(self.name, pod, lines))

    async def whatif(
        self,
        *,
        workers: int | None = None,
        ps: int | None = None,
        worker_cpu_cores: float | None = None,
        ps_cpu_cores: float | None = None,
        worker_memory_bytes: int | None = None,
        ps_memory_bytes: int | None = None,
    ) -> Prediction:
        """Predict how the job would go on under another plan, by its own model. Nothing is requested."""
        request = calls.what_if(
            self.name,
            workers=workers,
            ps=ps,
            worker_cpu_cores=worker_cpu_cores,
            ps_cpu_cores=ps_cpu_cores,
            worker_memory_bytes=worker_memory_bytes,
            ps_memory_bytes=ps_memory_bytes,
        )
        return await self._driver.run(asked(Prediction, request))

    async def scale(
        self, *, workers: int | None = None, ps: int | None = None, data: calls.Data | None = None
    ) -> Requested:
        """Request another number of pods within the job's limits. Training goes on meanwhile."""
        return await self._driver.run(asked(Requested, calls.scale(self.name, workers, ps, data)))

    async def checkpoint(self) -> CheckpointAnswer:
        """Take a checkpoint now. While another one is being taken, it is asked for again, for up to a minute."""
        return await self._driver.run(asked(CheckpointAnswer, operations.checkpoint(self.name)))

    async def add_data(self, partitions: Iterable[DataPartition] = (), *, close: bool = False) -> DataAnswer:
        """State the totals of partitions of a growing job, or that no more data will come."""
        return await self._driver.run(asked(DataAnswer, calls.add_data(self.name, partitions, close)))

    async def cancel(self, reason: str = "") -> JobSummary:
        """End the job. May be repeated."""
        return await self._driver.run(asked(JobSummary, operations.cancel(self.name, reason)))

    async def audit(self) -> JobAudit:
        """Compare the ledger's books with the counts of every column of the parameters."""
        return await self._driver.run(asked(JobAudit, operations.audit(self.name)))

    async def trace(self) -> JobTrace:
        """Return the trace of the job."""
        return await self._driver.run(asked(JobTrace, operations.trace(self.name)))

    async def live(self, *, interval_s: float = 1.0) -> Self:
        """Show the job in a notebook and update the same output until the job's end. Raises PackageMissing."""
        update = shown(self)
        async for view in self._driver.iterate(calls.changes(self.name, interval_s)):
            self.view = view
            update(self)
        return self
