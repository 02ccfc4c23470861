"""The shard ledger of a job: leases, books, order (DLRover-RM section 5.1)."""

from stretto_core.dispatcher.audit import Applied, Counted, Proof, epochs_of, prove
from stretto_core.dispatcher.book import Book, GivenUp, Partial, Shard, fingerprint_of
from stretto_core.dispatcher.evaluating import Evaluating, HeldOut
from stretto_core.dispatcher.events import JobOpened, LedgerMark, LedgerRestored
from stretto_core.dispatcher.machine import LedgerEvent, ShardLedger
from stretto_core.dispatcher.order import BlockOrder
from stretto_core.dispatcher.source import DataSpec, LedgerError, Range, Source
from stretto_core.dispatcher.state import LedgerSettings, LedgerState, Worker

__all__ = [
    "Applied",
    "BlockOrder",
    "Book",
    "Counted",
    "DataSpec",
    "Evaluating",
    "GivenUp",
    "HeldOut",
    "JobOpened",
    "LedgerError",
    "LedgerEvent",
    "LedgerMark",
    "LedgerRestored",
    "LedgerSettings",
    "LedgerState",
    "Partial",
    "Proof",
    "Range",
    "Shard",
    "ShardLedger",
    "Source",
    "Worker",
    "epochs_of",
    "fingerprint_of",
    "prove",
]
