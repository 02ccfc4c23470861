"""NetworkPolicies of jobs: each is made before its job's first pod, and removed after its last one.

They open what a job needs for itself. A policy of the installation, which the chart makes, denies everything else to
all training pods, and opens what they share: names, the bus, the cache, the store.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Collection
from dataclasses import dataclass, field
from datetime import datetime

from stretto_kube import Api, Kind
from stretto_wire.jobspec.kubernetes import JOB

from .manifest import Installation, policy, policy_name

NETWORK_POLICIES = Kind("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
ORPHAN_S = 600.0
"""Age of a policy without a pod after which its actuator counts as dead: it ended after the job's last pod, before
the policy."""


@dataclass(slots=True)
class Launches:
    """Pods of one job that are on their way. ``applied``: since the first of them the policy is in place."""

    count: int = 0
    applied: bool = False
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)


class JobPolicies:
    """The policies of one installation. Calls raise KubeFault."""

    def __init__(self, api: Api, installation: Installation) -> None:
        self._api = api
        self._installation = installation
        self._launches: dict[str, Launches] = {}

    @contextlib.asynccontextmanager
    async def used_by(self, job: str, egress: bool) -> AsyncGenerator[None]:
        """Put the job's policy in place, and keep it while a pod is made."""
        launches = self._launches.setdefault(job, Launches())
        launches.count += 1
        try:
            async with launches.changing:
                if not launches.applied:
                    await self._api.apply(NETWORK_POLICIES, policy(job, egress, self._installation), force=True)
                    launches.applied = True
            yield
        finally:
            launches.count -= 1
            launches.applied = launches.applied and launches.count > 0

    async def leave(self, job: str, unused: Callable[[], bool]) -> None:
        """Remove the job's policy if no pod is on its way and it is ``unused`` by those that were made."""
        launches = self._launches.setdefault(job, Launches())
        async with launches.changing:
            if launches.count == 0 and unused():
                await self._api.delete(NETWORK_POLICIES, policy_name(job, self._installation))

    def forget(self, job: str) -> None:
        """Forget a job whose pods are not started here any more."""
        if job in self._launches and self._launches[job].count == 0:
            del self._launches[job]

    async def clear(self, jobs: Collection[str], now_s: float) -> None:
        """Remove old policies of jobs other than ``jobs``, which have pods."""
        found, _ = await self._api.list(NETWORK_POLICIES, self._installation.selector)
        for each in (one["metadata"] for one in found):
            age_s = now_s - datetime.fromisoformat(each["creationTimestamp"]).timestamp()
            if JOB in each["labels"] and each["labels"][JOB] not in jobs and age_s > ORPHAN_S:
                await self._api.delete(NETWORK_POLICIES, each["name"])


@contextlib.asynccontextmanager
async def guarded(policies: JobPolicies | None, job: str, egress: bool) -> AsyncGenerator[None]:
    """Keep the job's policy in place while a pod is made, where the installation makes policies."""
    if policies is None:
        yield
        return
    async with policies.used_by(job, egress):
        yield
