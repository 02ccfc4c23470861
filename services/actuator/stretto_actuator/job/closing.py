"""The end of a completed job: evaluation, last checkpoint, counts of the parameter servers."""

from __future__ import annotations

import asyncio

import structlog
from stretto_bus import CallRefused, CallTimeout
from stretto_core.actuator.counts import incomplete_shards
from stretto_core.actuator.observations import CountsTaken, ServerCounts
from stretto_core.actuator.state import ActuatorState
from stretto_messages.base import bounded
from stretto_messages.pods import EvaluateModel, GetBooks
from stretto_messages.values import Evaluation

from ..settings import ActuatorSettings
from .edge import Edge

log = structlog.get_logger("stretto.actuator")


class Closing:
    """One step per call; each wait is bounded, because a job's end must not depend on its extras."""

    def __init__(self, job: str, edge: Edge, settings: ActuatorSettings) -> None:
        self._job = job
        self._edge = edge
        self._settings = settings
        self._evaluation: Evaluation | None = None
        self._evaluated = False
        self._evaluation_failure = ""

    async def advance(self, state: ActuatorState) -> None:
        """Do the next step towards JobFinished. Raises CallTimeout when a parameter server does not answer."""
        waited_s = self._edge.server_now() - state.completed_at_s
        if state.evaluate and not self._evaluated:
            await self._evaluate(state, waited_s)
            return
        if state.final_checkpoint_due:
            if waited_s < self._settings.final_checkpoint_timeout_s:
                return
            log.warning("finishing without the last checkpoint", job=self._job, waited_s=waited_s)
        servers = [pod.name for pod in state.listed()]
        request = GetBooks(job=self._job, shards=tuple(incomplete_shards(state.completed)))
        replies = await asyncio.gather(*(self._edge.call_pod(s, request, 30.0) for s in servers))
        counts = tuple(
            ServerCounts(
                skipped_repeats=reply.skipped_repeats,
                rows=reply.rows,
                checksum=reply.checksum,
                applied=reply.applied,
            )
            for reply in replies
        )
        await self._edge.observe(
            self._job,
            CountsTaken(
                job=self._job,
                servers=counts,
                evaluation=self._evaluation,
                evaluation_failure="" if self._evaluation else bounded(self._evaluation_failure),
            ),
        )

    async def _evaluate(self, state: ActuatorState, waited_s: float) -> None:
        if waited_s > self._settings.evaluate_timeout_s:
            log.warning("finishing without an evaluation", job=self._job, waited_s=waited_s)
            limit = f"it was not done within {self._settings.evaluate_timeout_s:g} s"
            last = f"; {self._evaluation_failure}" if self._evaluation_failure else ""
            self._evaluation_failure = f"{limit} (STRETTO_ACTUATOR_EVALUATE_TIMEOUT_S){last}"
            self._evaluated = True
            return
        for worker in (pod for pod in state.of_role("worker") if pod.phase == "running" and not pod.stage):
            try:
                request = EvaluateModel(job=self._job, samples=state.evaluate)
                reply = await self._edge.call_pod(worker.name, request)
            except (CallTimeout, CallRefused) as error:
                log.info("worker cannot evaluate now", job=self._job, pod=worker.name, error=str(error))
                self._evaluation_failure = f"{worker.name}: {error}"
                continue
            if reply.state == "failed":
                log.warning("evaluation failed", job=self._job, pod=worker.name, detail=reply.detail)
                self._evaluation_failure = f"{worker.name}: {reply.detail}"
            if reply.evaluation is not None:
                self._evaluation = reply.evaluation
            self._evaluated = reply.state != "running"
            return
