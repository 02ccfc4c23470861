"""Level 2 against a real ledger: whatever dies, each sample counts once in the parameters that survive."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from pathlib import Path

import pytest
from program_job import BATCH_SIZE, EVERY, SAMPLES, Job, PodOf, stored
from stretto.agent import BATCH, BATCHES, CHECKPOINT, DONE, END, LEAVE, LOAD, REFUSED, RESTORED, SAVE, SAVED, UNSAVED
from stretto.errors import DataError
from stretto.program.batches import Batches
from stretto.program.consistent import Consistent
from stretto.program.kept import KEPT, KeptCheckpoints
from stretto.worker.leases import Leases
from stretto.worker.step_timer import StepTimer
from stretto_messages.dispatcher import ReturnLedgerReply


class Worker:
    """A worker whose program counts in its parameters how often each sample was trained."""

    def __init__(self, job: Job) -> None:
        self.pod = pod = job.new_pod()
        bus = PodOf(job, pod)
        self.job, self.leaving = job, threading.Event()
        self.leases = Leases(bus, self.leaving)  # type: ignore[arg-type]
        self.batches = Batches(self.leases, StepTimer(), BATCH_SIZE, self.leaving, consistent=True)
        self.left = range(0)
        """Samples of the last answer that this worker has not taken."""
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
        if not self.left:
            word, *numbers = self.batches.next(several=True).split(" ")
            if word not in (BATCH, BATCHES):
                return word
            self.left = range(int(numbers[0]), int(numbers[1]))
        batch, self.left = self.left[:BATCH_SIZE], self.left[BATCH_SIZE:]
        self.parameters.update(batch)
        self.since += 1
        self.taken = batch
        return BATCH

    def save(self, until: str = "") -> str:
        if self.left:
            self.batches.took(self.taken.start, self.taken.stop)
            self.left = range(0)
        word, _, folder = self.kept.answer(CHECKPOINT).partition(" ")
        if word != SAVE or until == SAVE:
            return word
        Path(folder, "parameters.json").write_text(json.dumps(self.parameters))
        if until == "written":
            return until
        word = self.kept.answer(SAVED).partition(" ")[0]
        self.since = 0
        return word


def survivor(job: Job, seed: int) -> Counter[int]:
    """Train to the end while workers are killed, also while they save, and zombies go on; return the parameters."""
    dice = random.Random(seed)
    worker, zombie = Worker(job), None
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
            worker = Worker(job)
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
    job = Job(tmp_path, shard_batches=4)
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
    first = Worker(job)
    for _ in range(5):
        first.train()
    job.exited("worker-1")
    second = Worker(job)
    second.load()
    assert not second.parameters
    assert job.done == 0
    while second.train() == BATCH:
        pass
    assert second.parameters == dict.fromkeys(range(SAMPLES), 2)


def test_who_does_not_load_the_parameters_gets_no_batch(tmp_path: Path) -> None:
    job = Job(tmp_path)
    first = Worker(job)
    assert first.kept.refusal == ""
    first.train()
    assert first.save() == DONE
    second = Worker(job)
    assert "call stretto.agent.restored(load) before samples(): the job goes on from j-000001" in second.kept.refusal
    second.load()
    assert second.kept.refusal == ""


def test_a_save_that_fails_leaves_the_checkpoint_before_it(tmp_path: Path) -> None:
    job = Job(tmp_path)
    worker = Worker(job)
    worker.train()
    assert worker.save() == DONE
    trained = Counter(worker.parameters)
    worker.train()
    assert worker.save(until="written") == "written"
    assert worker.kept.answer(UNSAVED) == DONE
    assert worker.kept.answer(SAVED).startswith(REFUSED), "nothing is being saved"
    again = Worker(job)
    again.load()
    assert again.parameters == trained


def test_only_the_last_checkpoints_are_kept(tmp_path: Path) -> None:
    worker = Worker(Job(tmp_path))
    for _ in range(5):
        worker.train()
        assert worker.save() == DONE
    assert sorted(path.name for path in tmp_path.iterdir()) == ["j-000004", "j-000005"]
    assert KEPT == 2


def test_a_loop_that_is_left_in_a_batch_ends_the_program(tmp_path: Path) -> None:
    worker = Worker(Job(tmp_path))
    worker.train()
    worker.batches.forget()
    assert worker.batches.next().startswith(f"{REFUSED} the loop over samples() was left in the middle of a batch")
    assert worker.kept.answer(CHECKPOINT).startswith(REFUSED)


def test_nothing_is_saved_before_the_first_batch(tmp_path: Path) -> None:
    assert Worker(Job(tmp_path)).kept.answer(CHECKPOINT).startswith(f"{REFUSED} no batch was taken yet")


def test_a_lease_that_another_worker_has_ends_the_program(tmp_path: Path) -> None:
    job = Job(tmp_path)
    worker = Worker(job)
    worker.train()
    job.ledger.state.workers["worker-1"].lease.attempt += 1  # type: ignore[union-attr]
    assert worker.save() == LEAVE
    assert worker.batches.lost
    assert worker.train() == LEAVE


def test_a_shard_that_is_reported_too_late_ends_the_program(tmp_path: Path) -> None:
    job = Job(tmp_path)
    worker = Worker(job)
    worker.train()
    worker.train()
    assert job.ledger.state.workers["worker-1"].lease.length == 2 * BATCH_SIZE  # type: ignore[union-attr]
    job.expired("worker-1")
    assert worker.train() == LEAVE, "its parameters have a shard that is handed out again"
    assert worker.save() == LEAVE


def test_parameters_alone_do_not_go_back(tmp_path: Path) -> None:
    worker = Worker(Job(tmp_path))
    worker.load()
    worker.train()
    assert worker.save() == DONE
    assert worker.kept.answer(RESTORED).startswith(f"{REFUSED} a batch was taken already")


def test_a_worker_waits_until_its_books_have_gone_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(tmp_path)
    first = Worker(job)
    for _ in range(3):
        first.train()
    assert first.save() == DONE
    for _ in range(9):
        first.train()
    answers = [ReturnLedgerReply(job="j", answer="unknown")]
    call = job.call
    monkeypatch.setattr(job, "call", lambda *asked: answers.pop() if answers else call(*asked))
    Worker(job)
    assert not answers
    assert job.done == 2 * BATCH_SIZE, "the whole shards at the checkpoint"


def test_what_a_killed_worker_began_to_save_is_removed(tmp_path: Path) -> None:
    job = Job(tmp_path)
    killed = Worker(job)
    killed.train()
    assert killed.save(until="written") == "written"
    (tmp_path / ".worker-0.gone" / "parameters").mkdir(parents=True)
    Worker(job)
    assert [path.name for path in tmp_path.iterdir()] == ["j-000000"]
    assert killed.kept.answer(SAVED).startswith(f"{REFUSED} the checkpoint cannot be stored")
    assert [path.name for path in tmp_path.iterdir()] == ["j-000000"]


def test_a_folder_that_was_taken_away_while_it_was_written_is_no_checkpoint(tmp_path: Path) -> None:
    """Whoever saves may make the folder that it writes to, if it is not there, as `save_pretrained` does."""
    slow = KeptCheckpoints(f"file://{tmp_path}", "j", "worker-1")
    folder = slow.begin()
    (folder / "model.pt").write_text("model")
    KeptCheckpoints(f"file://{tmp_path}", "j", "worker-2").clear()
    folder.mkdir(parents=True)
    (folder / "optimizer.pt").write_text("optimizer")
    with pytest.raises(FileNotFoundError):
        slow.complete("{}", 140)
    assert slow.last() is None


def test_a_store_without_its_checkpoints_is_not_taken_for_a_beginning(tmp_path: Path) -> None:
    job = Job(tmp_path / "store")
    (tmp_path / "store").mkdir()
    worker = Worker(job)
    worker.train()
    worker.train()
    worker.leases.beat()
    job.folder = tmp_path
    with pytest.raises(DataError, match="10 samples are trained, and no checkpoint of this job is in its store"):
        Worker(job)


def test_a_checkpoint_of_another_job_of_this_name_is_not_taken_for_one_of_this_job(tmp_path: Path) -> None:
    worker = Worker(Job(tmp_path, "of job j at 1"))
    worker.train()
    assert worker.save() == DONE
    with pytest.raises(DataError, match=r"checkpoint is .j-000001.; .* another job of this name has used this store"):
        Worker(Job(tmp_path, "of job j at 2"))


def test_a_job_whose_program_keeps_no_checkpoints_keeps_its_books(tmp_path: Path) -> None:
    """Any worker may ask, whatever its program is: only a job of level 2 has books that go back."""
    worker = Worker(Job(tmp_path, returns=True))
    worker.train()
    assert worker.save() == DONE
    with pytest.raises(DataError, match=r"job is .j.; .* one whose program keeps checkpoints, at level 2"):
        Worker(Job(tmp_path, returns=False))


def test_a_store_that_is_no_folder_is_refused() -> None:
    with pytest.raises(DataError, match=r"the store of this installation, s3://bucket/x, is none"):
        KeptCheckpoints("s3://bucket/x", "j", "worker-0")
