"""Connections of pods to the bus: each pod has a share of its own, and what is beyond is cut at once.

The server bounds the connections of all pods together, in their account, and knows no bound of one user. So the
actuator hears, in the server's own account, of each connection that a pod opens, and has the server end the oldest of a
pod that has too many: one that broke, and that the server still counts, goes first. A pod that is gone has no share at
all: its credentials, valid for a day, are of no use from the end of the pod on.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import structlog
from stretto_bus.bus import Bus, Msg
from stretto_bus.faults import BusFault, IdentityFault
from stretto_bus.login import Login, claims_of, token_of
from stretto_bus.tasks import end
from stretto_runtime.access.identity import pods_account_of

SHARE = 4
"""Connections of one pod: one that it uses, one while it renews its credentials, and two that broke (taste)."""
CUT_MOST = 100
"""Cut connections within ``CUT_WITHIN_S`` that end the pod which opens them: each costs the server and this process
time (taste). An honest pod whose network breaks has one every few seconds."""
CUT_WITHIN_S = 60.0
GONE_KEPT, GONE_FOR_S = 1000, 5.0
"""Pods that were gone a moment ago, and how long that is believed: asking costs more than counting."""
LIST_EVERY_S = 60.0
"""The server drops events that we are too slow for."""
LISTED = 1000

log = structlog.get_logger("stretto.connections")


class PodName(NamedTuple):
    """The pod that credentials name."""

    job: str
    name: str


class OpenConnection(NamedTuple):
    """A connection: the server's id, and the number that the server gave it."""

    server: str
    number: int


class Shares:
    """Open connections by pod, and those that are too many. ``share`` returns how many a pod may have."""

    def __init__(self, share: Callable[[PodName], int]) -> None:
        self._share = share
        self._open: dict[str, dict[str, dict[OpenConnection, None]]] = {}
        """Job -> pod -> its connections, the oldest first."""
        self._pods: dict[OpenConnection, PodName] = {}
        self._cut: dict[PodName, deque[float]] = {}
        self._gone: dict[PodName, float] = {}
        """Pods without a share -> time until which that is believed."""

    def opened(self, pod: PodName, connection: OpenConnection, now: float) -> list[OpenConnection]:
        """Note a connection, again if it is known; return those to cut."""
        self._pods[connection] = pod
        self._open.setdefault(pod.job, {}).setdefault(pod.name, {}).setdefault(connection)
        return self._beyond(pod, now)

    def closed(self, connection: OpenConnection) -> None:
        """Note that a connection is gone."""
        pod = self._pods.pop(connection, None)
        if pod is None:
            return
        pods = self._open[pod.job]
        del pods[pod.name][connection]
        if not pods[pod.name]:
            del pods[pod.name]
        if not pods:
            del self._open[pod.job]

    def changed(self, job: str, now: float) -> list[OpenConnection]:
        """Return the connections of a job to cut, after its pods have changed."""
        return [each for name in [*self._open.get(job, ())] for each in self._beyond(PodName(job, name), now)]

    def too_many(self, pod: PodName, now: float) -> bool:
        """Note that a connection of a pod was cut; return whether the pod has had so many that it is to end."""
        for quiet in [each for each, times in self._cut.items() if now - times[-1] > CUT_WITHIN_S]:
            del self._cut[quiet]
        times = self._cut.setdefault(pod, deque(maxlen=CUT_MOST))
        times.append(now)
        if len(times) < CUT_MOST or now - times[0] > CUT_WITHIN_S:
            return False
        del self._cut[pod]
        return True

    def _beyond(self, pod: PodName, now: float) -> list[OpenConnection]:
        """Take the oldest connections beyond the share of a pod out of the count: the server is told to end them."""
        held = self._open.get(pod.job, {}).get(pod.name, {})
        found = [*held][: max(0, len(held) - self._allowed(pod, now))]
        for connection in found:
            self.closed(connection)
        return found

    def _allowed(self, pod: PodName, now: float) -> int:
        if self._gone.get(pod, now) > now:
            return 0
        allowed = self._share(pod)
        if allowed == 0:
            if len(self._gone) == GONE_KEPT:
                self._gone.clear()
            self._gone[pod] = now + GONE_FOR_S
        return allowed


class ConnectionCounter:
    """Keeps each pod to its share on the real server; ``excess`` is called with a pod that opens far too many."""

    def __init__(
        self, url: str, login: Login, share: Callable[[PodName], int], excess: Callable[[PodName], None]
    ) -> None:
        self._url, self._login, self._excess = url, login, excess
        self._shares = Shares(share)
        self._bus: Bus | None = None
        self._account = ""
        self._task: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()

    def start(self) -> None:
        """Count from now on, in the background; the bus may come later."""
        self._task = asyncio.create_task(self._run(), name="count connections")

    async def stop(self) -> None:
        if self._task is not None:
            await end(self._task)
        if self._bus is not None:
            await self._bus.close()

    def changed(self, job: str) -> None:
        """Look at a job again whose pods have changed."""
        for connection in self._shares.changed(job, self._loop.time()):
            self._end(connection)

    async def _run(self) -> None:
        try:
            assert self._login.credentials is not None
            self._account = pods_account_of(token_of(self._login.credentials.read_text()))
            self._bus = bus = await Bus.connect(self._url, self._login)
        except (BusFault, IdentityFault, OSError) as error:
            log.error("connections of pods are not counted", error=str(error))
            return
        await bus.subscribe(f"$SYS.ACCOUNT.{self._account}.CONNECT", self._opened)
        await bus.subscribe(f"$SYS.ACCOUNT.{self._account}.DISCONNECT", self._closed)
        await bus.subscribe(f"{bus.inbox}.listed", self._listed)
        bus.on_reconnect.append(self._list)
        while True:
            self._list()
            await asyncio.sleep(LIST_EVERY_S)

    def _list(self, offset: int = 0) -> None:
        """Ask every server for the connections of pods: what was opened while nobody listened, or was not told."""
        body = {"auth": True, "offset": offset, "limit": LISTED}
        self._ask(f"$SYS.REQ.ACCOUNT.{self._account}.CONNZ", body, "listed")

    def _opened(self, msg: Msg) -> None:
        body = json.loads(msg.data)
        self._note(body["server"]["id"], body["client"]["id"], body["client"].get("jwt", ""))

    def _closed(self, msg: Msg) -> None:
        body = json.loads(msg.data)
        self._shares.closed(OpenConnection(body["server"]["id"], body["client"]["id"]))

    def _listed(self, msg: Msg) -> None:
        body = json.loads(msg.data).get("data", {})
        found = body.get("connections") or []
        for each in found:
            self._note(body["server_id"], each["cid"], each.get("jwt", ""))
        if len(found) == LISTED:
            self._list(int(body["offset"]) + LISTED)

    def _note(self, server: str, number: int, token: str) -> None:
        pod = pod_of(token)
        if pod is None:
            return
        now = self._loop.time()
        for connection in self._shares.opened(pod, OpenConnection(server, number), now):
            self._end(connection)
            if self._shares.too_many(pod, now):
                self._excess(pod)

    def _end(self, connection: OpenConnection) -> None:
        self._ask(f"$SYS.REQ.SERVER.{connection.server}.KICK", {"cid": connection.number}, "ended")

    def _ask(self, subject: str, body: dict[str, Any], answer: str) -> None:
        """Ask the server, which does nothing for who wants no answer."""
        assert self._bus is not None
        try:
            self._bus.connection.put(subject, json.dumps(body).encode(), f"{self._bus.inbox}.{answer}")
        except Exception as error:  # a break: the list after it says what is still open
            log.info("the server was not asked", subject=subject, error=str(error))


def pod_of(token: str) -> PodName | None:
    """Return the pod that a token names; None: it is of no pod."""
    try:
        tags = dict(tag.split(":", 1) for tag in claims_of(token)["nats"]["tags"])
        return PodName(tags["job"], tags["pod"])
    except (IdentityFault, KeyError, TypeError, ValueError):
        return None
