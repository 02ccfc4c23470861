"""The dispatcher: one shard ledger per job."""

from __future__ import annotations

from typing import ClassVar

from stretto_core.checkpoints.names import restore_number
from stretto_core.dispatcher.evaluating import Best, HeldOut
from stretto_core.dispatcher.events import JobOpened, LedgerMark, LedgerRestored, ReturnAsked
from stretto_core.dispatcher.machine import ShardLedger
from stretto_core.dispatcher.source import DataSpec
from stretto_core.dispatcher.state import LedgerSettings, LedgerState
from stretto_messages.base import Message
from stretto_messages.checkpoints import CheckpointRestored
from stretto_messages.dispatcher import MarkLedgerReply, ReturnLedger
from stretto_runtime import Meta, Service
from stretto_runtime.settings import machine_settings
from stretto_wire.contract.submission import JobSubmitted
from stretto_wire.jobspec.spec import JobSpec

from stretto_dispatcher import document
from stretto_dispatcher.settings import DispatcherSettings


class Dispatcher(Service[DispatcherSettings, LedgerState, ShardLedger]):
    """Leases shards to workers, follows their progress, and completes the job."""

    name = "dispatcher"
    version = ShardLedger.version
    settings_type = DispatcherSettings
    tick_s = 1.0
    state_types: ClassVar[dict[str, type]] = {"job": LedgerState}

    def __init__(self, settings: DispatcherSettings) -> None:
        super().__init__(settings)
        self._ledger = machine_settings(LedgerSettings, settings)

    def machine(self, key: str, state: LedgerState | None) -> ShardLedger:
        return ShardLedger(state, self._ledger)

    def to_event(self, message: Message, meta: Meta) -> Message | JobOpened | LedgerRestored | ReturnAsked:
        """Return the job's opening, or the books of a checkpoint; every other message is an event as it is.

        WireError for a document that no ledger wrote.
        """
        if isinstance(message, JobSubmitted):
            return _opened(message, meta.time_s)
        if isinstance(message, CheckpointRestored):
            lineage = restore_number(message.request_id)
            return LedgerRestored(document.read(message.ledger), message.checkpoint.id, lineage)
        if isinstance(message, ReturnLedger):
            books = LedgerRestored(document.read(message.ledger), message.checkpoint)
            return ReturnAsked(message.job, message.pod, books)
        return message

    def to_message(self, key: str, fact: object) -> Message | None:
        """Write the document of a mark; every other fact and reply is a message as it is."""
        if isinstance(fact, LedgerMark):
            ledger = document.written(fact.book)
            return MarkLedgerReply(job=fact.job, answer="ok", ledger=ledger, samples_done=fact.samples_done)
        return super().to_message(key, fact)


def _opened(message: JobSubmitted, time_s: float) -> JobOpened:
    spec, data = message.spec, message.spec.dataset
    # without a name, the data are this job's own: a blank is in no name, so no other job's data are the same, not even
    # those of a job of that name in another installation
    name = data.name or f"of job {message.job} at {time_s:.6f}"
    return JobOpened(
        message.job,
        DataSpec(
            0 if data.growing else data.samples,
            data.batch_size,
            data.batches_per_shard,
            data.shuffle,
            data.seed,
            data.growing,
            name,
        ),
        data.epochs,
        spec.restarts.shard_failures,
        tuple(data.partitions),
        _held_out(spec),
        data.evaluate_first,
        _best(spec),
        spec.level == 1,  # at level 2 the books go back with the parameters, so that nothing counts twice
        spec.level == 2,
    )


def _best(spec: JobSpec) -> Best | None:
    of = spec.best
    return Best(of.metric, of.is_higher_better, of.least_gain, of.patience) if of is not None else None


def _held_out(spec: JobSpec) -> HeldOut | None:
    """Return the samples to evaluate. Without partitions, they follow the samples that train."""
    if spec.evaluate_every_samples is None or not spec.evaluate:
        return None
    start = 0 if spec.dataset.partitioned else spec.dataset.samples
    return HeldOut(spec.evaluate, spec.evaluate_every_samples, start, spec.dataset.held_out or "")
