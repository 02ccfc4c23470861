"""The stages of a job in one process: real parameter servers, a worker's trainer, and stages that serve its steps."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from stretto.engine import Access, Key, Parameters, ParameterServer
from stretto.model.program import Program
from stretto.parts import FIRST_LAYER, Given, Returned
from stretto.stages.asking import Member, NextStage
from stretto.stages.rows import RowsStage
from stretto.stages.serving import Stage, StageServer
from stretto.worker.step import Trainer, Work
from stretto.worker.step_timer import StepTimer
from stretto_core.dispatcher.book import fingerprint_of


class StagedJob:
    """Parameter servers and later stages of a program, which trains shards of so many samples."""

    def __init__(self, program: Any, batch_size: int, shard_length: int, servers: int = 2) -> None:
        self.program, self.batch_size, self.shard_length = program, batch_size, shard_length
        self.layout = layout = program.layout
        self.access = Access(Key.random())
        self.servers = [ParameterServer(index, layout, key=self.access.key) for index in range(servers)]
        for server, columns in zip(self.servers, np.array_split(np.arange(layout.columns), servers), strict=True):
            server.own(columns.tolist())
        self._closed: list[Callable[[], None]] = []
        self.parameters(0).seed(program.initial_dense(), program.initial_state())

    def parameters(self, worker: int) -> Parameters:
        addresses = {server.index: server.address for server in self.servers}
        found = Parameters(self.layout, addresses, worker=worker, access=self.access, patience_s=5.0)
        self._closed.append(found.close)
        return found

    def following(self, worker: int = 0, patience_s: float = 20.0) -> NextStage:
        found = NextStage(worker, self.access, time.monotonic, patience_s)
        self._closed.append(found.close)
        return found

    def stage(self, worker: int, first_layer: int = FIRST_LAYER, following: NextStage | None = None) -> StageServer:
        stage = Stage(self.program.part, self.layout, first_layer, following or self.following(worker), time.monotonic)
        stage.parameters = self.parameters(worker)
        server = StageServer(stage, "127.0.0.1:0", self.access)
        self._closed.append(server.close)
        return server

    def chain(self, first_layers: list[int]) -> NextStage | None:
        """Return what a worker asks for its steps: one member of each later stage, which begin at these layers."""
        following = None
        for stage, first_layer in reversed([*enumerate(first_layers, 1)]):
            server = self.stage(stage, first_layer, following)
            following = self.following(stage - 1)
            following.use({stage: Member(server.address, first_layer)})
        return following

    def trainer(self, worker: int, following: NextStage | None, **options: Any) -> Trainer:
        """Return a worker's trainer. following: None for one without stages."""
        parameters = self.parameters(worker)
        stage = None if following is None else RowsStage(parameters, following, self.program.part(FIRST_LAYER, None))
        options = {"stage": stage, "pipeline_from_step": 0, **options}
        found = Trainer(self.program, parameters, self.batch_size, StepTimer(), **options)
        self._closed.append(found.close)
        return found

    def work(self, shard: int, attempt: int = 1) -> Work:
        return Work(shard, attempt, shard * self.shard_length, self.shard_length)

    def values(self, ids: Any) -> list[bytes]:
        """Return every number that the servers have of these ids and of the dense parameters."""
        pulled = self.parameters(99).pull(self.layout.index(*[np.asarray(ids)] * len(self.layout.tables)))
        return [each.tobytes() for each in (*pulled.rows, pulled.dense, pulled.state)]

    def check_books(self, shards: range) -> None:
        expected = sum(fingerprint_of(shard, self.shard_length) for shard in shards) % 2**64
        for server in self.servers:
            applied = server.store.applied()
            for column in server.store.columns():
                assert int(applied.samples[column]) == len(shards) * self.shard_length, column
                assert int(applied.fingerprints[column]) % 2**64 == expected, column

    def close(self) -> None:
        for close in reversed(self._closed):
            close()
        for server in self.servers:
            server.close()


def stepped(program: Program, cuts: list[int], batch: Any, keys: Any, rows: Any, dense: Any, state: Any) -> Any:
    """Return loss, gradients of rows, dense gradients and the change of the state, by parts with these cuts."""
    layout = program.layout
    pushed = np.zeros((layout.slices, layout.slice_length), np.float32)
    had = np.zeros(layout.slices, int)
    delta = np.zeros(layout.state_size, np.float32)
    bounds = [FIRST_LAYER, *cuts, None]
    parts = [program.part(first, until) for first, until in itertools.pairwise(bounds)]

    def run(number: int, given: Given) -> Returned:
        part = parts[number]
        known = np.full((layout.slices, layout.slice_length), np.nan, np.float32)
        known[part.pulled] = layout.split_dense(dense)[part.pulled]
        values = layout.join_dense(known)
        found = part.step(given, values, state, lambda crossing: run(number + 1, crossing), contextlib.nullcontext())
        pushed[part.pushed] = layout.split_dense(found.dense)[part.pushed]
        had[part.pushed] += 1
        if len(found.state_delta):
            delta[:] += found.state_delta
        return found.answer

    answer = run(0, Given(rows, keys, batch))
    assert (had == 1).all(), "each slice is one part's to push"
    assert not len(answer.shared)
    return answer.loss, answer.rows, layout.join_dense(pushed), delta


def equal(one: Any, other: Any) -> None:
    """Assert that numbers agree within 1e-6 of the largest."""
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-6 * np.abs(other).max(initial=1e-9))


def trained(program: Program, first_layers: list[int] | None) -> tuple[list[bytes], list[float]]:
    """Train two shards with stages that begin at these layers; return the servers' values and the losses."""
    job = StagedJob(program, 64, 300)
    try:
        trainer = job.trainer(0, None if first_layers is None else job.chain(first_layers), pipeline=False)
        losses: list[float] = []
        for shard in range(2):
            assert trainer.train(job.work(shard)) is None
            losses.append(trainer.last_loss)
        job.check_books(range(2))
        return job.values(np.arange(500)), losses
    finally:
        job.close()
