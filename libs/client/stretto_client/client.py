"""The blocking client. It works inside a running event loop, as in a notebook, because it uses none."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable
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
from .drivers import Driver
from .protocol import events, logs, operations
from .protocol.events import Event
from .protocol.logs import LOG_LINES


class Client:
    """A gateway. Use as a context manager; every method raises ClientError."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    @property
    def url(self) -> str:
        """Return the gateway's address."""
        return self._driver.place.url

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._driver.close()

    def submit(self, spec: Specification, name: str | None = None) -> Job:
        """Submit a job, under another ``name`` if one is given. The same specification again changes nothing."""
        return Job(self._driver, self._driver.run(calls.submitted(spec, name)))

    def preview(self, spec: Specification, name: str | None = None) -> Preview:
        """Return the outcome that a submission would have: findings, costs and the first plan."""
        request = operations.preview(with_name(text_of(spec), name))
        return self._driver.run(asked(Preview, request))

    def job(self, name: str) -> Job:
        """Return a job by its name."""
        return Job(self._driver, self._driver.run(calls.view(name)))

    def jobs(
        self, status: Status | Collection[Status] = (), owner: str = "", q: str = "", order: Order = "submitted"
    ) -> Series[JobSummary]:
        """Return the jobs in one of these states, of this owner, or with this text in name or owner."""
        return self._driver.run(calls.jobs(status, owner, q, order))

    def events(
        self, job: str | None = None, *, after: int = 0, follow: bool = True, names: Iterable[str] = ()
    ) -> Generator[Event]:
        """Yield the events after a sequence, each once and in order, also when the connection breaks in between.

        Without ``follow`` it ends after the last one stored now.
        """
        return self._driver.iterate(events.events(job, after, follow, tuple(names)))

    def stored_events(self, job: str | None = None, *, after: int = 0, names: Iterable[str] = ()) -> Series[Event]:
        """Return the events that are stored now."""
        found: list[Event] = []
        self._driver.run(calls.stored_events(job, after, names), found.append)
        return Series(Event, found)

    def cluster(self) -> ClusterView:
        """Return capacity, holders and queue of the cluster."""
        return self._driver.run(calls.cluster())

    def me(self) -> Me:
        """Return the caller, as its token says."""
        return self._driver.run(asked(Me, operations.me()))

    def status(self) -> GatewayStatus:
        """Return how far the gateway has read the stream."""
        return self._driver.run(asked(GatewayStatus, operations.status()))

    def history(self) -> Series[PastJob]:
        """Return the past jobs that warm start reads."""
        return self._driver.run(calls.history())

    def audit_log(self) -> bytes:
        """Return the audit log, an entry a line."""
        return self._driver.run(calls.audit_log())


class Job(JobFacts):
    """A job of a gateway, as it was last read: :meth:`refresh` and :meth:`wait` read it again."""

    def __init__(self, driver: Driver, view: JobView) -> None:
        super().__init__(view)
        self._driver = driver
        self._told = 0
        """Sequence of the last event that a wait gave to its reader."""

    def refresh(self) -> Self:
        """Read the job again."""
        self.view = self._driver.run(calls.view(self.name))
        return self

    def wait(
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
        self.view = self._driver.run(steps, told)
        return self

    def events(self, *, after: int = 0, follow: bool = True, names: Iterable[str] = ()) -> Generator[Event]:
        """Yield the job's events after a sequence, each once and in order."""
        return self._driver.iterate(events.events(self.name, after, follow, tuple(names)))

    def stored_events(self, *, after: int = 0, names: Iterable[str] = ()) -> Series[Event]:
        """Return the job's events that are stored now."""
        found: list[Event] = []
        self._driver.run(calls.stored_events(self.name, after, names), found.append)
        return Series(Event, found)

    @overload
    def logs(self, pod: str, *, lines: int = LOG_LINES, follow: Literal[False] = False) -> list[str]: ...
    @overload
    def logs(self, pod: str, *, lines: int = LOG_LINES, follow: Literal[True]) -> Generator[str]: ...
    def logs(self, pod: str, *, lines: int = LOG_LINES, follow: bool = False) -> list[str] | Generator[str]:
        """Return the last lines of a pod; with ``follow``, yield them and those that follow until the pod's end."""
        if follow:
            return self._driver.iterate(logs.follow_log(self.name, pod, lines))
        return self._driver.run(logs.log(self.name, pod, lines))

    def whatif(
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
        return self._driver.run(asked(Prediction, request))

    def scale(self, *, workers: int | None = None, ps: int | None = None, data: calls.Data | None = None) -> Requested:
        """Request another number of pods within the job's limits. Training goes on meanwhile."""
        return self._driver.run(asked(Requested, calls.scale(self.name, workers, ps, data)))

    def checkpoint(self) -> CheckpointAnswer:
        """Take a checkpoint now. While another one is being taken, it is asked for again, for up to a minute."""
        return self._driver.run(asked(CheckpointAnswer, operations.checkpoint(self.name)))

    def add_data(self, partitions: Iterable[DataPartition] = (), *, close: bool = False) -> DataAnswer:
        """State the totals of partitions of a growing job, or that no more data will come."""
        return self._driver.run(asked(DataAnswer, calls.add_data(self.name, partitions, close)))

    def cancel(self, reason: str = "") -> JobSummary:
        """End the job. May be repeated."""
        return self._driver.run(asked(JobSummary, operations.cancel(self.name, reason)))

    def audit(self) -> JobAudit:
        """Compare the ledger's books with the counts of every column of the parameters."""
        return self._driver.run(asked(JobAudit, operations.audit(self.name)))

    def trace(self) -> JobTrace:
        """Return the trace of the job."""
        return self._driver.run(asked(JobTrace, operations.trace(self.name)))

    def live(self, *, interval_s: float = 1.0) -> Self:
        """Show the job in a notebook and update the same output until the job's end. Raises PackageMissing."""
        update = shown(self)
        for view in self._driver.iterate(calls.changes(self.name, interval_s)):
            self.view = view
            update(self)
        return self
