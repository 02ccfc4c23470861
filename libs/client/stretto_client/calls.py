"""Typed operations of the gateway: what both clients do, without I/O."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable
from typing import Literal

from stretto_messages.values import DataPartition
from stretto_wire import document_of
from stretto_wire.rest.answers import ClusterView
from stretto_wire.rest.summaries import JobSummary, Order, PastJob
from stretto_wire.rest.views import JobView, Status

from .answers.facts import Until, reached, settled
from .answers.reading import Specification, asked, read, text_of, with_name
from .answers.series import Series
from .errors import NotReady
from .protocol import events as event_streams
from .protocol import operations, waiting
from .protocol.connection import Request, Steps
from .protocol.events import Event
from .protocol.exchange import exchange

Data = int | Literal["auto"]


def submitted(spec: Specification, name: str | None) -> Steps[JobView]:
    """Submit a job; return its view."""
    content = yield from operations.submitted(with_name(text_of(spec), name))
    return read(JobView, content)


def view(name: str) -> Steps[JobView]:
    """Return everything known about a job."""
    return asked(JobView, operations.job(name))


def jobs(status: Status | Collection[Status], owner: str, q: str, order: Order) -> Steps[Series[JobSummary]]:
    """Return the jobs that fit, of all pages."""
    statuses = (status,) if isinstance(status, str) else status
    given = (("owner", owner), ("q", q), ("order", order))
    filters = [*(("status", each) for each in statuses), *(pair for pair in given if pair[1])]
    pages = yield from operations.jobs(filters)
    return Series(JobSummary, (one for page in pages for one in read(list[JobSummary], page)))


def history() -> Steps[Series[PastJob]]:
    """Return the past jobs that warm start reads, oldest first."""
    found = yield from asked(list[PastJob], operations.history())
    return Series(PastJob, found)


def cluster() -> Steps[ClusterView]:
    """Return the cluster with all holders."""
    found = yield from operations.cluster()
    return read(ClusterView, json.dumps(found))


def waited(
    name: str, timeout_s: float | None, until: Until, on_event: Callable[[Event], None] | None, after: int
) -> Steps[JobView]:
    """Wait for a state of a job; return its view then. Raises NotReady, also for a job that ended in another state."""
    view = yield from waiting.wait(
        name, lambda content: read(JobView, content), settled(until), timeout_s, None if on_event is None else after
    )
    if not reached(until)(view):
        because = f": {view.reason}" if view.reason else ""
        raise NotReady(f"{name} is {view.status}{because}, and does not reach the awaited state any more")
    return view


def changes(name: str, interval_s: float) -> Steps[None]:
    """Emit the view of a job, and again whenever it has changed, until the job's end."""
    return waiting.changes(name, lambda content: read(JobView, content), settled(None), interval_s)


def stored_events(job: str | None, after: int, names: Iterable[str]) -> Steps[int]:
    """Emit the events that are stored now."""
    return event_streams.events(job, after, False, tuple(names))


def what_if(name: str, **changes: float | None) -> Request:
    """Return the request for a prediction; None: as in the present plan."""
    return operations.what_if(name, {key: value for key, value in changes.items() if value is not None})


def scale(name: str, workers: int | None, ps: int | None, data: Data | None) -> Request:
    """Return the request for another number of pods; None: as in the present plan."""
    wanted = {"workers": workers, "ps": ps, "data": data}
    return operations.scale(name, {key: value for key, value in wanted.items() if value is not None})


def add_data(name: str, partitions: Iterable[DataPartition], close: bool) -> Request:
    """Return the request that states totals of partitions."""
    return operations.add_data(name, {"partitions": [document_of(each) for each in partitions], "close": close})


def audit_log() -> Steps[bytes]:
    """Return the audit log, an entry a line."""
    answer = yield from exchange(operations.audit_log())
    return answer.content
