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
from stretto.program import child
from stretto.program.child import patience_of
from stretto.program.host import ProgramHost, keep_run, report_run
from stretto.worker.leases import Leases
from stretto_wire.program import ProgramSpec


def hosted(level: Any = 1) -> Any:
    resources = SimpleNamespace(data=SimpleNamespace(mode="off"))
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
