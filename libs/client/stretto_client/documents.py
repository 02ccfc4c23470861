"""The gateway's answers as it wrote them, for programs that print or pass them on, such as the command."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable
from typing import Any, Concatenate, ParamSpec, Self

from .blocking import iterate, run
from .drivers import Driver
from .places import Place
from .protocol import events, journal, logs, operations
from .protocol.connection import GatewayRequest
from .protocol.events import Event
from .protocol.exchange import document, document_of, exchange
from .protocol.outage import lasting

P = ParamSpec("P")
Json = dict[str, Any]


def _answered(request: Callable[P, GatewayRequest]) -> Callable[Concatenate[Documents, P], Json]:
    def call(self: Any, *args: P.args, **named: P.kwargs) -> Json:
        return run(document(self._driver, request(*args, **named)))

    return call


class Documents:
    """A blocking connection to ``/api/v1``. Use as a context manager; every method raises ClientError."""

    def __init__(self, place: Place, driver: Driver | None = None) -> None:
        """Connect with the first request."""
        self._driver = driver or Driver(place)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        run(self._driver.close())

    submit = _answered(operations.submit)
    job = _answered(operations.job)
    audit = _answered(operations.audit)
    trace = _answered(operations.trace)
    checkpoint = _answered(operations.checkpoint)
    scale = _answered(operations.scale)
    what_if = _answered(operations.what_if)
    data = _answered(operations.add_data)
    me = _answered(operations.me)
    status = _answered(operations.status)
    alerts = _answered(operations.alerts)

    def cancel(self, name: str, reason: str = "") -> Json:
        """End a job. While the gateway does not answer, or its bus stores nothing, it is tried for half a minute."""
        return document_of(run(lasting(self._driver, operations.cancel(name, reason), met=False)))

    def jobs(self, status: str | None = None) -> list[Json]:
        """Return all jobs, or those in one state, oldest first."""
        pages = run(operations.jobs(self._driver, (("status", status),) if status else ()))
        return [job for page in pages for job in json.loads(page)]

    def cluster(self) -> Json:
        """Return the cluster, with the holders of all pages."""
        return run(operations.cluster(self._driver))

    def ended(self, name: str) -> Json:
        """Return the view of a job whose last event was read."""
        return run(operations.ended(self._driver, name))

    def last_lines(self, name: str, pod: str, lines: int) -> str:
        """Return the last lines of a pod."""
        return "\n".join(run(logs.log(self._driver, name, pod, lines)))

    def followed_lines(self, name: str, pod: str, lines: int) -> Generator[str]:
        """Yield the last lines of a pod and those that follow, until it has ended."""
        return iterate(logs.follow_log(self._driver, name, pod, lines))

    def journal(self, name: str, parameters: Iterable[tuple[str, str]]) -> Generator[bytes]:
        """Yield the facts of a stream and those stored messages of it that the parameters name, each as JSON."""
        return iterate(journal.journal(self._driver, name, parameters))

    def audit_log(self) -> bytes:
        """Return the audit log, an entry a line."""
        return run(exchange(self._driver, operations.audit_log())).content

    def events(
        self, job: str | None = None, after: int = 0, follow: bool = True, names: tuple[str, ...] = ()
    ) -> Generator[Event]:
        """Yield events after a sequence. A broken connection is resumed where it broke, for half a minute."""
        return iterate(events.events(self._driver, job, after, follow, names))
