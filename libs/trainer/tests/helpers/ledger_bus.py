"""A bus with nothing but a ledger behind it."""

import itertools
from typing import Any

from stretto_core.dispatcher.evaluating import HeldOut
from stretto_core.dispatcher.events import JobOpened
from stretto_core.dispatcher.machine import ShardLedger
from stretto_core.dispatcher.source import DataSpec
from stretto_core.machine import Reply
from stretto_messages.dispatcher import NextShard


class LedgerBus:
    """Hands the requests of a worker to a ledger. `old`: one that knows of no shard ahead."""

    job, pod = "j", "worker-0"

    def __init__(self, held_out: HeldOut | None = None, is_old: bool = False) -> None:
        self.ledger = ShardLedger()
        self.is_old = is_old
        self.asked: list[Any] = []
        self._numbers = itertools.count()
        self.tell(JobOpened("j", DataSpec(10_000, 10, 2), 1, held_out=held_out))

    def tell(self, event: Any) -> Any:
        return next((a.body for a in self.ledger.handle(event, 1000.0) if isinstance(a, Reply)), None)

    def request_id(self, kind: Any) -> str:
        return f"worker-0.{next(self._numbers)}"

    def call(self, request: Any, reply: Any, timeout_s: float) -> Any:
        self.asked.append(request)
        if self.is_old and isinstance(request, NextShard):
            request = NextShard(
                job=request.job, request_id=request.request_id, pod=request.pod, complete=request.complete
            )
        return self.tell(request)
