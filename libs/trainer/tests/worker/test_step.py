"""A worker's trainer against parameter servers that answer by a script."""

import threading
import time
from concurrent.futures import Future

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stretto.batches.feed import Feed
from stretto.engine import Access, KeyBatch, LockedStore, Parameters, ParameterServer, Pulled, PushResult, one_table
from stretto.engine.transfer import Wire
from stretto.errors import DataError, ProgressGap, ServerLost, ServersReplaced, StaleAttempt
from stretto.model.program import Gradients
from stretto.model.reading import Prepared
from stretto.optimizers import SGD
from stretto.worker import look_ahead, pushing, step
from stretto.worker.step import Stopped, Trainer, Work
from stretto.worker.step_timer import StepTimer
from stretto_wire.jobspec.spec import PIPELINE_FROM_STEP

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

    carries_debt = has_cold_rows = in_group = False
    push_every = 1

    def __init__(self):
        self.generation, self.done, self.script = 0, {}, []
        self.pushed, self.resumed, self.at_work = [], [], 0
        self.seen = []  # pushes applied when each pull began

    def begin_pull(self, keys: KeyBatch, is_fresh=False):
        self.seen.append(len(self.pushed))
        future: Future = Future()
        future.set_result(Pulled((np.zeros((len(keys), 2), np.float32),), np.zeros(3, np.float32), NONE, 1e-3, 5e-4))
        return future

    def pull_along(self, keys: KeyBatch, is_fresh=False):
        return None

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
    trainer = Trainer(Program(), servers, 10, StepTimer())
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


def test_a_batch_has_the_same_members_whoever_trains_it(servers):
    """A loss over a batch is of these members: another worker goes on within the shard with the same batches."""
    begun, seen = [10], []

    class Noting(Program):
        def step(self, rows, keys, dense, state, batch):
            seen.append(batch["label"].tolist())
            return super().step(rows, keys, dense, state, batch)

    for keep_going in (lambda: len(servers.pushed) < 2, lambda: True):
        trainer = Trainer(Noting(), servers, 10, StepTimer(), keep_going)
        work = Work(7, len(begun), 100, 45, offset=servers.done.get(7, 0))
        begun.append(10)
        trainer.train(work)
        trainer.close()
    assert servers.done == {7: 45}
    assert list(dict.fromkeys(map(tuple, seen))) == [
        tuple(range(100 + n, 100 + min(n + 10, 45))) for n in range(0, 45, 10)
    ]


@pytest.mark.parametrize(
    ("pipeline", "steps_before", "misses"),
    [(False, PIPELINE_FROM_STEP, False), (True, PIPELINE_FROM_STEP - 1, False), (True, PIPELINE_FROM_STEP, True)],
)
def test_only_a_pipeline_misses_own_updates_and_a_job_begins_without(servers, pipeline, steps_before, misses):
    def begin_pull(keys: KeyBatch, is_fresh=False):
        pulled, later = Servers.begin_pull(servers, keys).result(), Future()
        threading.Timer(0.02, later.set_result, [pulled]).start()  # long enough that the next batch is read
        return later

    servers.begin_pull = begin_pull
    trainer = Trainer(Program(), servers, 10, StepTimer(), pipeline=pipeline)
    assert trainer.train(Work(0, 1, 0, 100, steps_before=steps_before)) is None
    trainer.close()
    missing = [step - seen for step, seen in enumerate(servers.seen)]
    assert max(missing) <= (2 if misses else 0), missing
    assert any(missing) == misses


class Along:
    """A pull that the push brings, once the push is applied."""

    def __init__(self, servers):
        self.servers, self.future = servers, Future()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if not self.future.done():
            self.future.set_result(self.servers.begin_pull(LAYOUT.index(np.arange(10))).result())


class Exchanging(Servers):
    """Servers that answer a pull with each push. along: the pulls; came: what went with each try of a push."""

    def __init__(self):
        super().__init__()
        self.along, self.came = [], []

    def pull_along(self, keys, is_fresh=False):
        self.along.append(Along(self))
        return self.along[-1]

    def push(self, *given, along=None, **named):
        self.came.append(along)
        return super().push(*given, **named)


class Slow(Program):
    """Steps that are long enough that the next batch is read."""

    def step(self, *given):
        time.sleep(0.02)
        return super().step(*given)


@pytest.mark.parametrize("pipeline", [True, False])
def test_once_batches_are_read_in_time_each_push_has_the_pull_of_a_batch_to_come_with_it(pipeline):
    servers = Exchanging()
    trainer = Trainer(Slow(), servers, 10, StepTimer(), pipeline=pipeline)
    assert trainer.train(Work(0, 1, 0, 100, steps_before=PIPELINE_FROM_STEP)) is None
    trainer.close()
    assert len(servers.pushed) == len(servers.came) == 10
    assert [each for each in servers.came if each is not None] == servers.along
    assert servers.along
    assert servers.came[-1] is None, "nothing follows"
    assert len(servers.seen) == 10, "each batch is pulled once"
    if not pipeline:
        assert servers.seen == [*range(10)], "its own updates are in each pull"


def test_a_pull_goes_with_the_first_try_of_a_push_alone(monkeypatch):
    monkeypatch.setattr(pushing, "RETRY_S", 0.0)
    servers = Exchanging()
    servers.script = [ServerLost(0, "127.0.0.1:1", "refused"), None] * 10
    trainer = Trainer(Slow(), servers, 10, StepTimer())
    assert trainer.train(Work(0, 1, 0, 100, steps_before=PIPELINE_FROM_STEP)) is None
    trainer.close()
    assert servers.came[1::2] == [None] * 10
    assert [each for each in servers.came if each is not None] == servers.along


def test_a_push_waits_for_no_batch_that_is_still_read(servers):
    pushed_before = []

    class Slow(Program):
        def prepare(self, start, length, partition=""):
            if start == 20:
                deadline = time.monotonic() + 20
                while len(servers.pushed) < 2 and time.monotonic() < deadline:
                    time.sleep(0.001)
                pushed_before.append(len(servers.pushed))
            return super().prepare(start, length, partition)

    trainer = Trainer(Slow(), servers, 10, StepTimer())
    assert trainer.train(Work(0, 1, 0, 40, steps_before=PIPELINE_FROM_STEP)) is None
    trainer.close()
    assert pushed_before == [2]


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


# --- across the end of a shard ---------------------------------------------------------------------------------


class Recorded(Program):
    """Remembers what is read, in order; the gradient says of which sample it is. `step_s`: what a step takes."""

    step_s = 0.0

    def __init__(self):
        self.prepared = []

    def prepare(self, start, length, partition=""):
        self.prepared.append((partition, start))
        if partition == "bad":
            raise DataError("sector 0")
        return super().prepare(start, length, partition)

    def step(self, rows, keys, dense, state, batch):
        time.sleep(self.step_s)
        return Gradients(0.5, rows, np.full(3, batch["label"][0], np.float32), NONE)


class Checked(Servers):
    """Refuses a gradient of other samples than the push names, and a push that does not end where its shard is cut."""

    def __init__(self, push_every=1):
        super().__init__()
        self.starts, self.lengths, self.push_every = {}, {}, push_every

    def push(self, keys, rows, dense, *, shard, start, stop, batches, **rest):
        begins = range(start, stop, 10)
        assert dense[0] == sum(self.starts[shard] + begin for begin in begins)
        assert batches == len(begins)
        assert start % (10 * self.push_every) == 0
        assert stop == min(start + 10 * self.push_every, self.lengths.get(shard, stop))
        return super().push(keys, rows, dense, shard=shard, start=start, stop=stop, **rest)


@pytest.mark.parametrize("pipeline", [False, True])
def test_the_next_shard_is_read_and_in_a_pipeline_pulled_before_its_lease(pipeline):
    program, servers = Recorded(), Checked()
    servers.starts = {0: 0, 1: 500}
    trainer = Trainer(program, servers, 10, StepTimer(), pipeline=pipeline, pipeline_from_step=0)
    first, second = Work(0, 1, 0, 30), Work(1, 1, 500, 30)
    program.step_s = 0.02  # long enough that the next batch is read
    assert trainer.train(first, second) is None
    assert ("", 500) in program.prepared
    assert len(servers.seen) == (4 if pipeline else 3)
    assert trainer.train(second) is None
    trainer.close()
    assert program.prepared == [("", begin) for begin in (0, 10, 20, 500, 510, 520)], "each once"
    assert [start for _, start, _ in servers.pushed] == [0, 10, 20] * 2
    assert len(servers.seen) == 6


@pytest.mark.parametrize(("kept_s", "shard"), [(0.0, 1), (60.0, 2)])
def test_a_pull_ahead_of_a_shard_that_comes_late_or_under_another_id_is_repeated(monkeypatch, kept_s, shard):
    """A return to a checkpoint leases the same samples anew: the parameters are others, too."""
    monkeypatch.setattr(step, "PULL_KEPT_S", kept_s)
    servers, program = Checked(), Recorded()
    servers.starts = {0: 0, shard: 500}
    program.step_s = 0.02
    trainer = Trainer(program, servers, 10, StepTimer(), pipeline_from_step=0)
    assert trainer.train(Work(0, 1, 0, 30), Work(1, 1, 500, 10)) is None
    assert trainer.train(Work(shard, 1, 500, 10)) is None
    trainer.close()
    assert len(servers.seen) == 5, "of four batches"


class Once(Feed):
    """Refuses to follow a batch twice: a lane may be asked for it twice at once."""

    def follow(self, ranges, ahead=1):
        assert len(set(ranges)) == len(ranges)
        super().follow(ranges, ahead)


STEPS = st.one_of(st.none(), st.integers(1, 3))
PARTS = st.sampled_from(["a", "a", "b", "bad"])


@given(
    st.lists(st.tuples(PARTS, st.integers(0, 2), st.integers(1, 35), st.sampled_from("kbn"), STEPS), max_size=8),
    st.booleans(),
    st.integers(1, 3),
)
@settings(max_examples=150)
def test_whatever_was_promised_each_shard_is_trained_with_its_own_samples(shards, pipeline, push_every):
    """Goal: no promise changes what is trained. Method: promises are kept, broken or not made; shards have the same
    samples or not, stop within, and fail; each batch is pushed, or several at once."""
    servers = Checked(push_every)
    works = [Work(i, 1, 30 * place, length, partition=part) for i, (part, place, length, _, _) in enumerate(shards)]
    servers.starts = {work.shard: work.start for work in works}
    servers.lengths = {work.shard: work.length for work in works}
    left = [0]
    passed = []
    trainer = Trainer(
        Recorded(),
        servers,
        10,
        StepTimer(),
        pipeline=pipeline,
        pipeline_from_step=0,
        keep_going=lambda: len(passed) < left[0],
        passed=passed.append,
        feed=Once(Recorded()),
    )
    try:
        for work, following, (part, _, _, promise, steps) in zip(works, [*works, None][1:], shards, strict=True):
            other = Work(99, 1, 30 * (work.shard % 3), 20, partition="b")
            ahead = {"k": following, "b": other, "n": None}[promise]
            left[0] = 1000 if steps is None else len(passed) + steps
            if part == "bad":
                with pytest.raises(DataError):
                    trainer.train(work, ahead)
                continue
            while trainer.train(work, ahead) is not None:
                left[0] = 1000
            assert servers.done[work.shard] == work.length
    finally:
        trainer.close()
    ends = {work.shard: work.length for work in works if work.partition != "bad"}
    assert servers.done == ends


def trained_with_cold_rows(monkeypatch, is_dropping):
    """Train on a server that says that it has cold rows; return its checksum, and the batches hinted at it."""
    hinted = []
    monkeypatch.setattr(LockedStore, "cold_rows", lambda self: 5)
    monkeypatch.setattr(LockedStore, "hint", lambda self, keys: hinted.append(keys[0].tolist()))
    if is_dropping:
        monkeypatch.setattr(Parameters, "hint", lambda self, keys: None)
    server = ParameterServer(0, LAYOUT)
    server.own(range(LAYOUT.columns))
    parameters = Parameters(LAYOUT, {0: server.address}, worker=0, access=Access(server.key))
    parameters.seed(np.ones(3, np.float32))
    trainer = Trainer(Program(), parameters, 10, StepTimer(), pipeline=False)
    for shard in range(3):
        ahead = Work(shard + 1, 1, 200 * (shard + 1), 200) if shard < 2 else None
        assert trainer.train(Work(shard, 1, 200 * shard, 200), ahead) is None
    trainer.close()
    parameters.close()
    server.close()
    return server.store.checksum(), hinted


def test_hints_come_in_the_order_of_the_batches_and_change_no_bit(monkeypatch):
    checksum, hinted = trained_with_cold_rows(monkeypatch, is_dropping=False)
    batches = [LAYOUT.index(np.arange(start, start + 10)).tables[0].stored.tolist() for start in range(0, 600, 10)]
    numbers = [batches.index(keys) for keys in hinted]
    assert numbers == sorted(set(numbers))
    assert len(numbers) > 3 * look_ahead.LOOK_AHEAD
    assert trained_with_cold_rows(monkeypatch, is_dropping=True) == (checksum, [])


def test_a_worker_that_rounds_leaves_nothing_owed():
    """A worker makes another step if its last push was rounded when it was asked to leave, or when all work ends."""
    paid, leaving = [], []

    class Rounding(Servers):
        carries_debt = True

        def push(self, *args, pays: bool, **named):
            paid.append(pays)
            if len(paid) == 3:
                leaving.append(True)
            return super().push(*args, **named)

    trainer = Trainer(Program(), Rounding(), 10, StepTimer(), lambda: not leaving, pipeline=False)
    assert trainer.train(Work(0, 1, 0, 100)) == Stopped(40)
    assert paid == [False, False, False, True]
    leaving.clear()
    assert trainer.train(Work(0, 2, 0, 100)) is None
    assert paid[4:] == [False] * 5 + [True]
    trainer.close()


# --- several batches in a push ----------------------------------------------------------------------------------


@pytest.mark.parametrize("has_debt", [False, True])
@pytest.mark.parametrize("pipeline", [False, True])
def test_batches_that_wait_for_their_push_when_a_worker_leaves_are_trained_by_the_next(has_debt, pipeline):
    """A worker that owes a rest of rounding makes its push whole and pays; others leave at once."""
    steps, paid = [], []

    class Counting(Recorded):
        def step(self, rows, keys, dense, state, batch):
            steps.append(int(batch["label"][0]))
            return super().step(rows, keys, dense, state, batch)

    class Owing(Checked):
        carries_debt = has_debt

        def push(self, *args, pays, **named):
            paid.append(pays)
            return super().push(*args, **named)

    servers = Owing(push_every=4)
    servers.starts, servers.lengths = {7: 0}, {7: 110}
    trainer = Trainer(
        Counting(), servers, 10, StepTimer(), lambda: len(steps) < 6, pipeline=pipeline, pipeline_from_step=0
    )
    stopped = trainer.train(Work(7, 1, 0, 110))
    trainer.close()
    assert stopped == Stopped(80 if has_debt else 40)
    assert steps == list(range(0, 80 if has_debt else 60, 10))
    assert paid == ([False, True] if has_debt else [False])
    trainer = Trainer(Counting(), servers, 10, StepTimer(), pipeline=pipeline, pipeline_from_step=0)
    assert trainer.train(Work(7, 2, 0, 110, offset=stopped.offset)) is None
    trainer.close()
    assert servers.pushed == [(7, 0, 40), (7, 40, 80), (7, 80, 110)]


def test_each_batch_is_pushed_in_the_first_steps_of_a_job_and_each_is_a_step(servers):
    servers.push_every = 3
    trainer = Trainer(Program(), servers, 10, StepTimer(), pipeline_from_step=5)
    assert trainer.train(Work(0, 1, 0, 45, steps_before=4)) is None
    assert [stop for _, _, stop in servers.pushed] == [10, 20, 30, 40, 45]
    assert trainer.train(Work(1, 1, 45, 45, steps_before=5)) is None
    trainer.close()
    assert servers.pushed[5:] == [(1, 0, 30), (1, 30, 45)]
    window = trainer._meter.window()
    assert (window.steps, window.samples_total) == (10, 90)


def test_several_batches_in_a_push_move_plain_sgd_as_far_as_one_after_another():
    """Gradients do not depend on parameters here, and are whole numbers: sums are exact."""

    class Whole(Program):
        layout = one_table(2, 3, optimizer=SGD(1.0), initial_scale=0.0)

        def read(self, start, length, partition):
            return {"label": np.arange(start, start + length) % 7}

        def step(self, rows, keys, dense, state, batch):
            of_rows = np.repeat(1 + keys.tables[0].stored[:, None] % 5, 2, axis=1).astype(np.float32)
            return Gradients(0.5, (of_rows,), np.full(3, len(batch["label"]), np.float32), NONE)

    def trained(push_every):
        server = ParameterServer(0, Whole.layout)
        server.own(range(Whole.layout.columns))
        wire = Wire(push_every=push_every)
        parameters = Parameters(Whole.layout, {0: server.address}, worker=0, access=Access(server.key), wire=wire)
        parameters.seed(np.zeros(3, np.float32))
        trainer = Trainer(Whole(), parameters, 10, StepTimer(), pipeline_from_step=0)
        assert trainer.train(Work(0, 1, 0, 95)) is None
        assert trainer.train(Work(1, 1, 95, 60)) is None
        pulled, sizes = parameters.pull(LAYOUT.index(np.arange(7))), parameters.step_bytes()
        applied, updates = server.store.applied(), server.store.stats().updates
        for each in (trainer, parameters, server):
            each.close()
        found = pulled.rows[0].tolist(), pulled.dense.tolist(), applied.samples.tolist(), applied.fingerprints.tolist()
        return found, updates, sizes

    (one, updates, sizes), (merged, fewer, merged_sizes) = trained(1), trained(3)
    assert merged == one
    assert (updates, fewer) == (16, 6)
    assert sizes == (0, 0)
    assert 0 < merged_sizes[0] < merged_sizes[1]
