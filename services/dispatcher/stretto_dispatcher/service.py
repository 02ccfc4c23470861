"""The dispatcher: one shard ledger per job."""

from __future__ import annotations

from typing import Any, ClassVar

from stretto_core.dispatcher import LedgerState, ShardLedger
from stretto_messages.base import Message
from stretto_runtime import Meta, Service

from stretto_dispatcher import handlers
from stretto_dispatcher.settings import DispatcherSettings


class Dispatcher(Service):
    """Leases shards, hears of their progress and end, and says when a job is completed."""

    name = "dispatcher"
    version = ShardLedger.version
    settings_type = DispatcherSettings
    tick_s = 1.0
    state_types: ClassVar[dict[str, type]] = {"job": LedgerState}

    def machine(self, key: str, state: LedgerState | None) -> ShardLedger:
        return ShardLedger(state, self.settings.ledger())

    def to_event(self, message: Message, meta: Meta) -> Any:
        return handlers.to_event(message, meta)

    def to_message(self, key: str, fact: Any) -> Message:
        return handlers.to_message(key, fact)
