"""The edge of one job: look at the pods, do the missing steps, report observations; again and again.

Nothing here remembers more than the state and the backend do: a reconciler that starts in the middle of anything goes
on with it. What it keeps in memory only spares repetitions.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal

import structlog
from stretto_bus import CallRefused, CallTimeout
from stretto_bus.faults import Fault
from stretto_core.actuator.observations import (
    BucketsClaimed,
    OrphanFound,
    PlanConverged,
    PodResizeRefused,
    ServerEmptied,
)
from stretto_core.actuator.state import ActuatorState, Pod
from stretto_core.actuator.steps import Steps, next_steps
from stretto_core.model.types import HOUR_S
from stretto_messages.actuator import PodExited, PodResized
from stretto_messages.base import TEXT_MAX, Message
from stretto_messages.pods import ClaimBuckets, EmptyServer, TrainUnder
from stretto_runtime import PartitionLost

from ..backend import SIGNALLED, Backend, BackendError, ExitReason, NotInPlace, PodStatus, stated_reason
from ..settings import ActuatorSettings
from .closing import Closing
from .edge import Edge
from .migration import Mover
from .starting import PING_S, Starter, exited

BUSY_S = 0.2
UNFORESEEN_MAX_S = 10.0
LOST_GRACE_S = 2.0
FROM_OUTSIDE = (SIGNALLED + signal.SIGKILL, SIGNALLED + signal.SIGTERM)
"""Exit codes after SIGKILL and SIGTERM"""
PLAUSIBLE_INTERRUPTIONS = 0.1
"""Interruptions to expect in the life of a pod from which on one is taken for its end: a tenth come sooner."""

log = structlog.get_logger("stretto.actuator")


def reason_of(pod: Pod, reason: ExitReason, code: int | None, settings: ActuatorSettings, now: float) -> ExitReason:
    """Return how a pod ended: "preempted" if its unit was taken away, which not every place of pods can tell.

    That is so of a pod that was ended from outside on a type that is taken away now and then, and not sooner than is
    plausible: a worker that is killed for what it does itself would otherwise be started again for ever.
    """
    is_from_outside = reason == "vanished" or (reason == "killed" and code in FROM_OUTSIDE)
    if not is_from_outside or pod.started_at_s is None or pod.phase == "stopping":
        return reason
    spot = {each.name: each.interruptions_per_hour for each in settings.device_types}
    expected = spot.get(pod.device, 0.0) * (now - pod.started_at_s) / HOUR_S
    return "preempted" if expected >= PLAUSIBLE_INTERRUPTIONS else reason


class Reconciler:
    """One job's pods follow its state."""

    def __init__(
        self, job: str, state: ActuatorState, edge: Edge, backend: Backend, settings: ActuatorSettings
    ) -> None:
        self.job = job
        self.state = state
        self._edge = edge
        self._backend = backend
        self._settings = settings
        self._wake = asyncio.Event()
        self._trains_under: dict[str, tuple[int, float]] = {}
        """Plan version and cores that each worker was last told to train under."""
        self._last_fault = ""
        self._logs_kept: set[str] = set()
        """Pods that are to end, whose logs were kept when they were asked to."""
        self._starter = Starter(job, edge, backend, settings)
        self._mover = Mover(job, edge)
        self._closing = Closing(job, edge, settings)

    def follow(self, state: ActuatorState) -> None:
        """Take the state of the machine after a change."""
        self.state = state
        self._wake.set()

    async def run(self) -> None:
        """Reconcile until the job has ended and its pods are gone, or the partition is lost."""
        unfollow = self._backend.follow(self.job, self._wake.set)
        try:
            await self._run()
        finally:
            unfollow()

    async def _run(self) -> None:
        delay_s = 0.0
        while True:
            self._wake.clear()
            busy = False
            try:
                busy = await self.once()
                self._last_fault = ""
            except PartitionLost:
                return
            except (CallRefused, CallTimeout, BackendError, Fault, OSError) as error:
                if str(error) != self._last_fault:
                    log.warning("will try again", job=self.job, error=str(error))
                self._last_fault = str(error)
                busy = True
            except Exception as error:  # nobody else would look after the job's pods
                delay_s = min(max(2 * delay_s, BUSY_S), UNFORESEEN_MAX_S)
                log.exception("unforeseen; will try again", job=self.job, error=str(error), after_s=delay_s)
                await asyncio.sleep(delay_s)
                continue
            delay_s = 0.0
            if self.state.ended and not busy and not self.state.pods:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BUSY_S if busy else self._settings.poll_s):  # not wait_for: it can
                    await self._wake.wait()  # swallow a cancelling that comes with the news

    async def once(self) -> bool:
        """Look once and do the next steps; return True if more is to be expected soon."""
        pods = {pod.pod: pod for pod in await self._backend.list(self.job)}
        steps = next_steps(self.state, self._edge.server_now())
        if await self._report_gone(pods, steps):
            return True
        busy = await self._clear_orphans(pods)
        busy |= await self._starter.launch([pod for pod in steps.launch if pod.name not in pods], self.state)
        busy |= await self._stop(steps)
        busy |= await self._starter.greet(pods, self.state)
        busy |= await self._empty(steps)
        await self._resize(steps)
        if not await self._inform_workers(steps):
            return True
        if steps.claim:
            await self._claim(steps)
            return True
        if steps.rebalance is not None:
            await self._mover.advance(steps.rebalance, self.state)
            return True
        self._mover.rest()
        if steps.converged is not None:
            await self._observe(PlanConverged(job=self.job, version=steps.converged))
            return True
        if steps.conclude:
            await self._closing.advance(self.state)
            return True
        return busy or steps.retry_at_s is not None

    # pods ------------------------------------------------------------------------------------------------------

    async def _report_gone(self, pods: dict[str, PodStatus], steps: Steps) -> bool:
        """Report exits first: all other steps depend on them. Return True if there were any."""
        gone, now = list[PodExited](), self._edge.server_now()
        expected = {pod.name for pod in steps.expect}
        for name, pod in self.state.pods.items():
            status = pods.get(name)
            if status is not None and status.state == "exited":
                self._edge.keep_log(self.job, name, status.log)
                why = stated_reason(status.log, status.exit_code) or status.detail
                reason = status.reason or "vanished"
                if not status.used_up:
                    reason = reason_of(pod, reason, status.exit_code, self._settings, now)
                gone.append(exited(self.job, pod, reason, status.exit_code, why[:TEXT_MAX], status.used_up))
            elif status is None and (name in expected or pod.phase == "stopping"):
                reason = reason_of(pod, "vanished" if name in expected else "completed", None, self._settings, now)
                gone.append(exited(self.job, pod, reason, None))
        for message in sorted(gone, key=lambda message: message.pod, reverse=True):  # workers before what they lost
            await self._observe(message)
        return bool(gone)

    async def _clear_orphans(self, pods: dict[str, PodStatus]) -> bool:
        """End pods that the state does not know, and clear the traces of those whose end is published."""
        busy = False
        for name, pod in pods.items():
            if name in self.state.pods:
                continue
            busy = True
            if pod.state == "exited":
                await self._edge.keep_whole_log(self.job, name)
                self._logs_kept.discard(name)
                await self._backend.forget(self.job, name)
            else:
                # a replica that was frozen may hold an old state: only the owner can still write
                await self._observe(OrphanFound(job=self.job, pod=name))
                await self._backend.stop(self.job, name, self._settings.stop_grace_s)
        return busy

    async def _stop(self, steps: Steps) -> bool:
        """Stop pods; return True if their ends are urgent. The backend or the next look reports them."""
        lost = self.state.restores  # with the parameters gone there is nothing to finish
        grace_s = min(self._settings.stop_grace_s, LOST_GRACE_S) if lost else self._settings.stop_grace_s
        for pod in steps.stop:
            if pod.name not in self._logs_kept:
                self._logs_kept.add(pod.name)
                self._edge.keep_log_of_stopped(self.job, pod.name)
            if pod.started_at_s is None:  # it holds nothing, and may not hear us while it imports its code
                await self._backend.kill(self.job, pod.name)
            else:
                await self._backend.stop(self.job, pod.name, grace_s)
        return lost and bool(steps.stop)

    async def _resize(self, steps: Steps) -> None:
        """Change all limits at once, since a node may take seconds for each.

        Raises:
            BackendError: one change failed; the others are reported.
        """
        faults: list[BackendError] = []
        answers = await asyncio.gather(*(self._resize_one(pod) for pod in steps.resize))
        for pod, limits in zip(steps.resize, answers, strict=True):
            if isinstance(limits, NotInPlace):
                await self._replace(pod, limits)
            elif isinstance(limits, BackendError):
                faults.append(limits)
            elif limits != (pod.cpu_cores_now, pod.memory_bytes_now) or limits[1] > pod.memory_bytes:
                # reported also when memory is not taken away: otherwise every look would ask for it again
                cpu_cores, memory_bytes = limits
                resized = PodResized(job=self.job, pod=pod.name, cpu_cores=cpu_cores, memory_bytes=memory_bytes)
                await self._observe(resized)
        if faults:
            raise faults[0]

    async def _resize_one(self, pod: Pod) -> tuple[float, int] | BackendError:
        try:
            return await self._backend.resize(self.job, pod.name, pod.cpu_cores, pod.memory_bytes)
        except BackendError as error:
            return error

    async def _replace(self, pod: Pod, error: NotInPlace) -> None:
        """Replace one pod of a role after the other: the job goes on with the rest."""
        peers = [peer for peer in self.state.pods.values() if peer.role == pod.role]
        if all(peer.phase == "running" and not peer.leaving for peer in peers):
            log.info("replaced, to get other limits", job=self.job, pod=pod.name, why=str(error))
            await self._observe(PodResizeRefused(job=self.job, pod=pod.name))

    async def _inform_workers(self, steps: Steps) -> bool:
        """Tell workers the plan that their telemetry belongs to; return True if all know it."""
        version = self.state.plan_version
        due = [
            pod
            for pod in steps.expect
            if pod.role == "worker"
            and self._trains_under.get(pod.name) != (version, pod.cpu_cores)
            and self._knows_less(pod)
        ]
        return all(await asyncio.gather(*(self._inform(pod, version) for pod in due)))

    def _knows_less(self, pod: Pod) -> bool:
        return pod.name in self._trains_under or pod.plan_version != self.state.plan_version

    async def _inform(self, pod: Pod, version: int) -> bool:
        request = TrainUnder(job=self.job, plan_version=version, cpu_cores=pod.cpu_cores)
        try:
            await self._edge.call_pod(pod.name, request, PING_S)
        except (CallTimeout, CallRefused) as error:
            log.info("worker does not listen yet", job=self.job, pod=pod.name, error=str(error))
            return False
        self._trains_under[pod.name] = (version, pod.cpu_cores)
        return True

    # parameters ------------------------------------------------------------------------------------------------

    async def _empty(self, steps: Steps) -> bool:
        """Empty servers in place; one that does not answer in time is killed, and replaced. True if there were any."""
        version = self.state.returned_version

        async def ask(pod: Pod) -> None:
            try:
                reply = await self._edge.call_pod(pod.name, EmptyServer(job=self.job, version=version))
                refused = "" if reply.accepted else reply.detail
            except (CallTimeout, CallRefused) as error:
                refused = str(error)
            if refused:
                log.warning("not emptied; replaced", job=self.job, pod=pod.name, detail=refused)
                await self._backend.kill(self.job, pod.name)
            else:
                await self._observe(ServerEmptied(job=self.job, pod=pod.name, version=version))

        await asyncio.gather(*(ask(pod) for pod in steps.empty))
        return bool(steps.empty)

    async def _claim(self, steps: Steps) -> None:
        """Let all servers claim their parts; one that refuses owns other buckets and is replaced with its peers."""

        async def ask(name: str, buckets: list[int], slices: list[int]) -> bool:
            request = ClaimBuckets(job=self.job, buckets=tuple(buckets), slices=tuple(slices))
            reply = await self._edge.call_pod(name, request)
            if not reply.accepted:
                log.warning("claim refused; replaced", job=self.job, pod=name, detail=reply.detail)
                await self._backend.kill(self.job, name)
            return reply.accepted

        accepted = await asyncio.gather(*(ask(name, *parts) for name, parts in steps.claim.items()))
        if all(accepted):
            await self._observe(BucketsClaimed(job=self.job, pods=tuple(steps.claim)))

    async def _observe(self, message: Message) -> None:
        await self._edge.observe(self.job, message)
