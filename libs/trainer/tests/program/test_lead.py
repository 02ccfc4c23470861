"""The ranks of one program against a real ledger: whoever dies, whoever comes, and when."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from pathlib import Path

import pytest
from program_job import BATCH_SIZE, EVERY, SAMPLES, Job, PodOf, stored
from stretto.agent import BATCH, CHECKPOINT, DONE, END, LEAVE, LOAD, NEXT, REFUSED, RESTORED, SAVE, SAVED, UNSAVED
from stretto.errors import BusError
from stretto.program import lead as leading
from stretto.program.batches import Batches
from stretto.program.consistent import Consistent
from stretto.program.kept import KeptCheckpoints
from stretto.program.lead import AGAIN, BLAMED, GO, SPARED, Lead
from stretto.worker.leases import Leases
from stretto.worker.step_timer import StepTimer
from stretto_messages.base import Message
from stretto_messages.dispatcher import ReleaseShard
from stretto_plane import Peer

RANKS_MAX = 3


class Ranks:
    """A group of ranks, and the program of each. All parameters are the same after each step, as those of DDP are."""

    def __init__(self, job: Job, first: str, count: int, *, consistent: bool = True) -> None:
        self.job, self.count, self.pod = job, count, first
        self.stop, self.now_s = threading.Event(), 0.0
        bus = PodOf(job, first)
        leases = Leases(bus, self.stop)  # type: ignore[arg-type]
        batches = Batches(
            leases,
            StepTimer(),
            count * BATCH_SIZE,
            self.stop,
            consistent=consistent,
            least=RANKS_MAX,
            release_s=2.0,
            tells_likely=True,
        )
        kept = KeptCheckpoints(f"file://{job.folder}", "j", first)
        saves = Consistent(bus, leases, batches, kept, self.stop) if consistent else None  # type: ignore[arg-type]
        self.lead = Lead(count, leases, batches, saves, self.stop, lambda: self.now_s)
        for rank in range(count):
            assert self.lead.join(rank) == AGAIN
        assert self.lead.is_complete
        self.lead.begin("127.0.0.1", 7)
        assert self.lead.join(0) == f"{GO} 127.0.0.1 7"
        self.parameters = Counter[int]()
        self.trained = Counter[int]()
        self.since = 0
        self.is_over = False
        self.parts, self.likely = list[range](), list[range]()
        """The last step of each rank, and the one that most likely follows."""
        self._number = 0

    def ask(self, requests: list[str]) -> list[str]:
        """Return the answers to a request of each rank; the first one asks last, and decides for all."""
        self._number += 1
        answers = [self.lead.ask(rank, self._number, requests[rank]) for rank in reversed(range(self.count))]
        again = [self.lead.ask(rank, self._number, requests[rank]) for rank in range(self.count)]
        assert all(new in (old, new) for old, new in zip(reversed(answers), again, strict=True))
        return again

    def load(self) -> None:
        for word, folder in (answer.split() for answer in self.ask([RESTORED] * self.count) if answer != DONE):
            assert word == LOAD
            self.parameters = stored(Path(folder))

    def step(self, killed: bool = False) -> str:
        """Train a step; ``killed``: some ranks have trained it when a worker dies, and the parameters are lost."""
        answers = [answer.split() for answer in self.ask([NEXT] * self.count)]
        words = {word for word, *_ in answers}
        assert len(words) == 1, "no rank has a step more than another one"
        if (word := words.pop()) != BATCH:
            self.is_over = True
            return word
        self.parts = parts = [range(int(first), int(stop)) for _, first, stop, *_ in answers]
        self.likely = [range(*map(int, likely)) for _, _, _, *likely in answers if likely]
        sizes = [len(part) for part in parts]
        assert min(sizes) >= 1
        assert max(sizes) - min(sizes) <= 1
        assert max(sizes) <= BATCH_SIZE
        for part in parts:
            self.trained.update(part)
            if not killed:
                self.parameters.update(part)
        self.since += 1
        return BATCH

    def save(self, until: str = "", alone: bool = False) -> str:
        others = [NEXT if alone else CHECKPOINT] * (self.count - 1)
        first, *rest = self.ask([CHECKPOINT, *others])
        word, _, folder = first.partition(" ")
        if word != SAVE:
            return word
        assert self.is_over or rest == [AGAIN] * len(rest), "they wait until rank 0 has saved"
        if until == SAVE:
            return word
        Path(folder, "parameters.json").write_text(json.dumps(self.parameters))
        if until == "written":
            return until
        done = self.lead.ask(0, self._number + 1, SAVED)
        others = [self.lead.ask(rank, self._number, CHECKPOINT) for rank in range(1, self.count)]
        assert alone or self.is_over or others == [done] * len(rest)
        self._number += 1
        self.since = 0
        return done.partition(" ")[0]

    def end(self) -> None:
        self.lead.end()
        self.lead.close(None)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for the other ranks: they are asked one after the other."""
    monkeypatch.setattr(leading, "WAIT_S", 0.0)


class Fate:
    """The workers of a job, which are killed, and resized in between, by the dice of a seed."""

    def __init__(self, job: Job, seed: int, *, consistent: bool) -> None:
        self.job, self.dice, self.consistent = job, random.Random(seed), consistent
        self.pods = [job.new_pod() for _ in range(2)]
        self.ranks = Ranks(job, self.pods[0], 2, consistent=consistent)
        self.zombie: Ranks | None = None
        self.trained = Counter[int]()
        self.kills = self.resizes = 0

    def again(self) -> None:
        """Begin the next group."""
        self.trained += self.ranks.trained
        self.ranks = Ranks(self.job, self.pods[0], len(self.pods), consistent=self.consistent)
        if self.consistent:
            self.ranks.load()

    def kill(self) -> None:
        """Kill one worker, in the middle of a step, between two, or while rank 0 saves."""
        when = self.dice.choice(["between", "step", SAVE, "written"])
        if when == "step" and self.ranks.step(killed=True) == END:
            return  # who is lost after the last sample fails the job
        self.kills += 1
        self.job.repeated.append(self.ranks.since)
        if when in (SAVE, "written") and self.consistent and self.ranks.lead.leases.shard is not None:
            self.ranks.save(until=when)
        gone = self.dice.randrange(len(self.pods))
        if gone:
            self.ranks.end()
        elif self.consistent and self.dice.random() < 0.5:  # nobody has noticed, and its ranks go on
            self.zombie = self.ranks
        else:
            self.job.exited(self.pods[0])
        del self.pods[gone]
        self.pods.append(self.job.new_pod())

    def resize(self) -> None:
        """Tell all ranks to leave before one step; at level 2 they save once more."""
        self.resizes += 1
        self.ranks.stop.set()
        assert self.ranks.step() in (LEAVE, END)
        if self.consistent:
            assert self.ranks.save(alone=True) == (DONE if self.ranks.trained else REFUSED)
        self.ranks.end()
        count = self.dice.randint(1, RANKS_MAX)
        self.pods = [*self.pods, *(self.job.new_pod() for _ in range(RANKS_MAX))][:count]

    def run(self) -> Counter[int]:
        """Train to the end; return the parameters."""
        while True:
            what = self.dice.random()
            if what < 0.12 and not self.ranks.lead.batches.ended:
                (self.kill if what < 0.06 else self.resize)()
                if not self.ranks.is_over or self.ranks.stop.is_set():
                    self.again()
            if self.zombie is not None and self.dice.random() < 0.3 and self.zombie.lead.leases.shard is not None:
                assert self.zombie.save() == LEAVE, "its lease was taken back when the ledger returned"
            word = self.ranks.step()
            if word == END:
                assert not self.consistent or self.ranks.save() == DONE
                self.ranks.end()
                self.trained += self.ranks.trained
                return self.ranks.parameters
            assert word == BATCH
            if self.consistent and self.ranks.since >= EVERY:
                assert self.ranks.save(alone=self.dice.random() < 0.5) == DONE


@pytest.mark.parametrize("seed", range(20))
def test_each_sample_counts_once_in_the_parameters_of_all_ranks(seed: int, tmp_path: Path) -> None:
    job = Job(tmp_path, shard_batches=6)
    fate = Fate(job, seed, consistent=True)
    parameters = fate.run()
    assert parameters == dict.fromkeys(range(SAMPLES), 2), "two epochs: none lost, none counted twice"
    assert fate.kills + fate.resizes, "nobody was killed and nothing resized"
    assert max(job.repeated, default=0) <= EVERY, "no more than one interval is trained again"
    last = KeptCheckpoints(f"file://{tmp_path}", "j", "worker-0").last()
    assert last is not None
    assert last.parameters is not None
    assert stored(last.parameters) == parameters


@pytest.mark.parametrize("seed", range(20))
def test_without_checkpoints_no_sample_is_lost_and_repeated_ones_are_counted(seed: int, tmp_path: Path) -> None:
    job = Job(tmp_path, returns=False, shard_batches=6)
    fate = Fate(job, seed, consistent=False)
    fate.run()
    assert min(fate.trained[sample] for sample in range(SAMPLES)) >= 2
    repeated = sum(count - 2 for count in fate.trained.values())
    assert repeated <= job.ledger.state.samples_recomputed
    assert job.done == 2 * SAMPLES


def ranks(folder: Path, count: int = 2, *, consistent: bool = True) -> Ranks:
    job = Job(folder, returns=consistent, shard_batches=6)
    return Ranks(job, job.new_pod(), count, consistent=consistent)


def test_a_rank_alone_gets_no_step_before_the_others_ask(tmp_path: Path) -> None:
    made = ranks(tmp_path, 3)
    assert made.lead.ask(0, 1, NEXT) == AGAIN
    assert made.lead.ask(2, 1, NEXT) == AGAIN
    assert made.lead.ask(1, 1, NEXT) == AGAIN, "the first one decides"
    answers = [made.lead.ask(rank, 1, NEXT).split() for rank in range(3)]
    assert [word for word, *_ in answers] == [BATCH] * 3
    assert [int(stop) - int(first) for _, first, stop, *_ in answers] == [BATCH_SIZE] * 3
    assert [made.lead.ask(rank, 1, NEXT).split() for rank in range(3)] == answers, "the same request, the same answer"


def test_a_step_begins_as_soon_as_the_last_rank_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leading, "WAIT_S", 60.0)
    monkeypatch.setattr(leading, "LOOK_S", 60.0)
    made = ranks(tmp_path)
    answers = dict[int, str]()

    def ask(rank: int) -> None:
        answers[rank] = made.lead.ask(rank, 1, NEXT)

    threads = [threading.Thread(target=ask, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(answers) == [0, 1]
    assert made.lead.leases.shard is not None


def test_who_waits_is_told_to_leave_once_another_rank_is_gone(tmp_path: Path) -> None:
    made = ranks(tmp_path)
    peer = Peer("rank 1")
    made.lead.join(1, peer)
    assert made.lead.ask(0, 1, NEXT) == AGAIN
    del peer  # its connection is over
    assert made.lead.ask(0, 1, NEXT) == AGAIN, "it may connect again"
    made.now_s = leading.GONE_S
    assert made.lead.ask(0, 1, NEXT) == LEAVE


def test_a_step_that_a_lost_rank_was_in_is_in_no_checkpoint(tmp_path: Path) -> None:
    made = Ranks(Job(tmp_path, shard_batches=6), "worker-1", 2)
    peer = Peer("rank 1")
    made.lead.join(1, peer)
    assert made.lead.ask(1, 1, NEXT, peer) == AGAIN
    assert [made.lead.ask(0, 1, NEXT)[:5], made.lead.ask(1, 1, NEXT, peer)[:5]] == [BATCH, BATCH]
    del peer  # rank 1 is killed in this step: it never asks again
    assert made.lead.ask(0, 2, NEXT) == AGAIN
    made.now_s = leading.GONE_S
    assert made.lead.ask(0, 2, NEXT) == LEAVE
    assert made.lead.ask(0, 3, CHECKPOINT) == LEAVE


def test_what_comes_back_is_told_until_it_is_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pod goes on, and would get the shard under its old lease, with samples that nobody counts as repeated."""
    job = Job(tmp_path, returns=False, shard_batches=6)
    pod = job.new_pod()
    made = Ranks(job, pod, 1, consistent=False)
    for _ in range(4):
        made.step()
    call, deaf = job.call, [True, True]

    def heard_later(request: Message, reply: type[Message], timeout_s: float) -> Message:
        if isinstance(request, ReleaseShard) and deaf and deaf.pop():
            raise BusError("the dispatcher is being started again")
        return call(request, reply, timeout_s)

    monkeypatch.setattr(job, "call", heard_later)
    made.stop.set()
    assert made.step() == LEAVE
    made.end()
    again = Ranks(job, pod, 1, consistent=False)
    assert again.step() == BATCH
    assert not set(again.trained) & set(made.trained)


def test_the_first_program_that_fails_is_to_blame_unless_a_worker_was_lost(tmp_path: Path) -> None:
    made = ranks(tmp_path, 3)
    assert [made.lead.failed(1, 7), made.lead.failed(0, 1)] == [AGAIN, AGAIN]
    assert made.lead.ask(2, 1, NEXT) == AGAIN
    made.now_s = leading.BLAME_S
    assert [made.lead.failed(0, 1), made.lead.failed(1, 7)] == [SPARED, BLAMED]
    made.stop.set()
    assert made.lead.failed(1, 7) == SPARED


def test_a_failed_rank_is_spared_once_the_connection_of_another_worker_is_over(tmp_path: Path) -> None:
    """The actuator, which would tell of the lost worker, may be away for longer than it takes to blame somebody."""
    made = ranks(tmp_path)
    peer = Peer("rank 1")
    made.lead.join(1, peer)
    assert made.lead.failed(0, 1) == AGAIN
    del peer
    assert made.lead.failed(0, 1) == SPARED


def test_the_first_rank_knows_when_the_others_have_heard_of_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ranks(tmp_path)
    monkeypatch.setattr(made.lead.batches, "next", lambda: END)
    assert [made.lead.ask(1, 1, NEXT), made.lead.ask(0, 1, NEXT)] == [AGAIN, END]
    assert not made.lead.is_heard
    assert made.lead.ask(1, 1, NEXT) == END
    assert made.lead.is_heard


def test_a_checkpoint_of_another_rank_alone_is_refused(tmp_path: Path) -> None:
    made = ranks(tmp_path)
    made.step()
    first, second = made.ask([NEXT, CHECKPOINT])
    assert first == AGAIN
    assert second.startswith(f"{REFUSED} checkpoint was called where rank 0 did not call it")


def test_a_save_that_fails_lets_the_others_go_on(tmp_path: Path) -> None:
    made = ranks(tmp_path)
    made.step()
    first, _ = made.ask([CHECKPOINT, CHECKPOINT])
    assert first.startswith(SAVE)
    assert made.lead.ask(0, 5, UNSAVED) == DONE
    assert made.lead.ask(1, made._number, CHECKPOINT) == DONE


def test_each_rank_has_to_load_the_checkpoint(tmp_path: Path) -> None:
    made = ranks(tmp_path)
    made.step()
    assert made.save() == DONE
    made.end()
    again = Ranks(made.job, made.pod, 2)
    assert again.lead.ask(0, 1, RESTORED).startswith(LOAD)
    assert again.lead.refusal(0) == ""
    assert again.lead.refusal(1).startswith("call stretto.agent.restored(load) before samples()")


def test_checkpoints_below_level_2_are_refused(tmp_path: Path) -> None:
    made = ranks(tmp_path, consistent=False)
    assert made.ask([CHECKPOINT] * 2)[0].startswith(f"{REFUSED} checkpoint: checkpoints are of level 2")


def test_nobody_starts_before_the_books_have_gone_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = ranks(tmp_path)
    again = Lead(2, made.lead.leases, made.lead.batches, made.lead.consistent, made.stop, lambda: 0.0)
    made.stop.set()

    def refused(*_: object) -> None:
        raise BusError("nobody answers")

    monkeypatch.setattr(made.job, "call", refused)
    with pytest.raises(BusError):
        again.begin("127.0.0.1", 0)
    assert again.join(0) == AGAIN


def test_each_rank_is_told_its_part_of_the_step_that_follows(tmp_path: Path) -> None:
    ranks = Ranks(Job(tmp_path, shard_batches=6), "worker-0", 3, consistent=False)
    assert ranks.step() == BATCH
    for _ in range(2):  # in the shard, and behind it in the one that is reserved
        likely = ranks.likely
        assert likely
        assert ranks.step() == BATCH
        assert ranks.parts == likely
