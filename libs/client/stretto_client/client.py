"""The blocking client: the operations of :mod:`stretto_client.aio`, each run to its end before its method returns.

It needs no event loop, and works inside a running one, as in a notebook.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Self, overload

from stretto_wire.rest.views import JobView

from .aio import AsyncClient, AsyncJob
from .answers.facts import JobFacts
from .blocking import blocking, chained, iterate, like, run, streamed
from .places import place_of
from .protocol.logs import LOG_LINES, follow_log, log

if TYPE_CHECKING:
    from .drivers import Driver

P = ParamSpec("P")


def connect(
    url: str | None = None,
    token: str | None = None,
    *,
    folder: Path | str | None = None,
    ca: Path | str | None = None,
) -> Client:
    """Return a client of a gateway. It connects with the first request.

    Without ``url`` and ``folder``, the variables STRETTO_CLI_URL and STRETTO_CLI_TOKEN name the gateway; without these,
    it is the gateway that ``stretto up`` started in STRETTO_STATE_FOLDER or ``.stretto``. ``ca``: file with the
    certificates to trust instead of the system's (STRETTO_CLI_CA). Raises NotRunning, Unusable.
    """
    from .drivers import Driver  # httpx is half of the time that an import of the client would take

    return Client(Driver(place_of(url, token, folder, ca)))


def _returning_job(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, AsyncJob]],
) -> Callable[Concatenate[Any, P], Job]:
    found = blocking(method)

    def call(self: Any, *args: P.args, **named: P.kwargs) -> Job:
        return Job(self._driver, found(self, *args, **named).view)

    return like(method, call)


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
        Client.close(self)

    close = blocking(AsyncClient.close)
    submit = _returning_job(AsyncClient.submit)
    preview = blocking(AsyncClient.preview)
    job = _returning_job(AsyncClient.job)
    jobs = blocking(AsyncClient.jobs)
    events = streamed(AsyncClient.events)
    stored_events = blocking(AsyncClient.stored_events)
    cluster = blocking(AsyncClient.cluster)
    me = blocking(AsyncClient.me)
    status = blocking(AsyncClient.status)
    history = blocking(AsyncClient.history)
    audit_log = blocking(AsyncClient.audit_log)


class Job(JobFacts):
    """A job of a gateway, as it was last read: :meth:`refresh` and :meth:`wait` read it again."""

    def __init__(self, driver: Driver, view: JobView) -> None:
        super().__init__(view)
        self._driver = driver
        self._told = 0
        """Sequence of the last event that a wait gave to its reader."""

    refresh = chained(AsyncJob.refresh)
    wait = chained(AsyncJob.wait)
    events = streamed(AsyncJob.events)
    stored_events = blocking(AsyncJob.stored_events)

    @overload
    def logs(self, pod: str, *, lines: int = LOG_LINES, follow: Literal[False] = False) -> list[str]: ...
    @overload
    def logs(self, pod: str, *, lines: int = LOG_LINES, follow: Literal[True]) -> Generator[str]: ...
    def logs(self, pod: str, *, lines: int = LOG_LINES, follow: bool = False) -> list[str] | Generator[str]:
        """Return the last lines of a pod; with ``follow``, yield them and those that follow until the pod's end."""
        if follow:
            return iterate(follow_log(self._driver, self.name, pod, lines))
        return run(log(self._driver, self.name, pod, lines))

    whatif = blocking(AsyncJob.whatif)
    scale = blocking(AsyncJob.scale)
    checkpoint = blocking(AsyncJob.checkpoint)
    add_data = blocking(AsyncJob.add_data)
    cancel = blocking(AsyncJob.cancel)
    audit = blocking(AsyncJob.audit)
    trace = blocking(AsyncJob.trace)
    live = chained(AsyncJob.live)
