"""Leader election: one of several replicas writes, the holder of a Lease (coordination.k8s.io), which it renews.

As in client-go, no clock is compared with that of another machine: a candidate takes a Lease over once it has itself
observed it unchanged for the whole duration. The holder stops writing before that, after two thirds of the duration
without a renewal.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, NoReturn

import structlog

from .api import Api, Kind, Object
from .faults import KubeFault

LEASES = Kind("coordination.k8s.io", "v1", "leases", "Lease")
HOLD_FRACTION = 2 / 3
RELEASE_S = 2.0

log = structlog.get_logger("stretto.kube")
Step = Literal["create", "renew", "take", "wait"]


@dataclass(frozen=True, slots=True)
class Observed:
    """The version of a Lease, and the time since when it was unchanged (this machine's monotonic clock)."""

    version: str
    since_s: float


def observe(before: Observed | None, lease: Object | None, now_s: float) -> Observed | None:
    """Return the observation that follows from reading ``lease``."""
    if lease is None:
        return None
    version = str(lease["metadata"]["resourceVersion"])
    return before if before is not None and before.version == version else Observed(version, now_s)


def next_step(lease: Object | None, observed: Observed | None, me: str, duration_s: float, now_s: float) -> Step:
    """Return the next step of candidate ``me`` after reading ``lease``."""
    if lease is None or observed is None:
        return "create"
    holder = _spec(lease).get("holderIdentity") or ""
    if holder == me:
        return "renew"
    return "take" if not holder or now_s - observed.since_s >= duration_s else "wait"


def _spec(lease: Object) -> Object:
    """Return a Lease's spec, which is optional."""
    return lease.get("spec") or {}


class Election:
    """Candidate ``me`` for the Lease ``name``. Check ``leads`` before every write."""

    def __init__(
        self, api: Api, name: str, me: str, duration_s: float = 15.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._api = api
        self._name = name
        self._me = me
        self._duration_s = duration_s
        self._clock = clock
        self._observed: Observed | None = None
        self._renewed_s: float | None = None

    @property
    def leads(self) -> bool:
        """True while no other candidate can have taken the Lease."""
        return self._renewed_s is not None and self._clock() - self._renewed_s < self._duration_s * HOLD_FRACTION

    async def run(self) -> NoReturn:
        """Stand for election until cancelled; then release the Lease, so that another candidate need not wait."""
        try:
            while True:
                try:
                    await self.once()
                except KubeFault:  # `leads` shows that this replica does not lead
                    pass
                except Exception as error:  # else this replica would never stand again, unnoticed
                    log.exception("cannot stand for the lease; will try again", lease=self._name, error=str(error))
                await asyncio.sleep(self._duration_s / 5)
        finally:
            with contextlib.suppress(KubeFault, TimeoutError):
                async with asyncio.timeout(RELEASE_S):
                    await self._release()

    async def once(self) -> None:
        """Read the Lease once and take the next step. Raises KubeFault."""
        asked_s = self._clock()
        led = self.leads
        lease = await self._api.get(LEASES, self._name)
        self._observed = observe(self._observed, lease, self._clock())
        step = next_step(lease, self._observed, self._me, self._duration_s, self._clock())
        if step == "wait":
            self._renewed_s = None
            return
        try:
            await self._write(lease, step)
        except KubeFault as fault:
            if fault.status == 409:  # another candidate was faster
                self._renewed_s = None
                return
            raise
        self._renewed_s = asked_s  # the server renewed it later, so counting from the request is on the safe side
        if not led:
            log.info("leads", lease=self._name, identity=self._me)

    async def _write(self, lease: Object | None, step: Step) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = dict(_spec(lease)) if lease is not None else {}
        spec |= {"holderIdentity": self._me, "leaseDurationSeconds": max(int(self._duration_s), 1), "renewTime": now}
        if step != "renew":
            spec |= {"acquireTime": now, "leaseTransitions": int(spec.get("leaseTransitions") or 0) + (step == "take")}
        if lease is None:
            await self._api.create(LEASES, {"metadata": {"name": self._name}, "spec": spec})
        else:
            await self._api.replace(LEASES, {**lease, "spec": spec})

    async def _release(self) -> None:
        """Remove the holder from the Lease if it is still this candidate."""
        if not self.leads:
            return
        self._renewed_s = None
        lease = await self._api.get(LEASES, self._name)
        if lease is not None and _spec(lease).get("holderIdentity") == self._me:
            await self._api.replace(LEASES, {**lease, "spec": {**lease["spec"], "holderIdentity": ""}})
