"""Moves parameters until the parameter servers own the wanted layout.

Ownership on the servers is the truth: after a restart the moves are computed again from it, so a half-done migration
is simply continued. One destination takes at a time, which keeps every worker's pauses short.
"""

from __future__ import annotations

import asyncio

import structlog
from stretto_core.actuator.observations import MovesFinished, MovesStarted
from stretto_core.actuator.placement import plan_moves
from stretto_core.actuator.servers import addresses
from stretto_core.actuator.state import ActuatorState
from stretto_core.actuator.steps import Rebalance
from stretto_messages.base import Message
from stretto_messages.pods import (
    BucketMove,
    GetMoveStatus,
    GetMoveStatusReply,
    GetOwnership,
    GetOwnershipReply,
    TakeBuckets,
)

from .edge import Edge

FROZEN_LOOKS = 25
"""Number of looks, some 0.2 s apart, after which a frozen bucket counts as left behind."""

log = structlog.get_logger("stretto.actuator")


class Mover:
    """One job's migrations, one step per call."""

    def __init__(self, job: str, edge: Edge) -> None:
        self._job = job
        self._edge = edge
        self.rest()

    def rest(self) -> None:
        """Forget the last migration: none is wanted now."""
        self._taking: int | None = None
        self._frozen_looks = 0
        self._buckets = 0
        self._moved_bytes = 0
        self._longest_freeze_s = 0.0

    async def advance(self, wanted: Rebalance, state: ActuatorState) -> None:
        """Look how far the migration is, and do the next step. Raises CallTimeout when a server does not answer."""
        names = {pod.number: pod.name for pod in state.listed()}
        if await self._running(names):
            return
        owned = dict(zip(names, await asyncio.gather(*(self._ownership(names[n]) for n in names)), strict=True))
        rows = [sum(counts) for counts in zip(*(reply.bucket_rows for reply in owned.values()), strict=False)]
        moves = plan_moves(
            {number: reply.buckets for number, reply in owned.items()},
            {number: reply.slices for number, reply in owned.items()},
            rows,
            wanted.weights,
        )
        thaws = all(source == destination for destination, part in moves.items() for _, source in part)
        self._frozen_looks = self._frozen_looks + 1 if moves and thaws else 0
        if moves and thaws and self._frozen_looks < FROZEN_LOOKS:
            return  # a checkpoint also freezes for an instant
        if not moves:
            await self._observe(
                MovesFinished(
                    job=self._job,
                    number=wanted.number,
                    buckets=self._buckets,
                    moved_bytes=self._moved_bytes,
                    longest_freeze_s=self._longest_freeze_s,
                )
            )
        elif state.migration is None:
            await self._begin(wanted, names, moves)
        else:
            destination = min(moves)
            await self._take(destination, moves[destination], names, state)

    async def _begin(
        self,
        wanted: Rebalance,
        names: dict[int, str],
        moves: dict[int, list[tuple[int, int]]],
    ) -> None:
        self.rest()
        every = [move for part in moves.values() for move in part]
        self._buckets = len(every)
        await self._observe(
            MovesStarted(
                job=self._job,
                number=wanted.number,
                sources=tuple(sorted({names[source] for _, source in every})),
                destinations=tuple(sorted(names[destination] for destination in moves)),
                buckets=self._buckets,
            )
        )

    async def _take(
        self, destination: int, moves: list[tuple[int, int]], names: dict[int, str], state: ActuatorState
    ) -> None:
        request = TakeBuckets(
            job=self._job,
            moves=tuple(BucketMove(bucket=column, source=source) for column, source in moves),
            servers=addresses(state),
        )
        reply = await self._edge.call_pod(names[destination], request)
        if reply.accepted:
            self._taking = destination
        else:
            log.warning("move refused; again later", job=self._job, pod=names[destination], detail=reply.detail)

    async def _running(self, names: dict[int, str]) -> bool:
        """Return True while a server takes buckets; add up the figures of those that have finished."""
        # one server takes at a time; the others, perhaps hot, are not disturbed
        asked = [self._taking] if self._taking in names else list(names)
        statuses = await asyncio.gather(*(self._status(names[number]) for number in asked))
        for number, status in zip(asked, statuses, strict=True):
            if status.running:
                self._taking = number
                return True
            if number == self._taking:
                self._taking = None
                self._moved_bytes += status.moved_bytes
                self._longest_freeze_s = max(self._longest_freeze_s, status.longest_freeze_s)
                self._buckets = max(self._buckets, status.done)
                if status.error:
                    log.warning("move broke off; continued", job=self._job, pod=names[number], error=status.error)
        return False

    async def _status(self, name: str) -> GetMoveStatusReply:
        return await self._edge.call_pod(name, GetMoveStatus(job=self._job))

    async def _ownership(self, name: str) -> GetOwnershipReply:
        return await self._edge.call_pod(name, GetOwnership(job=self._job))

    async def _observe(self, message: Message) -> None:
        await self._edge.observe(self._job, message)
