"""A worker's trainer against parameter servers that answer by a script."""

import threading
import time
from concurrent.futures import Future

import numpy as np
import pytest
from stretto.engine import KeyBatch, Pulled, PushResult, one_table
from stretto.errors import DataError, ProgressGap, ServerLost, ServersReplaced, StaleAttempt
from stretto.meter import Meter
from stretto.model import Gradients, Prepared
from stretto.training import Stopped, Trainer, Work
from stretto_wire.spec import PIPELINE_FROM_STEP

LAYOUT = one_table(2, 3)
NONE = np.zeros(0, np.float32)


class Program:
    layout = LAYOUT

    def read(self, start, length, partition):
        return {"label": np.arange(start, start + length)}

    def index(self, batch):
        return LAYOUT.index(batch["label"])

    def prepare(self, start, length, partition=""):
        batch = self.read(start, length, partition)
        return Prepared(batch, self.index(batch))

    def step(self, rows, keys, dense, state, batch):
        return Gradients(0.5, rows, dense, NONE)


class Servers:
    """Parameter servers that apply pushes in order. `script`: an error for each coming push, or None for success."""

    def __init__(self):
        self.generation, self.done, self.script = 0, {}, []
        self.pushed, self.resumed, self.at_work = [], [], 0
        self.seen = []  # pushes applied when each pull began

    def begin_pull(self, keys: KeyBatch):
        self.seen.append(len(self.pushed))
        future: Future = Future()
        future.set_result(Pulled((np.zeros((len(keys), 2), np.float32),), np.zeros(3, np.float32), NONE, 1e-3, 5e-4))
        return future

    def progress(self, shard, attempt=0):
        self.resumed.append((shard, attempt))
        return self.done.get(shard, 0)

    def push(self, keys, rows, dense, *, shard, attempt, start, stop, generation=None, **_):
        self.at_work += 1
        assert self.at_work == 1, "one push at a time"
        try:
            error = self.script.pop(0) if self.script else None
            if error is not None:
                raise error
            if generation != self.generation:
                raise ServersReplaced("ask")
            assert start == self.done.get(shard, 0)
            self.done[shard] = stop
            self.pushed.append((shard, start, stop))
            return PushResult(1e-3, 5e-4, 0, 76)
        finally:
            self.at_work -= 1


@pytest.fixture
def servers():
    return Servers()


@pytest.fixture
def trainer(servers):
    trainer = Trainer(Program(), servers, 10, Meter())
    yield trainer
    trainer.close()


@pytest.mark.parametrize("error", [ProgressGap("before it"), StaleAttempt("a higher attempt"), ServersReplaced("new")])
def test_a_refused_push_gives_the_shard_up_and_the_same_lease_resumes(trainer, servers, error):
    servers.script = [None, error]
    stopped = trainer.train(Work(7, 1, 0, 45))
    assert isinstance(stopped, Stopped)
    assert stopped.stale
    assert servers.pushed == [(7, 0, 10)]
    assert servers.resumed == []
    # the ledger answers with the lease again: first attempt, offset 0, and yet 10 samples of it are applied
    assert trainer.train(Work(7, 1, 0, 45)) is None
    assert servers.resumed == [(7, 1)]
    assert [start for _, start, _ in servers.pushed] == [0, 10, 20, 30, 40]
    assert servers.done == {7: 45}


@pytest.mark.parametrize(
    ("pipeline", "steps_before", "misses"),
    [
        (False, PIPELINE_FROM_STEP, False),
        (True, PIPELINE_FROM_STEP - 1, False),
        (True, PIPELINE_FROM_STEP, True),
    ],
)
def test_only_a_pipeline_misses_own_updates_and_a_job_begins_without(servers, pipeline, steps_before, misses):
    def begin_pull(keys: KeyBatch):
        pulled, later = Servers.begin_pull(servers, keys).result(), Future()
        threading.Timer(0.02, later.set_result, [pulled]).start()  # long enough that the next batch is read
        return later

    servers.begin_pull = begin_pull
    trainer = Trainer(Program(), servers, 10, Meter(), pipeline=pipeline)
    assert trainer.train(Work(0, 1, 0, 100, steps_before=steps_before)) is None
    trainer.close()
    missing = [step - seen for step, seen in enumerate(servers.seen)]
    assert max(missing) <= (2 if misses else 0), missing
    assert any(missing) == misses


def test_a_lease_of_before_the_servers_were_replaced_pushes_nothing(trainer, servers):
    servers.generation = 1
    stopped = trainer.train(Work(7, 1, 0, 45, 0, generation=0))
    assert stopped.stale
    assert servers.pushed == []
    assert trainer.train(Work(8, 1, 0, 45, 0, generation=1)) is None


def test_a_push_that_met_a_lost_server_is_repeated_until_others_have_taken_its_place(trainer, servers):
    lost = ServerLost(0, "127.0.0.1:1", "refused")
    servers.script = [None, lost]
    assert trainer.train(Work(7, 1, 0, 20)) is None  # the same server answered again
    servers.script = [None, lost, ServersReplaced("restored")]
    assert trainer.train(Work(8, 1, 0, 20)).stale


def test_a_stop_waits_for_the_push_on_its_way(trainer, servers):
    passed = []
    trainer._passed, trainer._keep_going = passed.append, lambda: len(passed) < 2
    stopped = trainer.train(Work(7, 1, 0, 100))
    assert stopped == Stopped(servers.done[7])
    assert passed == [end for _, _, end in servers.pushed]
    assert stopped.offset < 100


def test_data_that_fail_leave_the_batches_before_them_applied(trainer, servers):
    read = Program.read

    def failing(start, length, partition):
        if start == 20:
            raise DataError("sector 20")
        return read(trainer._program, start, length, partition)

    trainer._program.read = failing
    with pytest.raises(DataError):
        trainer.train(Work(7, 1, 0, 100))
    assert servers.done == {7: 20}


def test_the_wait_for_a_reader_is_a_part_of_its_own(trainer):
    def slow(start, length, partition):
        time.sleep(0.02)
        return {"label": np.arange(start, start + length)}

    trainer._program.read = slow
    assert trainer.train(Work(7, 1, 0, 100)) is None
    window = trainer._meter.window()
    assert window.times.read_s > 0.5 * window.step_s
