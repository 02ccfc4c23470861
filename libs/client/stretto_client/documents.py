"""The gateway's answers as it wrote them, for programs that print or pass them on, such as the command."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from .drivers import Driver
from .places import Place
from .protocol import events, journal, logs, operations
from .protocol.connection import Request
from .protocol.events import Event
from .protocol.exchange import document, exchange

Json = dict[str, Any]


class Documents:
    """A connection to ``/api/v1``. Use as a context manager; every method raises ClientError."""

    def __init__(self, url: str, token: str = "", authority: Path | None = None, driver: Driver | None = None) -> None:
        """Connect later. ``authority``: file with the certificates to trust instead of the system's."""
        self.url = url
        self._driver = driver or Driver(Place(url, token, authority))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._driver.close()

    def submit(self, text: str) -> Json:
        """Submit a specification in YAML or JSON."""
        return self._ask(operations.submit(text))

    def jobs(self, status: str | None = None) -> list[Json]:
        """Return all jobs, or those in one state, oldest first."""
        pages = self._driver.run(operations.jobs((("status", status),) if status else ()))
        return [job for page in pages for job in json.loads(page)]

    def job(self, name: str) -> Json:
        return self._ask(operations.job(name))

    def ended(self, name: str) -> Json:
        """Return the view of a job whose last event was read."""
        return self._driver.run(operations.ended(name))

    def decisions(self, name: str) -> list[Json]:
        return self._ask(operations.decisions(name))

    def audit(self, name: str) -> Json:
        return self._ask(operations.audit(name))

    def last_lines(self, name: str, pod: str, lines: int) -> str:
        """Return the last lines of a pod."""
        return "\n".join(self._driver.run(logs.log(name, pod, lines)))

    def followed_lines(self, name: str, pod: str, lines: int) -> Generator[str]:
        """Yield the last lines of a pod and those that follow, until it has ended."""
        return self._driver.iterate(logs.follow_log(name, pod, lines))

    def trace(self, name: str) -> Json:
        return self._ask(operations.trace(name))

    def journal(self, name: str, parameters: Iterable[tuple[str, str]]) -> Generator[bytes]:
        """Yield the facts of a stream and those stored messages of it that the parameters name, each as JSON."""
        return self._driver.iterate(journal.journal(name, parameters))

    def audit_log(self) -> bytes:
        """Return the audit log, an entry a line."""
        return self._driver.run(exchange(operations.audit_log())).content

    def cancel(self, name: str, reason: str = "") -> Json:
        return self._ask(operations.cancel(name, reason))

    def checkpoint(self, name: str) -> Json:
        return self._ask(operations.checkpoint(name))

    def scale(self, name: str, wanted: Mapping[str, int | str]) -> Json:
        return self._ask(operations.scale(name, wanted))

    def data(self, name: str, change: Mapping[str, Any]) -> Json:
        return self._ask(operations.add_data(name, change))

    def history(self) -> list[Json]:
        return self._ask(operations.history())

    def status(self) -> Json:
        return self._ask(operations.status())

    def events(
        self, job: str | None = None, after: int = 0, follow: bool = True, names: tuple[str, ...] = ()
    ) -> Generator[Event]:
        """Yield events after a sequence. A broken connection is resumed where it broke, for half a minute."""
        return self._driver.iterate(events.events(job, after, follow, names))

    def _ask(self, request: Request) -> Any:
        return self._driver.run(document(request))
