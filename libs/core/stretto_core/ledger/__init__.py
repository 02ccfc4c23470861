"""The shard ledger of a job: leases, books, order (DLRover-RM section 5.1)."""

from stretto_core.ledger.book import Book, DataSpec, LedgerError, Range, Shard
from stretto_core.ledger.events import (
    HeartbeatReceived,
    JobClosed,
    JobOpened,
    LedgerRestored,
    MarkRequested,
    NextRequested,
    ShardReturned,
    StragglerNamed,
    WorkerExited,
)
from stretto_core.ledger.facts import (
    HeartbeatReply,
    JobCompleted,
    JobProgressed,
    MarkReply,
    NextReply,
    ReturnReply,
    ShardAbandoned,
    ShardCompleted,
    ShardLeased,
    ShardRequeued,
)
from stretto_core.ledger.machine import LedgerEvent, ShardLedger
from stretto_core.ledger.order import BlockOrder
from stretto_core.ledger.state import LedgerSettings, LedgerState, Worker

__all__ = [
    "BlockOrder",
    "Book",
    "DataSpec",
    "HeartbeatReceived",
    "HeartbeatReply",
    "JobClosed",
    "JobCompleted",
    "JobOpened",
    "JobProgressed",
    "LedgerError",
    "LedgerEvent",
    "LedgerRestored",
    "LedgerSettings",
    "LedgerState",
    "MarkReply",
    "MarkRequested",
    "NextReply",
    "NextRequested",
    "Range",
    "ReturnReply",
    "Shard",
    "ShardAbandoned",
    "ShardCompleted",
    "ShardLeased",
    "ShardLedger",
    "ShardRequeued",
    "ShardReturned",
    "StragglerNamed",
    "Worker",
    "WorkerExited",
]
