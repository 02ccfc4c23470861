"""The gateway over HTTP: finds it, calls it, and turns its problems into errors for people."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx

from .errors import BadInput, CliError, NotRunning

TIMEOUT_S = 20.0
PATIENCE_S = 60.0
"""How long a request is repeated that the gateway answers with 429 (too many requests)."""
RECONNECT_S = 30.0
RECONNECT_PAUSE_S = 0.5
BAD_INPUT = frozenset({400, 404, 409, 413, 415, 422})
JOB_STATES = ("submitted", "waiting", "starting", "training", "finishing", "finished", "failed", "cancelled")
ENDED_STATES = ("finished", "failed", "cancelled")
VIEW_POLL_S = 0.2
LOST = (httpx.RemoteProtocolError, httpx.ReadError, httpx.ReadTimeout)
"""Errors of a broken event stream, which is resumed."""
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event. ``id`` is the stream sequence."""

    id: int
    name: str
    body: Json


def locate(folder: Path, url: str | None, token: str | None) -> tuple[str, str]:
    """Return the gateway's URL and token: as given, else as ``stretto up`` wrote them into ``folder``.

    Raises NotRunning if neither names a gateway.
    """
    if url is None:
        where = folder / "run" / "gateway.json"
        try:
            found = json.loads(where.read_text())
        except (OSError, ValueError):
            raise NotRunning(
                f"no gateway runs in {folder}: start one with `stretto up --folder {folder}`, "
                "or name another with --url"
            ) from None
        url = f"{found.get('scheme', 'http')}://{found['host']}:{found['port']}"
    if token is None:
        file = folder / "gateway.token"
        token = file.read_text().strip() if file.is_file() else ""
    return url, token


class Gateway:
    """A connection to ``/api/v1``. Use as a context manager."""

    def __init__(self, url: str, token: str, authority: Path | None = None) -> None:
        """Connect later. ``authority``: file with the certificates to trust instead of the system's.

        Raises BadInput for a file without certificates.
        """
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.url = url
        try:
            verify = ssl.create_default_context(cafile=authority) if authority else True
        except OSError as error:
            raise BadInput(f"STRETTO_CLI_CA={authority} cannot be used: {error.strerror or error}") from None
        self._http = httpx.Client(
            base_url=f"{url}/api/v1", headers=headers, timeout=TIMEOUT_S, trust_env=False, verify=verify
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def submit(self, text: str) -> Json:
        """Submit a specification in YAML or JSON."""
        return self._ask("POST", "/jobs", content=text.encode(), headers={"Content-Type": "application/yaml"})

    def jobs(self, status: str | None = None) -> list[Json]:
        """Return all jobs, or those in one state, oldest first: every page of the list."""
        params, found = {"status": status} if status else {}, list[Json]()
        while True:
            answer = self._answer("GET", "/jobs", params=params)
            found += answer.json()
            if (following := answer.links.get("next")) is None:
                return found
            params["cursor"] = httpx.URL(following["url"]).params["cursor"]

    def job(self, name: str) -> Json:
        return self._ask("GET", f"/jobs/{name}")

    def ended(self, name: str) -> Json:
        """Return the view of a job whose last event was read: the view may be an instant behind the event."""
        while (view := self.job(name))["status"] not in ENDED_STATES:
            time.sleep(VIEW_POLL_S)
        return view

    def decisions(self, name: str) -> list[Json]:
        return self._ask("GET", f"/jobs/{name}/decisions")

    def audit(self, name: str) -> Json:
        return self._ask("GET", f"/jobs/{name}/audit")

    def last_lines(self, name: str, pod: str, lines: int) -> str:
        """Return the last lines of a pod."""
        return str(self._ask("GET", f"/jobs/{name}/pods/{pod}/log", params={"lines": lines})["text"])

    def trace(self, name: str) -> Json:
        """Return the trace of a job, with the spans that the gateway's machine keeps."""
        return self._ask("GET", f"/jobs/{name}/trace")

    def audit_log(self) -> bytes:
        """Return the audit log, an entry a line."""
        return self._answer("GET", "/audit-log").content

    def cancel(self, name: str, reason: str = "") -> Json:
        return self._ask("DELETE", f"/jobs/{name}", params={"reason": reason})

    def checkpoint(self, name: str) -> Json:
        return self._ask("POST", f"/jobs/{name}/checkpoints")

    def scale(self, name: str, wanted: dict[str, int | str]) -> Json:
        return self._ask("POST", f"/jobs/{name}/plan", json=wanted)

    def data(self, name: str, change: Json) -> Json:
        return self._ask("POST", f"/jobs/{name}/data", json=change)

    def history(self) -> list[Json]:
        return self._ask("GET", "/history")

    def status(self) -> Json:
        return self._ask("GET", "/status")

    def events(
        self, job: str | None = None, after: int = 0, follow: bool = True, names: tuple[str, ...] = ()
    ) -> Iterator[Event]:
        """Yield events after a sequence. A broken connection is resumed where it broke, for half a minute."""
        path = f"/jobs/{job}/events" if job else "/events"
        last = after
        while True:
            try:
                for event in self._stream(path, last, follow, names):
                    last = event.id
                    yield event
                return
            except LOST:
                self._wait_back()

    def _stream(self, path: str, after: int, follow: bool, names: tuple[str, ...]) -> Iterator[Event]:
        params: dict[str, Any] = {"follow": follow, "event": list(names)}
        with (
            self._sending(lost=LOST),
            self._http.stream(
                "GET",
                path,
                params=params,
                headers={"Last-Event-ID": str(after)},
                timeout=httpx.Timeout(10.0, read=60.0),
            ) as response,
        ):
            if response.status_code >= 400:
                response.read()
                raise self._problem(response)
            yield from parse_events(response.iter_lines())

    def _wait_back(self) -> None:
        """Wait until the gateway answers and has read the whole stream: before, it does not know older jobs."""
        reason = "it does not answer"
        deadline = time.monotonic() + RECONNECT_S
        while time.monotonic() < deadline:
            try:
                answer = self._http.get("/status")
                if answer.status_code == 200 and answer.json()["ready"]:
                    return
                reason = f"it is still reading the stream ({answer.status_code})"
            except httpx.TransportError as error:
                reason = f"{type(error).__name__} {error}"
            time.sleep(RECONNECT_PAUSE_S)
        raise CliError(f"the gateway at {self.url} went away: {reason}; see `stretto status`")

    def _ask(self, method: str, path: str, **options: Any) -> Any:
        return self._answer(method, path, **options).json()

    def _answer(self, method: str, path: str, **options: Any) -> httpx.Response:
        with self._sending():
            deadline = time.monotonic() + PATIENCE_S
            while (response := self._once(method, path, **options)).status_code == 429:
                retry_after = response.headers.get("Retry-After", "")
                pause_s = float(retry_after) if retry_after.isdigit() else 1.0
                if time.monotonic() + pause_s > deadline:
                    break
                time.sleep(pause_s)
        if response.status_code >= 400:
            raise self._problem(response)
        return response

    def _once(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            return self._http.request(method, path, **options)
        except httpx.ConnectError:
            raise
        except httpx.TransportError:
            if method != "GET":  # only a request that changes nothing may be repeated unasked
                raise
            return self._http.request(method, path, **options)

    @contextmanager
    def _sending(self, lost: tuple[type[Exception], ...] = ()) -> Generator[None]:
        """Turn failures of the connection into errors for people, except ``lost``."""
        try:
            yield
        except lost:
            raise
        except httpx.ConnectError as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise CliError(
                    f"the certificate of {self.url} is not trusted: set STRETTO_CLI_CA to a file with the "
                    "certificate of its issuer"
                ) from error
            raise NotRunning(f"nothing answers at {self.url} ({error}): start it with `stretto up`") from error
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise CliError(f"{self.url}: {type(error).__name__} {error}; see `stretto status`") from error

    def _problem(self, response: httpx.Response) -> CliError:
        kind = BadInput if response.status_code in BAD_INPUT else CliError
        try:
            problem = response.json()
            if problem["type"].endswith((":bad-job", ":bad-request")):
                return kind("refused by the gateway", problem["errors"], problem["count"])
            remedy = f"\n  remedy: {problem['remedy']}" if problem["remedy"] else ""
            page = f"\n  more: {self.url}{problem['help']}" if "help" in problem else ""
            return kind(problem["detail"] + remedy + page)
        except (ValueError, KeyError, TypeError, AttributeError):  # the answer is not from our gateway
            return kind(f"HTTP {response.status_code}: {response.text[:300]}")


def parse_events(lines: Iterator[str]) -> Iterator[Event]:
    """Yield the server-sent events in these lines; comments and retry hints are skipped."""
    name, id_, data = "", 0, ""
    for line in lines:
        if line == "":
            if data:
                yield Event(id_, name, json.loads(data))
            name, data = "", ""
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "id":
            id_ = int(value)
        elif field == "event":
            name = value
        elif field == "data":
            data += value
