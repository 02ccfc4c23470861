"""The process that runs a program: its connections, its lease of a whole run, and how it asks a program to end."""

from __future__ import annotations

import signal
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import stretto.agent
from ledger_bus import LedgerBus
from stretto.errors import StrettoError
from stretto.pod.process import Pod
from stretto.program import asked as sockets
from stretto.program import batches, child
from stretto.program.child import patience_of
from stretto.program.host import ProgramHost, keep_run, report_run
from stretto.worker.leases import Leases
from stretto_wire.program import ProgramSpec


def hosted(level: Any = 1, data: str = "off") -> Any:
    resources = SimpleNamespace(data=SimpleNamespace(mode=data))
    spec = SimpleNamespace(dataset=SimpleNamespace(batch_size=8), resources=resources)
    settings = SimpleNamespace(spec=spec, plan_version=1, cpu_cores=1.0, stop_grace_s=15.0)
    pod = SimpleNamespace(bus=LedgerBus(), leaving=threading.Event(), settings=settings)
    return ProgramHost(cast("Pod", pod), ProgramSpec(command=("train",), level=level))


def asked(runs: Any) -> str:
    """Ask for one batch over a connection that is closed then; return the answer."""
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.sendall(b"next\n")
        theirs.shutdown(socket.SHUT_WR)
        runs._asked._serve(ours)
        return theirs.makefile().readline().split()[0]


def test_a_connection_waits_for_the_end_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = hosted()
    waits: list[float] = []
    lock = SimpleNamespace(acquire=lambda timeout: not waits.append(timeout), release=lambda: None)
    monkeypatch.setattr(runs._asked, "asking", lock)
    assert asked(runs) == stretto.agent.BATCH
    assert waits == [sockets.ASKING_S]


def test_a_second_process_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "ASKING_S", 0.0)
    runs = hosted()
    with runs._asked.asking:
        assert asked(runs) == stretto.agent.REFUSED


def test_a_process_that_the_program_left_behind_does_not_hold_its_worker() -> None:
    runs = hosted()
    ours, theirs = socket.socketpair()
    serves = threading.Thread(target=runs._asked._serve, args=(ours,), daemon=True)
    serves.start()
    with theirs:
        theirs.sendall(b"next\n")
        assert theirs.makefile().readline().startswith(stretto.agent.BATCH)
        runs._asked.hang_up()
        assert runs._asked.asking.acquire(timeout=60)
    serves.join(60)
    assert not runs._asked._links


def test_a_socket_that_is_gone_is_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(stretto.agent.ADDRESS_VARIABLE, str(tmp_path / "agent.sock"))
    with pytest.raises(StrettoError, match=r"STRETTO_AGENT = .* cannot be reached: No such file .*; the process that"):
        next(stretto.agent.samples())


class Several:
    """A program that takes several batches of an answer, as long as none of its steps takes time."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, *, ahead_s: float = 1e9) -> None:
        patch.setattr(batches, "AHEAD_S", 1e9)  # all of a shard fits in
        patch.setattr(stretto.agent, "AHEAD_S", ahead_s)
        self.runs, self.requests = hosted(), list[str]()
        answered = self.runs._asked._answer
        self.runs._asked._answer = lambda request: self.requests.append(request) or answered(request)
        for name, value in self.runs._variables(self.runs._asked.listen(folder)).items():
            patch.setenv(name, value)

    @property
    def offset(self) -> int:
        return cast("int", self.runs._leases.offset)


@pytest.fixture
def several(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Several:
    return Several(tmp_path, monkeypatch)


def test_an_answer_has_as_many_batches_as_fit_into_its_time(several: Several) -> None:
    taken = [*stretto.agent.samples()]
    assert sorted(number for batch in taken for number in batch) == [*range(10_000)]
    assert {len(batch) for batch in taken} == {8, 4}, "shards of 20 have batches of 8, 8 and 4"
    assert several.runs._batches.ended
    window = several.runs._telemetry.meter.window()
    assert (window.samples_total, window.steps_total) == (10_000, len(taken))
    assert len(several.requests) == 502, "one for each of 500 shards, the first of which has two, and one for the end"


def test_a_step_that_takes_longer_asks_for_each_batch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    several = Several(tmp_path, monkeypatch, ahead_s=0.0)
    taken = [*stretto.agent.samples()]
    assert len(several.requests) == len(taken) + 1
    assert sorted(number for batch in taken for number in batch) == [*range(10_000)]


def test_who_does_not_say_that_it_takes_several_batches_gets_one(
    several: Several, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(stretto.agent.SEVERAL_VARIABLE)  # as under an earlier Stretto, and as an earlier agent asks
    taken = [*stretto.agent.samples()]
    assert several.requests == ["next"] * (len(taken) + 1)
    assert sorted(number for batch in taken for number in batch) == [*range(10_000)]


@pytest.mark.parametrize(("data", "answer", "samples"), [("off", "batches", 12), ("auto", "batch", 8)])
def test_with_data_workers_a_program_gets_one_batch_whatever_it_asks_for(
    data: str, answer: str, samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "AHEAD_S", 1e9)
    runs = hosted(data=data)
    assert (stretto.agent.SEVERAL_VARIABLE in runs._variables("")) == (data == "off")
    assert runs._answered(stretto.agent.SEVERAL).startswith("batch ")
    word, first, stop, *_ = runs._answered(stretto.agent.SEVERAL).split(" ")
    assert (word, int(stop) - int(first)) == (answer, samples)


def test_a_loop_that_is_left_gets_the_batch_again_that_it_was_left_in_and_no_other(several: Several) -> None:
    loop = stretto.agent.samples()
    first, second, third = (next(loop) for _ in range(3))
    del loop
    again = stretto.agent.samples()
    assert next(again) == third
    assert [len(each) for each in (first, second, third)] == [8, 8, 4]
    assert several.requests[-2:] == [f"left {third.start} {third.stop}", "several"]


def test_a_fork_that_inherits_a_loop_does_not_say_that_it_was_left(
    several: Several, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = stretto.agent.samples()
    taken = [next(loop) for _ in range(2)]
    monkeypatch.setattr(stretto.agent.os, "getpid", lambda: 0)
    with stretto.agent._lines[0]._link.dup():  # the parent's: the connection stays open
        stretto.agent._lines[0].close()
        assert several.requests == ["several", "several"]
        assert several.runs._batches._given == 20 - len(taken[0])


def test_a_checkpoint_has_the_batches_that_were_taken_and_the_loop_asks_for_the_next_one(several: Several) -> None:
    told = {"checkpoint": "save here", "saved": "done j-000001"}
    offsets = list[int]()

    def answer(request: str) -> str:
        several.runs._batches.passed()
        offsets.append(several.offset)
        return told[request]

    several.runs._consistent = SimpleNamespace(answer=answer, refusal="")
    loop = stretto.agent.samples()
    first, second = next(loop), next(loop)
    assert stretto.agent.checkpoint(lambda folder: None) == "j-000001"
    assert offsets == [16, 16]
    assert next(loop) == range(second.stop, second.stop + 4)
    asked = ["several", "several", f"checkpoint {first.stop} {second.stop}", "saved", "several"]
    assert several.requests == asked


def test_a_loop_that_ends_late_leaves_the_connection_of_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Line:
        def ask(self, request: str) -> tuple[str, str]:
            return stretto.agent.BATCH, "0 8"

        def close(self) -> None:
            closed.append(self)

    closed: list[Line] = []
    monkeypatch.setattr(stretto.agent, "_Line", Line)
    loops = [stretto.agent.samples() for _ in range(2)]
    assert [next(each) for each in loops] == [range(8)] * 2
    for each, lines in zip(loops, (1, 2), strict=True):
        each.close()  # type: ignore[attr-defined]
        assert len(closed) == lines
    assert not stretto.agent._lines


@pytest.mark.parametrize("answer", [(stretto.agent.SAVE, "folder"), (stretto.agent.DONE, "j-000001")])
def test_a_program_that_is_to_leave_saves_once_more(answer: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    class Line:
        def ask(self, request: str) -> tuple[str, str]:
            asked.append(request)
            if request == stretto.agent.NEXT and len(asked) > 1:
                raise SystemExit(0)
            if request == stretto.agent.NEXT:
                return stretto.agent.BATCH, "0 8"
            return answer if request == stretto.agent.CHECKPOINT else (stretto.agent.DONE, "j-000001")

        def close(self) -> None:
            """Close nothing."""

    asked, saved = list[str](), list[str]()
    monkeypatch.setattr(stretto.agent, "_Line", Line)
    loop = stretto.agent.samples(saved.append)
    assert next(loop) == range(8)
    with pytest.raises(SystemExit):
        next(loop)
    saves = answer[0] == stretto.agent.SAVE
    assert saved == ["folder"] * saves, "rank 0 alone saves"
    assert asked[2:] == [stretto.agent.CHECKPOINT, stretto.agent.SAVED][: 1 + saves]


def leased() -> tuple[LedgerBus, Leases]:
    bus = LedgerBus()
    leases = Leases(cast("Any", bus), threading.Event())
    leases.next(0)
    lease = bus.ledger.state.workers["worker-0"].lease
    assert lease is not None
    lease.attempt += 1  # it expired, and came back
    return bus, leases


def test_a_run_whose_lease_expired_is_leased_again_while_it_goes_on() -> None:
    bus, leases = leased()
    leases.beat()
    assert not leases.current
    keep_run(leases)
    lease = bus.ledger.state.workers["worker-0"].lease
    assert leases.current
    assert leases.shard is not None
    assert lease is not None
    assert leases.shard.attempt == lease.attempt


@pytest.mark.parametrize("is_told", [True, False])
def test_the_success_of_a_run_counts_though_its_lease_expired(is_told: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    bus, leases = leased()
    if not is_told:  # the expiry comes between the last heartbeat and the report
        monkeypatch.setattr(leases, "beat", lambda: None)
    report_run(leases)
    book = bus.ledger.state.book
    assert book is not None
    assert book.samples_done == 20


def test_a_program_gets_sigterm_once_and_before_its_pod_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [patience_of(grace_s) for grace_s in (15.0, 6.0, 0.0)] == [10.0, 4.0, 0.0]
    monkeypatch.setattr(child, "POLL_S", 0.0)
    runs = hosted(level=0)
    runs._pod.leaving.set()
    polls, signals = iter([False, False, False, True]), list[int]()
    monkeypatch.setattr(child, "has_ended", lambda pid: next(polls))
    monkeypatch.setattr(child.os, "kill", lambda pid, number: signals.append(number))
    monkeypatch.setattr(child.os, "killpg", lambda pid, number: None)
    assert runs._wait(SimpleNamespace(pid=2**22, wait=lambda: 0)) == 0
    assert signals == [signal.SIGTERM]


@pytest.mark.parametrize("asks", [False, True])
def test_a_program_that_asks_for_no_sample_is_told_of(
    asks: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    started: list[threading.Timer] = []
    monkeypatch.setattr(threading.Timer, "start", lambda timer: started.append(timer))
    runs = hosted()
    runs._asked.begin()
    if asks:
        asked(runs)
    (silence,) = started
    if not silence.finished.is_set():
        silence.function()
    assert ("has asked for no sample for 60 s" in caplog.text) is not asks
