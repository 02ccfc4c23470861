"""Workers that compute for others: as one worker alone, bit for bit, and exactly once whatever is lost when."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from staged import StagedJob
from stretto.engine import KeyBatch, Own, PushResult, one_table
from stretto.engine.pulling import PULL_KEPT_S
from stretto.errors import ModelRefused
from stretto.model.program import Gradients, WholePart
from stretto.model.reading import Prepared
from stretto.parts import FIRST_LAYER, Given, Part, Returned
from stretto.stages import serving
from stretto.stages.asking import Member
from stretto.stages.messages import Asked, OtherBooks, StageMessage, StepRefused, read_refusal, read_step, step_request
from stretto.stages.serving import Stage, StageServer
from stretto_parameters import Claim, InputRefused
from stretto_parameters.optimizers import Adagrad
from stretto_pipeline.arrays import Reader, Writer
from stretto_plane import Connection

LAYOUT = one_table(2, 30, state_size=2, seed=3, optimizer=Adagrad(0.1))
BATCH, SHARD = 8, 44
"""Samples of a batch and of a shard, whose last batch is a short one."""


class Program:
    """Gradients that depend on every number that is given."""

    layout = LAYOUT

    def read(self, start: int, length: int, partition: str = "") -> dict[str, Any]:
        return {"label": np.arange(start, start + length) % 7}

    def index(self, batch: dict[str, Any]) -> KeyBatch:
        return LAYOUT.index(np.stack([batch["label"], batch["label"] * 3], axis=1))

    def prepare(self, start: int, length: int, partition: str = "") -> Prepared:
        batch = self.read(start, length)
        return Prepared(batch, self.index(batch))

    def step(self, rows: Sequence[np.ndarray], keys: KeyBatch, dense: Any, state: Any, batch: Any) -> Gradients:
        gathered = rows[0][keys.tables[0].inverse].mean() + batch["label"].mean()
        of_rows = (rows[0] * np.float32(0.5) + dense.sum()).astype(np.float32)
        of_dense = (dense * np.float32(0.25) + gathered + state.sum()).astype(np.float32)
        return Gradients(float(gathered), (of_rows,), of_dense, np.full(2, 0.01, np.float32), (of_rows**2 * 2,))

    def initial_dense(self) -> np.ndarray:
        return np.linspace(-1, 1, LAYOUT.dense_size, dtype=np.float32)

    def initial_state(self) -> np.ndarray:
        return np.ones(2, np.float32)

    def part(self, first: int, until: int | None) -> Part:
        assert (first, until) == (FIRST_LAYER, None)
        return WholePart(self)


@pytest.fixture
def job() -> Iterator[StagedJob]:
    found = StagedJob(Program(), BATCH, SHARD)
    yield found
    found.close()


def trained(members: int | None, **options: Any) -> tuple[list[bytes], list[float]]:
    """Train three shards with a worker, and so many that it asks; return the servers' values and the losses."""
    job = StagedJob(Program(), BATCH, SHARD)
    try:
        following = None if members is None else job.following()
        if following is not None:
            servers = {index: job.stage(index) for index in range(1, (members or 0) + 1)}
            following.use({index: Member(server.address, FIRST_LAYER) for index, server in servers.items()})
        trainer = job.trainer(0, following, **{"pipeline": False, **options})
        losses: list[float] = []
        for shard in range(3):
            assert trainer.train(job.work(shard)) is None
            losses.append(trainer.last_loss)
        job.check_books(range(3))
        return job.values(np.arange(20)), losses
    finally:
        job.close()


@pytest.mark.parametrize("members", [0, 1, 3])
def test_stages_train_as_one_worker_bit_for_bit(members: int) -> None:
    assert trained(members) == trained(None)


def test_the_pipeline_has_each_batch_once_too() -> None:
    assert len(trained(2, pipeline=True)[1]) == 3


@pytest.mark.parametrize("seed", range(50))
def test_each_column_has_each_batch_once_whoever_is_lost_when(job: StagedJob, seed: int) -> None:
    """Goal: nothing is lost or repeated. Method: workers train shards by members of which one vanishes within a step,
    answers get lost, requests come twice and late; a worker is lost, and another one trains what it has left."""
    chance = random.Random(seed)
    askers, members = chance.choice((1, 2)), chance.choice((1, 2, 3))
    late: list[threading.Thread] = []
    served = {
        index: _unreliable(job.stage(index), random.Random(f"{seed} {index}"), late)
        for index in range(10, 10 + members)
    }
    vanishing = threading.Timer(chance.uniform(0.0, 0.1), served[chance.choice([*served])].close)
    failed: list[BaseException] = []

    def train(number: int) -> None:
        """Train shard ``number``; worker 0 is lost within it, and the next attempt is another worker's."""
        steps_left = [chance.randrange(6) if number == 0 else 10**6]

        def keep_going() -> bool:
            steps_left[0] -= 1
            return steps_left[0] >= 0

        try:
            for attempt in (1, 2):
                following = job.following(number, patience_s=0.5)
                following.use({index: Member(server.address, FIRST_LAYER) for index, server in served.items()})
                trainer = job.trainer(number + attempt, following, keep_going=keep_going)
                if trainer.train(job.work(number, attempt)) is None:
                    return
                steps_left[0] = 10**6
        except BaseException as error:
            failed.append(error)

    threads = [vanishing, *(threading.Thread(target=train, args=(number,)) for number in range(askers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for thread in late:
        thread.join(60)
    assert not failed
    job.check_books(range(askers))


def _unreliable(server: StageServer, chance: random.Random, late: list[threading.Thread]) -> StageServer:
    """Serve so that answers get lost after their pushes, and steps are computed twice, the second time late."""
    step = server.stage.step

    def unreliable(asked: Any) -> Returned:
        answer = step(asked)
        if chance.random() < 0.2:
            late.append(threading.Thread(target=_again, args=(step, asked, chance.uniform(0.0, 0.05))))
            late[-1].start()
        if chance.random() < 0.2:
            raise RuntimeError("the answer is lost")
        return answer

    server.stage.step = unreliable  # type: ignore[method-assign]
    return server


def _again(step: Callable[[Any], Returned], asked: Any, pause_s: float) -> None:
    time.sleep(pause_s)
    with contextlib.suppress(Exception):
        step(asked)


def test_a_member_that_hangs_or_leaves_is_left_for_another(job: StagedJob) -> None:
    release = threading.Event()
    hanging, leaving, good = (job.stage(index) for index in (1, 2, 3))
    hanging.stage.step = lambda _: release.wait(60) and None  # type: ignore[method-assign,assignment,return-value]
    leaving.stage.is_leaving = True
    counted: list[int] = []
    step = good.stage.step
    good.stage.step = lambda asked: (counted.append(1), step(asked))[1]  # type: ignore[method-assign]
    following = job.following(patience_s=1.0)
    following.use({n: Member(server.address, FIRST_LAYER) for n, server in ((1, hanging), (2, leaving), (3, good))})
    try:
        assert job.trainer(0, following).train(job.work(0)) is None
    finally:
        release.set()
    assert len(counted) == -(-SHARD // BATCH), "each step was computed by the one that answers"
    job.check_books(range(1))


def test_a_member_that_hangs_is_not_waited_for_at_each_step(job: StagedJob) -> None:
    release, asked = threading.Event(), list[Any]()
    hanging = job.stage(1)
    hanging.stage.step = lambda each: asked.append(each) or (release.wait(60) and None)  # type: ignore[method-assign,assignment,return-value,func-returns-value]
    following = job.following(patience_s=0.1)
    following.use({1: Member(hanging.address, FIRST_LAYER)})
    try:
        assert job.trainer(0, following).train(job.work(0)) is None
    finally:
        release.set()
    assert len(asked) == 1
    assert following.first_layer is None, "it is avoided for a while"
    job.check_books(range(1))


def test_a_stage_pulls_once_and_then_each_push_brings_what_the_next_step_takes(job: StagedJob) -> None:
    server = job.stage(1)
    assert server.stage.parameters is not None
    server.stage.clock = lambda: 0.0  # however slow this machine is
    pull, pulled = server.stage.parameters.pull_slices, list[Any]()
    server.stage.parameters.pull_slices = lambda of: pulled.append(of) or pull(of)  # type: ignore[method-assign,func-returns-value]
    following = job.following()
    following.use({1: Member(server.address, FIRST_LAYER)})
    trainer = job.trainer(0, following)
    assert trainer.train(job.work(0)) is None
    assert len(pulled) == 1
    assert job.trainer(0, following, pipeline=False).train(job.work(1)) is None
    assert len(pulled) == 1 + -(-SHARD // BATCH), "without a pipeline no push of others is missing"


def test_a_step_without_a_pipeline_brings_no_values_for_the_next_one(job: StagedJob) -> None:
    server, came = job.stage(1), list[Any]()
    assert server.stage.parameters is not None
    push = server.stage.parameters.push
    server.stage.parameters.push = lambda *given, **named: came.append(named["along"]) or push(*given, **named)  # type: ignore[method-assign,func-returns-value]
    following = job.following()
    following.use({1: Member(server.address, FIRST_LAYER)})
    assert job.trainer(0, following, pipeline=False).train(job.work(0)) is None
    assert came == [None] * -(-SHARD // BATCH)


def test_a_member_of_the_release_before_is_asked_for_steps_as_that_knows_them(
    job: StagedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It refuses the kind of a step in a pipeline once, and then computes each step."""
    server, kinds = job.stage(1), list[int]()

    def read_before(kind: int, parts: Sequence[Any], reader: Reader) -> Asked:
        kinds.append(kind)
        if kind == StageMessage.STEP_IN_PIPELINE:
            raise InputRefused("a message of kind 3: of another version of Stretto?")
        return read_step(kind, parts, reader)

    monkeypatch.setattr(serving, "read_step", read_before)
    following = job.following()
    following.use({1: Member(server.address, FIRST_LAYER)})
    assert job.trainer(0, following).train(job.work(0)) is None
    assert kinds == [StageMessage.STEP_IN_PIPELINE, *[StageMessage.STEP] * -(-SHARD // BATCH)]
    job.check_books(range(1))


def test_values_that_came_with_a_push_serve_one_step_of_the_same_layers_and_servers_within_a_second(
    job: StagedJob,
) -> None:
    now_s = [0.0]
    stage = Stage(job.program.part, LAYOUT, FIRST_LAYER, job.following(), lambda: now_s[0])
    part, values, other = stage.part(None), job.parameters(1).pull_slices(None), WholePart(job.program)
    assert stage.take_newest(part, 1) is None
    stage.note(part, 1, values)
    assert stage.take_newest(part, 1) is values
    assert stage.take_newest(part, 1) is None, "a step has had them"
    for asked, generation, at_s in ((part, 2, 0.0), (other, 1, 0.0), (part, 1, PULL_KEPT_S)):
        now_s[0] = 0.0
        stage.note(part, 1, values)
        now_s[0] = at_s
        assert stage.take_newest(asked, generation) is None


def test_errors_of_a_batch_are_the_workers_own(job: StagedJob) -> None:
    def diverged(*_: Any) -> Gradients:
        raise ModelRefused("the loss is nan: training diverged; lower model.learning_rate or check the loss")

    job.program.step = diverged
    with pytest.raises(ModelRefused, match="the loss is nan"):
        job.trainer(0, job.chain([FIRST_LAYER])).train(job.work(0))


def test_a_stale_lease_is_dropped_by_what_the_stage_is_told(job: StagedJob) -> None:
    job.parameters(5).progress(0, 2)  # another worker has the second attempt
    stopped = job.trainer(0, job.chain([FIRST_LAYER])).train(job.work(0))
    assert stopped is not None
    assert stopped.stale


def test_columns_that_move_meanwhile_have_each_batch_once(job: StagedJob) -> None:
    """A stage and a worker may know other owners of columns; each reads them anew when the other's books differ."""
    trainer = job.trainer(0, job.chain([FIRST_LAYER]))
    assert trainer.train(job.work(0)) is None
    frozen = LAYOUT.buckets + 3
    server = next(each for each in job.servers if frozen in each.store.columns())
    server.store.set_own([frozen], Own.FROZEN, Own.MINE)
    threading.Timer(0.1, server.store.set_own, ([frozen], Own.MINE, Own.FROZEN)).start()
    assert trainer.train(job.work(1)) is None
    job.check_books(range(2))


def test_a_step_is_asked_for_once_the_push_of_the_one_before_is_over(job: StagedJob) -> None:
    """A worker computes its first step alone, and finds a member for the second one while the first push is slow."""
    server, following, order = job.stage(1), job.following(), list[str]()

    def keep_going() -> bool:
        following.use({1: Member(server.address, FIRST_LAYER)})  # called before the first push begins
        return True

    trainer = job.trainer(0, following, keep_going=keep_going)
    step, push = server.stage.step, trainer._parameters.push

    def slow(*given: Any, **named: Any) -> PushResult:
        time.sleep(0.1)
        order.append("pushed")
        return push(*given, **named)

    trainer._parameters.push = slow  # type: ignore[method-assign]
    server.stage.step = lambda asked: (order.append("asked"), step(asked))[1]  # type: ignore[method-assign]
    assert trainer.train(job.work(0)) is None
    assert order == ["pushed", *["asked"] * (-(-SHARD // BATCH) - 1)]
    job.check_books(range(1))


def asked_of(job: StagedJob, books: str) -> Asked:
    prepared = job.program.prepare(0, BATCH)
    rows = tuple(np.zeros((len(of), 2), np.float32) for of in prepared.keys.tables)
    return Asked(Claim(0, 1, 0, BATCH), books, 0, None, FIRST_LAYER, Given(rows, prepared.keys, prepared.batch))


def test_what_a_stage_cannot_compute_is_refused_and_pushes_nothing(job: StagedJob) -> None:
    stage, asked = job.stage(1).stage, asked_of(job, "of other servers")
    with pytest.raises(OtherBooks, match="servers that this stage does not know"):
        stage.step(asked)
    with pytest.raises(StepRefused, match="layer 2 is asked for, and this stage begins with 1"):
        stage.step(asked._replace(first_layer=2))
    stage.parameters = None
    with pytest.raises(StepRefused, match="no parameter servers are known here yet"):
        stage.step(asked)
    job.check_books(range(0))


def test_a_step_that_every_stage_takes_for_one_of_other_servers_is_computed_by_the_worker(job: StagedJob) -> None:
    server = job.stage(1)

    def refuse(_: Any) -> Returned:
        raise OtherBooks("the lease is of servers that this stage does not know")

    server.stage.step = refuse  # type: ignore[method-assign]
    following = job.following()
    following.use({1: Member(server.address, FIRST_LAYER)})
    assert job.trainer(0, following).train(job.work(0)) is None
    job.check_books(range(1))


def test_whatever_arrives_is_answered_and_ends_no_stage(job: StagedJob) -> None:
    server = job.stage(1)
    head = np.zeros(7, np.int64)
    with Connection(server.address, job.access.key, timeout_s=20.0) as connection:
        for kind, parts in ((9, []), (StageMessage.STEP, [b"1"]), (StageMessage.STEP, [head, b"", b"{", b"1", b""])):
            assert connection.call(kind, parts).kind == StageMessage.REFUSED
        request = step_request(asked_of(job, job.parameters(7).routes.current().books), Writer())
        assert connection.call(StageMessage.STEP, request).kind == StageMessage.ANSWER
        assert read_refusal([]).args == ("",)
