"""A shard ledger with a clock and request ids, for tests."""

from typing import Any

from ledger_builders import JOB, Audited, audited, next_shard
from stretto_core.dispatcher.evaluating import HeldOut
from stretto_core.dispatcher.events import JobOpened
from stretto_core.dispatcher.machine import ShardLedger
from stretto_core.dispatcher.source import DataSpec
from stretto_core.dispatcher.state import LedgerSettings
from stretto_core.machine import Emit, Reply, Tick
from stretto_messages.dispatcher import NextShardReply
from stretto_messages.values import DataPartition, Shard

DATA = DataSpec(samples=1000, batch_size=10, batches_per_shard=8, shuffle=True, seed=3)


class LedgerHarness:
    """Hands events to a ledger, at its own time and under its own request ids, and keeps the emitted facts."""

    def __init__(
        self,
        data: DataSpec = DATA,
        epochs: int = 1,
        partitions: tuple[DataPartition, ...] = (),
        held_out: HeldOut | None = None,
        runs_program: bool = False,
        **settings: float,
    ) -> None:
        self.ledger = ShardLedger(None, LedgerSettings(**settings))
        self.now, self.requests, self.facts = 1000.0, 0, list[Any]()
        self.tell(JobOpened(JOB, data, epochs, 3, partitions, held_out, runs_program=runs_program))

    def tell(self, event: Any) -> Any:
        reply = None
        for action in self.ledger.handle(event, self.now):
            if isinstance(action, Reply):
                reply = action.body
            elif isinstance(action, Emit):
                self.facts.append(action.fact)
        return reply

    def next(self, worker: str, done: Shard | None = None, ahead: bool = False) -> NextShardReply:
        self.requests += 1
        report = (done.id, done.attempt) if done else (None, 0)
        self.asked = next_shard(worker, f"r{self.requests}", *report, ahead=ahead)
        return self.tell(self.asked)

    def lease(self, worker: str, done: Shard | None = None) -> Shard:
        reply = self.next(worker, done)
        assert reply.answer == "shard", reply
        assert reply.shard is not None
        return reply.shard

    def two(self, worker: str, done: Shard | None = None) -> tuple[Shard, Shard]:
        """Return a lease and the shard that is held ahead."""
        reply = self.next(worker, done, ahead=True)
        assert reply.shard is not None, reply
        assert reply.ahead is not None, reply
        return reply.shard, reply.ahead

    def said(self, kind: type) -> list[Any]:
        return [fact for fact in self.facts if isinstance(fact, kind)]

    def audit(self) -> Audited:
        return audited(self.ledger)

    def pass_time(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            self.now += 1
            self.tell(Tick())
