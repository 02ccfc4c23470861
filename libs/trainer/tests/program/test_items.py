"""Items that data workers compute for a program: the same numbers whoever computes them, and whoever dies meanwhile."""

from __future__ import annotations

import math
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import stretto.agent
from stretto import items
from stretto.engine.link import Access
from stretto.errors import DataError, StrettoError
from stretto.items import SharedItems, Took
from stretto.pod.process import Pod
from stretto.program import far_items
from stretto.program.asked import AskedSocket
from stretto.program.far_items import FarItems
from stretto.program.item_server import ItemServer, Kind
from stretto.program.telemetry import Telemetry
from stretto.worker.step_timer import StepTime
from stretto_plane import Connection, Key, Listener, PeerFailed
from stretto_wire import JobSpec
from trainer_harness import wait_for

HOME, AWAY = "home", "away"
TRIAL_SHARE = items._TRIAL_SHARE
KEY = Key.random()
ACCESS = Access(KEY, False)


class Squares:
    """Items that say where they were computed. ``wrong``: of that one an error comes."""

    def __init__(self, where: str, wrong: int | None = None) -> None:
        self.where, self.wrong = where, wrong
        self.computed = list[int]()
        self.goes_on = threading.Event()
        self.goes_on.set()

    def __len__(self) -> int:
        return 100

    def __getitem__(self, number: int) -> tuple[int, str]:
        if number == self.wrong:
            raise ValueError(f"no square of {number}")
        self.computed.append(number)
        assert self.goes_on.wait(60)
        return number * number, self.where


class DataWorker:
    """A data worker whose program is a thread."""

    def __init__(self, folder: Path, dataset: Squares) -> None:
        folder.mkdir()
        job = {"name": "j", "program": {"command": ["train"]}, "dataset": {"samples": 100, "batch_size": 4}}
        settings = SimpleNamespace(spec=JobSpec.parse(job), job="j", pod="data-0", cpu_cores=1.0, memory_bytes=2**30)
        self.reports, self.announced = list[Any](), threading.Event()
        bus = SimpleNamespace(report=self.reports.append)
        pod = SimpleNamespace(
            settings=settings, bus=bus, ready=lambda _: self.announced.set(), report_by=lambda _: None, access=ACCESS
        )
        self.server, self.dataset = ItemServer(cast("Pod", pod)), dataset
        self.listener = Listener(f"unix:{folder}/plane.sock", self.server._handle, KEY, size_bytes_max=2**20)
        self.address = self.server._address = self.listener.address
        path = self.server._asked.listen(folder)
        self.program = threading.Thread(target=self._serve, args=(path,), daemon=True)
        self.program.start()
        assert self.announced.wait(60)

    def _serve(self, path: str) -> None:
        with pytest.raises(SystemExit):
            items.serve(self.dataset, path, 1)


class Worker:
    """A worker, and the items of its program."""

    def __init__(self, folder: Path, dataset: Squares) -> None:
        folder.mkdir()
        self.took = list[Took]()
        self.far = FarItems(cast("Pod", SimpleNamespace(access=ACCESS)), self.took.append)
        asked = AskedSocket(lambda _: "", lambda: None, dict.fromkeys((items.ITEMS, items.TOOK), self.far.serve))
        self.items = SharedItems(dataset, asked.listen(folder))

    def take(self, numbers: range, likely: range | None = None) -> list[tuple[int, str]]:
        items.likely[:] = [likely] if likely else []
        return [*self.items.__getitems__(numbers)]


@pytest.fixture(autouse=True)
def pieces_of_one(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Items here take no time, and are asked for one by one all the same."""
    monkeypatch.setattr(items, "_LEAST_S", 0.0)
    monkeypatch.setattr(items, "_PIECE_S", 0.0)
    monkeypatch.setattr(items, "_LATE_S", 60.0)
    monkeypatch.setattr(items, "_ALONE_S", 0.0)
    monkeypatch.setattr(items, "_TRIAL_SHARE", math.inf)
    yield
    items.likely.clear()


@pytest.fixture
def data_worker(tmp_path: Path) -> Iterator[Callable[..., DataWorker]]:
    made = list[DataWorker]()

    def make(wrong: int | None = None) -> DataWorker:
        made.append(DataWorker(tmp_path / f"data-{len(made)}", Squares(AWAY, wrong)))
        return made[-1]

    yield make
    for each in made:
        each.dataset.goes_on.set()
        each.server._asked.hang_up()
        each.listener.close()


def squares(numbers: range, where: str) -> list[tuple[int, str]]:
    return [(number * number, where) for number in numbers]


def test_a_batch_is_computed_away_while_the_step_before_it_runs(
    tmp_path: Path, data_worker: Callable[..., DataWorker]
) -> None:
    away, worker = data_worker(), Worker(tmp_path / "worker", Squares(HOME))
    worker.far.use([away.address])
    assert len(worker.items) == 100
    assert worker.items[3] == (9, HOME)
    assert worker.take(range(4), range(4, 8)) == squares(range(4), HOME), "nobody knows yet what an item takes"
    wait_for(lambda: len(away.dataset.computed) == 4)
    assert worker.take(range(4, 8)) == squares(range(4, 8), AWAY)
    away.server._report()
    assert (away.reports[0].lanes, away.reports[0].batches) == (1, 1)
    assert away.reports[0].busy_s > 0


def test_what_no_data_worker_has_begun_is_computed_at_home(
    tmp_path: Path, data_worker: Callable[..., DataWorker]
) -> None:
    away, home = data_worker(), Squares(HOME)
    worker = Worker(tmp_path / "worker", home)
    worker.far.use([away.address])
    away.dataset.goes_on.clear()
    worker.take(range(4), range(4, 8))
    wait_for(lambda: away.dataset.computed == [4])
    home.computed.clear()
    threading.Timer(0.0, lambda: wait_for(lambda: home.computed == [7, 6, 5]) and away.dataset.goes_on.set()).start()
    assert worker.take(range(4, 8)) == [*squares(range(4, 5), AWAY), *squares(range(5, 8), HOME)]


def test_another_batch_than_the_likely_one_is_the_right_one(
    tmp_path: Path, data_worker: Callable[..., DataWorker]
) -> None:
    away, worker = data_worker(), Worker(tmp_path / "worker", Squares(HOME))
    worker.far.use([away.address])
    worker.take(range(4), range(4, 8))
    for numbers in (range(20, 25), range(4, 8)):
        assert [square for square, _ in worker.take(numbers)] == [number * number for number in numbers]


def test_a_data_worker_that_dies_is_left_until_there_are_others(
    tmp_path: Path, data_worker: Callable[..., DataWorker]
) -> None:
    away, worker = data_worker(), Worker(tmp_path / "worker", Squares(HOME))
    worker.far.use([away.address])
    away.dataset.goes_on.clear()
    worker.take(range(4), range(4, 8))
    wait_for(lambda: away.dataset.computed == [4])
    threading.Thread(target=away.listener.close, daemon=True).start()
    assert worker.take(range(4, 8)) == squares(range(4, 8), HOME)
    assert worker.take(range(8, 12)) == squares(range(8, 12), HOME)
    other = data_worker()
    worker.far.use([other.address])
    worker.take(range(12, 16), range(16, 20))
    wait_for(lambda: {*range(16, 20)} <= {*other.dataset.computed})
    assert worker.take(range(16, 20)) == squares(range(16, 20), AWAY)


def test_a_data_worker_that_cannot_be_reached_is_tried_again(
    tmp_path: Path, data_worker: Callable[..., DataWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(far_items, "AGAIN_S", 0.01)
    worker = Worker(tmp_path / "worker", Squares(HOME))
    worker.far.use([f"unix:{tmp_path}/data-0/plane.sock"])
    worker.take(range(4), range(4, 8))
    away = data_worker()
    wait_for(lambda: len(away.dataset.computed) == 4)
    assert worker.take(range(4, 8)) == squares(range(4, 8), AWAY)


def test_in_other_processes_the_data_set_is_itself(tmp_path: Path, data_worker: Callable[..., DataWorker]) -> None:
    away, worker = data_worker(), Worker(tmp_path / "worker", Squares(HOME))
    worker.far.use([away.address])
    worker.items._process = 0  # as in a fork, which has this connection, too
    assert worker.take(range(4), range(4, 8)) == worker.take(range(4)) == squares(range(4), HOME)
    assert (worker.items.where, away.dataset.computed) == (HOME, [])
    assert type(pickle.loads(pickle.dumps(Worker(tmp_path / "other", cast("Squares", [5])).items))) is list


def test_an_item_that_fails_fails_where_it_is_wanted(tmp_path: Path, data_worker: Callable[..., DataWorker]) -> None:
    away, worker = data_worker(wrong=5), Worker(tmp_path / "worker", Squares(HOME, wrong=5))
    worker.far.use([away.address])
    worker.take(range(4), range(4, 8))
    wait_for(lambda: len(away.dataset.computed) == 3)
    with pytest.raises(ValueError, match="no square of 5"):
        worker.take(range(4, 8))
    with Connection(away.address, KEY, timeout_s=60.0) as connection:
        with pytest.raises(PeerFailed, match="ValueError: no square of 5"):
            connection.call(Kind.ITEMS, [b"5"])
        with pytest.raises(PeerFailed, match="asked for by their numbers"):
            connection.call(Kind.ITEMS, [b"5\nnext"])


def test_a_process_of_a_data_worker_that_is_gone_ends_the_pod(data_worker: Callable[..., DataWorker]) -> None:
    away = data_worker()
    away.server._asked.hang_up()
    away.program.join(60)
    with (
        Connection(away.address, KEY, timeout_s=60.0) as connection,
        pytest.raises(PeerFailed, match="the process that computed items 5 is gone"),
    ):
        connection.call(Kind.ITEMS, [b"5"])
    assert "it was killed, or ended in their code" in away.server._broken


class Clock:
    """Seconds that pass only in items."""

    now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def thread_time(self) -> float:
        return self.now_s / 2


def timed(monkeypatch: pytest.MonkeyPatch, worker: Worker, own_s: float, far_s: float) -> tuple[Clock, list[str]]:
    """Return a clock, and the lines by which the program asks. Each item takes so long here, and away in vain."""
    clock, sent = Clock(), list[str]()
    monkeypatch.setattr(items, "time", clock)

    def computed(_: object, numbers: Any) -> list[int]:
        clock.now_s += own_s * len(numbers)
        return [*numbers]

    def answered(batch: Any, piece: int, _: float) -> None:
        clock.now_s += far_s
        batch.came[piece] = b"not a pickle"

    monkeypatch.setattr(items, "_items", computed)
    monkeypatch.setattr(worker.items, "_receive", answered)
    monkeypatch.setattr(worker.items, "_send", lambda lines: lines.startswith(items.TOOK) or not sent.append(lines))
    return clock, sent


def test_cheap_items_are_never_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(items, "_LEAST_S", 0.001)
    worker = Worker(tmp_path / "worker", Squares(HOME))
    _, sent = timed(monkeypatch, worker, own_s=0.0002, far_s=0.0)
    for _ in range(10):
        assert worker.take(range(4), range(4)) == [0, 1, 2, 3]
    assert not sent


def test_data_workers_that_do_not_pay_are_tried_for_a_small_part_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(tmp_path / "worker", Squares(HOME))
    monkeypatch.setattr(items, "_TRIAL_SHARE", TRIAL_SHARE)
    clock, sent = timed(monkeypatch, worker, own_s=0.01, far_s=0.01)
    began_s, steps = clock.now_s, 1000
    for _ in range(steps):
        worker.take(range(4), range(4))
    assert sent
    assert clock.now_s - began_s <= steps * 0.04 * 1.03


def test_what_items_take_is_told_now_and_then(
    tmp_path: Path, data_worker: Callable[..., DataWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    away, worker = data_worker(), Worker(tmp_path / "worker", Squares(HOME))
    worker.far.use([away.address])
    worker.take(range(4), range(4, 8))
    wait_for(lambda: len(away.dataset.computed) == 4)
    monkeypatch.setattr(items, "_TOLD_EVERY_S", 0.0)
    worker.take(range(4, 8))
    (told,) = wait_for(lambda: worker.took)
    assert (told.items, told.away) == (8, 4)
    assert told.waited_s > 4 * told.own_s > 0
    assert told.own_cpu_s > 0
    monkeypatch.setattr(items, "_TOLD_EVERY_S", 1e9)
    worker.take(range(4))
    assert Took.read(worker.items._took.line().removeprefix(f"{items.TOOK} ")) == worker.items._took
    assert worker.items._took.items == 4, "what was told is not told again"


@pytest.mark.parametrize("line", ["1 2 0.1 0.1 0.1", "2 1 nan 0.1 0.1", "2 1 -1.0 0.1 0.1", "2 1 0.1 0.1", "a 1 0 0 0"])
def test_what_items_took_is_refused_where_it_cannot_be(line: str) -> None:
    with pytest.raises(ValueError):
        Took.read(line)


def test_a_workers_report_says_how_long_its_program_waits_for_items() -> None:
    reports = list[Any]()
    job = {"name": "j", "program": {"command": ["train"]}, "dataset": {"samples": 100, "batch_size": 4}}
    settings = SimpleNamespace(
        spec=JobSpec.parse(job), job="j", pod="worker-0", plan_version=1, cpu_cores=1.0, memory_bytes=2**30
    )
    pod = SimpleNamespace(settings=settings, bus=SimpleNamespace(report=reports.append))
    telemetry = Telemetry(cast("Pod", pod))
    for begun_s in (0.0, 0.5):
        telemetry.took(Took(items=4, away=3, waited_s=0.3, own_s=0.1, own_cpu_s=0.05))
        telemetry.meter.step(begun_s, begun_s + 0.5, 4, StepTime())
    telemetry._report()
    telemetry.meter.step(1.0, 1.2, 4, StepTime())
    telemetry._report()
    read_s = [report.times.read_s for report in reports]
    assert read_s == [pytest.approx(0.3), pytest.approx(0.2)], "of a step, and at most the step"
    assert (reports[0].prepared_elsewhere, reports[0].prepare_s) == (0.75, pytest.approx(0.4))
    assert reports[0].prepare_cpu_s == pytest.approx(0.2)


@pytest.mark.parametrize("function", [lambda: next(stretto.agent.samples()), lambda: stretto.agent.restored(print)])
def test_a_data_worker_has_no_samples(function: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(stretto.agent.ADDRESS_VARIABLE, "/nowhere/agent.sock")
    monkeypatch.setenv(stretto.agent.PREPARES_VARIABLE, "1")
    with pytest.raises(StrettoError, match=r"call stretto\.agent\.prepared\(dataset\) before samples"):
        function()


def test_a_data_set_is_shared_once_and_only_under_stretto(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(stretto.agent.ADDRESS_VARIABLE, raising=False)
    dataset = Squares(HOME)
    assert stretto.agent.prepared(dataset) is dataset
    path = AskedSocket(lambda _: "", lambda: None).listen(tmp_path)
    monkeypatch.setenv(stretto.agent.ADDRESS_VARIABLE, path)
    monkeypatch.setattr(stretto.agent, "_prepared", [])
    assert stretto.agent.prepared(dataset)[2] == (4, HOME)
    with pytest.raises(StrettoError, match="prepared was called before"):
        stretto.agent.prepared(dataset)
    with pytest.raises(StrettoError, match="generator has no items by number"):
        stretto.agent.prepared(iter(range(3)) and (number for number in range(3)))


def test_a_job_of_level_0_has_no_items() -> None:
    spec = JobSpec.parse({"name": "j", "program": {"command": ["train"]}})
    pod = SimpleNamespace(settings=SimpleNamespace(spec=spec, cpu_cores=1.0))
    with pytest.raises(DataError, match=r"level 0 .* leave resources\.data out"):
        ItemServer(cast("Pod", pod)).run()


def test_tensors_travel_as_their_bytes_and_come_back_the_same() -> None:
    torch = pytest.importorskip("torch")
    sent = [torch.rand(2, 3), torch.tensor(3), torch.rand(2, 3).bfloat16(), torch.tensor([True, False])]
    sent += [torch.zeros(0), torch.rand(3, 4).t(), torch.rand(2, requires_grad=True), torch.nn.Parameter(torch.rand(2))]
    body = items._pickled([sent])
    (came,) = cast("list[Any]", items._unpickled(bytearray(body), 1))
    for ours, theirs in zip(sent, came, strict=True):
        assert torch.equal(ours, theirs)
        assert (type(ours), ours.dtype, ours.shape) == (type(theirs), theirs.dtype, theirs.shape)
        assert ours.requires_grad == theirs.requires_grad
    assert len(items._pickled(sent[:4])) < 400, "PyTorch's own way takes 300 bytes for each"
    came[0].add_(1)
