"""Level 2 against a real ledger: whatever dies, each sample counts once in the parameters that survive."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from ledger_bus import LedgerBus
from stretto.agent import BATCH, CHECKPOINT, DONE, END, LEAVE, LOAD, REFUSED, RESTORED, SAVE, SAVED, UNSAVED
from stretto.errors import CallRefused, DataError
from stretto.program.batches import Batches
from stretto.program.consistent import Consistent
from stretto.program.kept import KEPT, KeptCheckpoints
from stretto.worker.leases import Leases
from stretto.worker.step_timer import StepTimer
from stretto_core.dispatcher.events import JobOpened, LedgerMark, LedgerRestored, ReturnAsked
from stretto_core.dispatcher.source import DataSpec, LedgerError
from stretto_core.machine import Tick
from stretto_dispatcher import document
from stretto_messages.actuator import PodExited
from stretto_messages.dispatcher import MarkLedgerReply, ReturnLedger, ReturnLedgerReply

SAMPLES, BATCH_SIZE, EVERY = 1_000, 10, 7


class Job(LedgerBus):
    """A ledger, behind the dispatcher's documents."""

    def __init__(self, folder: Path, data: str = "", *, returns: bool = True) -> None:
        super().__init__()
        self.ledger = type(self.ledger)()
        self.tell(JobOpened("j", DataSpec(SAMPLES, BATCH_SIZE, 2, name=data), 2, returns=returns))
        self.folder, self.workers = folder, 0
        self.repeated: list[int] = []

    def call(self, request: Any, reply: Any, timeout_s: float) -> Any:
        if isinstance(request, ReturnLedger):
            books = LedgerRestored(document.read(request.ledger), request.checkpoint)
            request = ReturnAsked(request.job, request.pod, books)
        try:
            found = self.tell(request)
        except LedgerError as error:
            raise CallRefused(str(error)) from error
        if isinstance(found, LedgerMark):
            return MarkLedgerReply(
                job=found.job, answer="ok", ledger=document.written(found.book), samples_done=found.samples_done
            )
        return found

    def worker(self) -> Worker:
        self.workers += 1
        return Worker(self, f"worker-{self.workers}")

    def expired(self, pod: str) -> None:
        """Give the shard of a worker back that was not heard for too long, as the next tick does."""
        worker = self.ledger.state.workers[pod]
        worker.heard_at_s = worker.moved_at_s = -1e6
        self.tell(Tick())

    def exited(self, pod: str) -> None:
        self.tell(PodExited(job="j", pod=pod, role="worker", reason="killed", exit_code=137))

    @property
    def done(self) -> int:
        return self.ledger.state.book.samples_done  # type: ignore[union-attr]


class Worker:
    """A worker whose program counts in its parameters how often each sample was trained."""

    def __init__(self, job: Job, pod: str) -> None:
        bus = PodOf(job, pod)
        self.job, self.pod, self.leaving = job, pod, threading.Event()
        self.leases = Leases(bus, self.leaving)  # type: ignore[arg-type]
        self.batches = Batches(self.leases, StepTimer(), BATCH_SIZE, self.leaving, consistent=True)
        kept = KeptCheckpoints(f"file://{job.folder}", "j", pod)
        self.kept = Consistent(bus, self.leases, self.batches, kept, self.leaving)  # type: ignore[arg-type]
        self.kept.begin()
        self.parameters = Counter[int]()
        self.since = 0

    def load(self) -> None:
        word, _, folder = self.kept.answer(RESTORED).partition(" ")
        if word == LOAD:
            self.parameters = stored(Path(folder))

    def train(self) -> str:
        word, *numbers = self.batches.next().split(" ")
        if word == BATCH:
            self.parameters.update(range(*map(int, numbers)))
            self.since += 1
        return word

    def save(self, until: str = "") -> str:
        word, _, folder = self.kept.answer(CHECKPOINT).partition(" ")
        if word != SAVE or until == SAVE:
            return word
        Path(folder, "parameters.json").write_text(json.dumps(self.parameters))
        if until == "written":
            return until
        word = self.kept.answer(SAVED).partition(" ")[0]
        self.since = 0
        return word


def stored(folder: Path) -> Counter[int]:
    """Return the parameters of a checkpoint."""
    told = json.loads((folder / "parameters.json").read_text())
    return Counter({int(sample): count for sample, count in told.items()})


class PodOf:
    """The bus of one worker."""

    def __init__(self, job: Job, pod: str) -> None:
        self._job, self.job, self.pod = job, "j", pod

    def request_id(self, kind: Any) -> str:
        return f"{self.pod}.{self._job.request_id(kind)}"

    def call(self, request: Any, reply: Any, timeout_s: float) -> Any:
        return self._job.call(request, reply, timeout_s)


def survivor(job: Job, seed: int) -> Counter[int]:
    """Train to the end while workers are killed, also while they save, and zombies go on; return the parameters."""
    dice = random.Random(seed)
    worker, zombie = job.worker(), None
    worker.load()
    while True:
        if dice.random() < 0.06:
            job.repeated.append(worker.since)
            until = dice.choice(["", SAVE, "written"])
            if until and worker.leases.shard is not None:
                worker.save(until)
            zombie = worker
            if dice.random() < 0.5:  # else nobody has noticed that it is gone, such as on a node that is lost
                job.exited(worker.pod)
            worker = job.worker()
            worker.load()
        if zombie is not None and dice.random() < 0.3 and zombie.leases.shard is not None:
            assert zombie.save() == LEAVE, "its lease was taken back when the ledger returned"
        word = worker.train()
        if word == END:
            assert worker.save() == DONE
            return worker.parameters
        assert word == BATCH
        if worker.since >= EVERY:
            assert worker.save() == DONE


@pytest.mark.parametrize("seed", range(20))
def test_each_sample_counts_once_in_the_parameters_that_survive(seed: int, tmp_path: Path) -> None:
    job = Job(tmp_path)
    parameters = survivor(job, seed)
    assert parameters == dict.fromkeys(range(SAMPLES), 2), "two epochs: none lost, none counted twice"
    assert job.repeated, "nobody was killed"
    assert max(job.repeated) <= EVERY, "no more than one interval is trained again"
    assert job.done == 2 * SAMPLES
    last = KeptCheckpoints(f"file://{tmp_path}", "j", "worker-0").last()
    assert last is not None
    assert last.parameters is not None
    assert stored(last.parameters) == parameters, "the last checkpoint has them"


def test_without_a_checkpoint_a_job_goes_back_to_its_beginning(tmp_path: Path) -> None:
    job = Job(tmp_path)
    first = job.worker()
    for _ in range(5):
        first.train()
    job.exited("worker-1")
    second = job.worker()
    second.load()
    assert not second.parameters
    assert job.done == 0
    while second.train() == BATCH:
        pass
    assert second.parameters == dict.fromkeys(range(SAMPLES), 2)


def test_who_does_not_load_the_parameters_gets_no_batch(tmp_path: Path) -> None:
    job = Job(tmp_path)
    first = job.worker()
    assert first.kept.refusal == ""
    first.train()
    assert first.save() == DONE
    second = job.worker()
    assert "call stretto.agent.restored(load) before samples(): the job goes on from j-000001" in second.kept.refusal
    second.load()
    assert second.kept.refusal == ""


def test_a_save_that_fails_leaves_the_checkpoint_before_it(tmp_path: Path) -> None:
    job = Job(tmp_path)
    worker = job.worker()
    worker.train()
    assert worker.save() == DONE
    trained = Counter(worker.parameters)
    worker.train()
    assert worker.save(until="written") == "written"
    assert worker.kept.answer(UNSAVED) == DONE
    assert worker.kept.answer(SAVED).startswith(REFUSED), "nothing is being saved"
    again = job.worker()
    again.load()
    assert again.parameters == trained


def test_only_the_last_checkpoints_are_kept(tmp_path: Path) -> None:
    worker = Job(tmp_path).worker()
    for _ in range(5):
        worker.train()
        assert worker.save() == DONE
    assert sorted(path.name for path in tmp_path.iterdir()) == ["j-000004", "j-000005"]
    assert KEPT == 2


def test_a_loop_that_is_left_in_a_batch_ends_the_program(tmp_path: Path) -> None:
    worker = Job(tmp_path).worker()
    worker.train()
    worker.batches.forget()
    assert worker.batches.next().startswith(f"{REFUSED} the loop over samples() was left in the middle of a batch")
    assert worker.kept.answer(CHECKPOINT).startswith(REFUSED)


def test_nothing_is_saved_before_the_first_batch(tmp_path: Path) -> None:
    assert Job(tmp_path).worker().kept.answer(CHECKPOINT).startswith(f"{REFUSED} no batch was taken yet")


def test_a_lease_that_another_worker_has_ends_the_program(tmp_path: Path) -> None:
    job = Job(tmp_path)
    worker = job.worker()
    worker.train()
    job.ledger.state.workers["worker-1"].lease.attempt += 1  # type: ignore[union-attr]
    assert worker.save() == LEAVE
    assert worker.batches.lost
    assert worker.train() == LEAVE


def test_a_shard_that_is_reported_too_late_ends_the_program(tmp_path: Path) -> None:
    job = Job(tmp_path)
    worker = job.worker()
    worker.train()
    worker.train()
    assert job.ledger.state.workers["worker-1"].lease.length == 2 * BATCH_SIZE  # type: ignore[union-attr]
    job.expired("worker-1")
    assert worker.train() == LEAVE, "its parameters have a shard that is handed out again"
    assert worker.save() == LEAVE


def test_parameters_alone_do_not_go_back(tmp_path: Path) -> None:
    worker = Job(tmp_path).worker()
    worker.load()
    worker.train()
    assert worker.save() == DONE
    assert worker.kept.answer(RESTORED).startswith(f"{REFUSED} a batch was taken already")


def test_a_worker_waits_until_its_books_have_gone_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(tmp_path)
    first = job.worker()
    for _ in range(3):
        first.train()
    assert first.save() == DONE
    for _ in range(9):
        first.train()
    answers = [ReturnLedgerReply(job="j", answer="unknown")]
    call = job.call
    monkeypatch.setattr(job, "call", lambda *asked: answers.pop() if answers else call(*asked))
    job.worker()
    assert not answers
    assert job.done == 2 * BATCH_SIZE, "the whole shards at the checkpoint"


def test_what_a_killed_worker_began_to_save_is_removed(tmp_path: Path) -> None:
    job = Job(tmp_path)
    killed = job.worker()
    killed.train()
    assert killed.save(until="written") == "written"
    (tmp_path / ".worker-0.gone" / "parameters").mkdir(parents=True)
    job.worker()
    assert [path.name for path in tmp_path.iterdir()] == ["j-000000"]
    assert killed.kept.answer(SAVED).startswith(f"{REFUSED} the checkpoint cannot be stored")
    assert [path.name for path in tmp_path.iterdir()] == ["j-000000"]


def test_a_store_without_its_checkpoints_is_not_taken_for_a_beginning(tmp_path: Path) -> None:
    job = Job(tmp_path / "store")
    (tmp_path / "store").mkdir()
    worker = job.worker()
    worker.train()
    worker.train()
    worker.leases.beat()
    job.folder = tmp_path
    with pytest.raises(DataError, match="10 samples are trained, and no checkpoint of this job is in its store"):
        job.worker()


def test_a_checkpoint_of_another_job_of_this_name_is_not_taken_for_one_of_this_job(tmp_path: Path) -> None:
    worker = Job(tmp_path, "of job j at 1").worker()
    worker.train()
    assert worker.save() == DONE
    with pytest.raises(DataError, match=r"checkpoint is .j-000001.; .* another job of this name has used this store"):
        Job(tmp_path, "of job j at 2").worker()


def test_a_job_whose_program_keeps_no_checkpoints_keeps_its_books(tmp_path: Path) -> None:
    """Any worker may ask, whatever its program is: only a job of level 2 has books that go back."""
    worker = Job(tmp_path, returns=True).worker()
    worker.train()
    assert worker.save() == DONE
    with pytest.raises(DataError, match=r"job is .j.; .* one whose program keeps checkpoints, at level 2"):
        Job(tmp_path, returns=False).worker()


def test_a_store_that_is_no_folder_is_refused() -> None:
    with pytest.raises(DataError, match=r"the store of this installation, s3://bucket/x, is none"):
        KeptCheckpoints("s3://bucket/x", "j", "worker-0")
