"""A live job goes on, exactly, while its dispatcher is replaced by one of the next version, and that one again."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
from stretto_core.dispatcher.machine import ShardLedger
from stretto_core.dispatcher.state import LedgerState
from stretto_core.machine import Action
from stretto_dispatcher.service import Dispatcher
from stretto_messages.dispatcher import JobCompleted
from stretto_runtime.owner.tenure.terms import fence_subject, terms
from stretto_runtime.streams import BusStreams, read
from stretto_wire.contract.excerpts import Excerpt
from stretto_wire.contract.registry import partition_of

from tests.integration.live_job import live_job

pytestmark = pytest.mark.slow

JOB, SAMPLES = "upgraded", 48_000
MODEL = """
import time

import keras
import numpy as np


class Slow:
    def build(self):
        rows = keras.Input((2, 8), name="rows")
        return keras.Model(rows, keras.layers.Dense(1)(keras.layers.Flatten()(rows)))

    def read(self, start, length):
        time.sleep(0.02)
        ids = np.random.default_rng(start).integers(0, 50, (length, 2))
        return {"label": (ids[:, 0] % 2).astype(np.float32), "categorical": ids}
"""
SPEC = {
    "name": JOB,
    "model": {"entry": "slow_of_a_test:Slow", "embedding_dim": 8},
    "dataset": {"samples": SAMPLES, "batch_size": 128, "batches_per_shard": 2},
}


@dataclass
class NextState(LedgerState):
    """The books with one field more, which follows from the others."""

    held: dict[str, int] = field(default_factory=dict[str, int])


class NextLedger(ShardLedger):
    version = ShardLedger.version + 1
    storage_version = ShardLedger.version

    @staticmethod
    def migrate(state: dict[str, Any], from_version: int) -> dict[str, Any]:
        workers = state["workers"].items()
        return {**state, "held": {name: worker["lease"]["id"] for name, worker in workers if worker["lease"]}}

    @staticmethod
    def migrate_back(state: dict[str, Any], to_version: int) -> dict[str, Any]:
        return {name: value for name, value in state.items() if name != "held"}

    def handle(self, event: Any, now: float) -> list[Action]:
        actions = super().handle(event, now)
        assert isinstance(self.state, NextState)
        self.state.held = {name: worker.lease.id for name, worker in self.state.workers.items() if worker.lease}
        return actions


class NextDispatcher(Dispatcher):
    version = NextLedger.version
    state_types: ClassVar[dict[str, type]] = {"job": NextState}

    def machine(self, key: str, state: LedgerState | None) -> ShardLedger:
        return NextLedger(state or NextState(), self._ledger)


async def test_a_live_job_outlives_an_upgrade_and_its_way_back_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: each successor starts beside its predecessor, which then leaves; the job trains on under each of them."""
    async with live_job(tmp_path, monkeypatch, ("slow_of_a_test", MODEL), SPEC) as job:
        done = [(await job.has_done(4_000)).samples_done]
        for number, kind in enumerate([NextDispatcher, Dispatcher]):
            job.start(kind)
            await job.has_done(done[-1] + 4_000)
            await job.replicas[number].leave()
            done.append((await job.has_done((await job.has_done(0)).samples_done + 4_000)).samples_done)
        assert done[-1] < SAMPLES
        told = await job.has_done(SAMPLES)
        assert told.samples_done == SAMPLES
        assert not job.faults(told)
        said = [event.message async for event in job.client.events(follow=False)]
        assert len([message for message in said if isinstance(message, JobCompleted)]) == 1
        fences = Excerpt(subject=(fence_subject("dispatcher", partition_of(JOB)),))
        owners = [term.version for term in terms(await read(BusStreams(job.client.bus), fences))]
        assert [*dict.fromkeys(owners)] == [ShardLedger.version, NextLedger.version]
        assert owners[0] == owners[-1] == ShardLedger.version
    assert job.ended == [0]
