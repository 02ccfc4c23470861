"""The client for asyncio. Every operation is written here, once: :mod:`stretto_client.client` runs the same ones."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, overload

from stretto_messages.values import DataPartition
from stretto_wire import document_of
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

from .answers.facts import JobFacts, Until, reached, settled, shown
from .answers.reading import read
from .answers.series import Series
from .errors import NotReady
from .places import place_of
from .protocol import events, logs, operations, waiting
from .protocol.connection import GatewayConnection, GatewayRequest
from .protocol.events import Event
from .protocol.exchange import exchange
from .protocol.logs import LOG_LINES
from .protocol.outage import lasting
from .specification import Specification, text_of, with_name

if TYPE_CHECKING:
    from .drivers import AsyncDriver

Data = int | Literal["auto"]
T = TypeVar("T")


def connect_async(
    url: str | None = None,
    token: str | None = None,
    *,
    folder: Path | str | None = None,
    ca: Path | str | None = None,
) -> AsyncClient:
    """Return a client for asyncio; the same otherwise (:func:`connect`)."""
    from .drivers import AsyncDriver  # httpx is half of the time that an import of the client would take

    return AsyncClient(AsyncDriver(place_of(url, token, folder, ca)))


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
        content = await operations.submitted(self._driver, with_name(text_of(spec), name))
        return AsyncJob(self._driver, read(JobView, content))

    async def preview(self, spec: Specification, name: str | None = None) -> Preview:
        """Return the outcome that a submission would have: findings, costs and the first plan."""
        return await _asked(self._driver, Preview, operations.preview(with_name(text_of(spec), name)))

    async def job(self, name: str) -> AsyncJob:
        """Return a job by its name."""
        return AsyncJob(self._driver, await _asked(self._driver, JobView, operations.job(name)))

    async def jobs(
        self, status: Status | Collection[Status] = (), owner: str = "", q: str = "", order: Order = "submitted"
    ) -> Series[JobSummary]:
        """Return the jobs in one of these states, of this owner, or with this text in name or owner."""
        statuses = (status,) if isinstance(status, str) else status
        given = (("owner", owner), ("q", q), ("order", order))
        filters = [*(("status", each) for each in statuses), *(pair for pair in given if pair[1])]
        pages = await operations.jobs(self._driver, filters)
        return Series(JobSummary, (one for page in pages for one in read(list[JobSummary], page)))

    def events(
        self, job: str | None = None, *, after: int = 0, follow: bool = True, names: Iterable[str] = ()
    ) -> AsyncGenerator[Event]:
        """Yield the events after a sequence, each once and in order, also when the connection breaks in between.

        Without ``follow`` it ends after the last one stored now.
        """
        return events.events(self._driver, job, after, follow, tuple(names))

    async def stored_events(
        self, job: str | None = None, *, after: int = 0, names: Iterable[str] = ()
    ) -> Series[Event]:
        """Return the events that are stored now."""
        return await _stored_events(self._driver, job, after, names)

    async def cluster(self) -> ClusterView:
        """Return capacity, holders and queue of the cluster."""
        return read(ClusterView, json.dumps(await operations.cluster(self._driver)))

    async def me(self) -> Me:
        """Return the caller, as its token says."""
        return await _asked(self._driver, Me, operations.me())

    async def status(self) -> GatewayStatus:
        """Return how far the gateway has read the stream."""
        return await _asked(self._driver, GatewayStatus, operations.status())

    async def history(self) -> Series[PastJob]:
        """Return the past jobs that warm start reads."""
        return Series(PastJob, await _asked(self._driver, list[PastJob], operations.history()))

    async def audit_log(self) -> bytes:
        """Return the audit log, an entry a line."""
        return (await exchange(self._driver, operations.audit_log())).content


class AsyncJob(JobFacts):
    """A job of a gateway, as it was last read: :meth:`refresh` and :meth:`wait` read it again."""

    def __init__(self, driver: AsyncDriver, view: JobView) -> None:
        super().__init__(view)
        self._driver = driver
        self._told = 0
        """Sequence of the last event that a wait gave to its reader."""

    async def refresh(self) -> Self:
        """Read the job again."""
        self.view = await _asked(self._driver, JobView, operations.job(self.name))
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

        tell = None if on_event is None else told
        view = await waiting.wait(self._driver, self.name, _view_of, settled(until), timeout_s, tell, self._told)
        if not reached(until)(view):
            because = f": {view.reason}" if view.reason else ""
            raise NotReady(f"{self.name} is {view.status}{because}, and does not reach the awaited state any more")
        self.view = view
        return self

    def events(self, *, after: int = 0, follow: bool = True, names: Iterable[str] = ()) -> AsyncGenerator[Event]:
        """Yield the job's events after a sequence, each once and in order."""
        return events.events(self._driver, self.name, after, follow, tuple(names))

    async def stored_events(self, *, after: int = 0, names: Iterable[str] = ()) -> Series[Event]:
        """Return the job's events that are stored now."""
        return await _stored_events(self._driver, self.name, after, names)

    @overload
    def logs(self, pod: str, *, lines: int = LOG_LINES, follow: Literal[False] = False) -> Awaitable[list[str]]: ...
    @overload
    def logs(self, pod: str, *, lines: int = LOG_LINES, follow: Literal[True]) -> AsyncGenerator[str]: ...
    def logs(
        self, pod: str, *, lines: int = LOG_LINES, follow: bool = False
    ) -> Awaitable[list[str]] | AsyncGenerator[str]:
        """Return the last lines of a pod; with ``follow``, yield them and those that follow until the pod's end."""
        return (logs.follow_log if follow else logs.log)(self._driver, self.name, pod, lines)

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
        changes = _given(
            workers=workers,
            ps=ps,
            worker_cpu_cores=worker_cpu_cores,
            ps_cpu_cores=ps_cpu_cores,
            worker_memory_bytes=worker_memory_bytes,
            ps_memory_bytes=ps_memory_bytes,
        )
        return await _asked(self._driver, Prediction, operations.what_if(self.name, changes))

    async def scale(self, *, workers: int | None = None, ps: int | None = None, data: Data | None = None) -> Requested:
        """Request another number of pods within the job's limits. Training goes on meanwhile."""
        request = operations.scale(self.name, _given(workers=workers, ps=ps, data=data))
        return await _asked(self._driver, Requested, request)

    async def checkpoint(self) -> CheckpointAnswer:
        """Take a checkpoint now. While another one is being taken, it is asked for again, for up to a minute."""
        return await _asked(self._driver, CheckpointAnswer, operations.checkpoint(self.name))

    async def add_data(self, partitions: Iterable[DataPartition] = (), *, close: bool = False) -> DataAnswer:
        """State the totals of partitions of a growing job, or that no more data will come."""
        change = {"partitions": [document_of(each) for each in partitions], "close": close}
        return await _asked(self._driver, DataAnswer, operations.add_data(self.name, change))

    async def cancel(self, reason: str = "") -> JobSummary:
        """End the job for good; may be repeated. What it trained after its last stored checkpoint is lost.

        While the gateway does not answer, or its bus stores nothing, it is tried again for half a minute.
        """
        return read(JobSummary, (await lasting(self._driver, operations.cancel(self.name, reason), met=False)).content)

    async def audit(self) -> JobAudit:
        """Compare the ledger's books with the counts of every column of the parameters."""
        return await _asked(self._driver, JobAudit, operations.audit(self.name))

    async def trace(self) -> JobTrace:
        """Return the trace of the job."""
        return await _asked(self._driver, JobTrace, operations.trace(self.name))

    async def live(self, *, interval_s: float = 1.0) -> Self:
        """Show the job in a notebook and update the same output until the job's end. Raises PackageMissing."""
        update = shown(self)
        changes = waiting.changes(self._driver, self.name, _view_of, settled(None), interval_s)
        async with aclosing(changes) as views:
            async for view in views:
                self.view = view
                update(self)
        return self


async def _asked(connection: GatewayConnection, kind: type[T], request: GatewayRequest) -> T:
    """Send a request; return its answer as a value of this type. Raises ClientError."""
    return read(kind, (await exchange(connection, request)).content)


async def _stored_events(
    connection: GatewayConnection, job: str | None, after: int, names: Iterable[str]
) -> Series[Event]:
    found = events.events(connection, job, after, False, tuple(names))
    return Series(Event, [event async for event in found])


def _view_of(content: bytes) -> JobView:
    return read(JobView, content)


def _given(**fields: Any) -> dict[str, Any]:
    """Return the fields that are stated; a prediction or request leaves the others as in the present plan."""
    return {name: value for name, value in fields.items() if value is not None}
