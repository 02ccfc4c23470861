"""A long background solve beside a live arbiter: in its own process, through a kill -9 of the owner, and replayed."""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pytest
from stretto_arbiter.background import BackgroundSolver
from stretto_arbiter.service import Arbiter
from stretto_arbiter.settings import ArbiterSettings
from stretto_bus import Client
from stretto_core.arbiter.background import BackgroundTask
from stretto_core.arbiter.observations import BackgroundSolved
from stretto_core.arbiter.selection import SelectionProblem
from stretto_installation.server import EmbeddedServer
from stretto_messages.actuator import PlanApplied
from stretto_messages.arbiter import PlanDecided
from stretto_messages.gateway import JobCancelled
from stretto_messages.planner import PlanProposed
from stretto_messages.values import Plan
from stretto_runtime.replay import replay
from stretto_runtime.streams import BusStreams
from stretto_wire.codec import encode
from stretto_wire.contract.submission import JobSubmitted
from stretto_wire.jobspec import spec

from tests.live_bus import candidate, computed, live_bus, plan_of
from tests.waits import until

GIB = 2**30
PLUG_IN = '''
import os
from pathlib import Path
from stretto_core.arbiter.selection import Selection
from stretto_core.arbiter.selection.exact import exact

HERE = Path(__file__).parent


def modest(problem):
    """The first option of everybody; of the test, nobody else's."""
    first = {each.job: each.options[0].id for each in problem.contenders}
    return Selection(first, 0.0, float("inf"))


def thorough(problem):
    """Keeps the interpreter busy until it may answer."""
    (HERE / f"asked-{os.getpid()}").touch()
    while not (HERE / "answer").exists():
        print("HiGHS says much on the standard output, too")
    return exact(problem)


class Refuse:
    def __reduce__(self):
        return int, ("no number",)


def unreadable(problem):
    return Selection(Refuse(), 0.0, 0.0)


def shapeless(problem):
    return Selection(None, 0.0, 0.0)


def boundless(problem):
    """Its gap, (bound - value) / bound, is no finite number."""
    return Selection({}, -1e300, 1e-300)
'''
SETTINGS = {
    "algorithm": "modest",
    "background_algorithm": "thorough",
    "objective": "gain",
    "cpu_cores": "8",
    "memory_bytes": str(64 * GIB),
    "patience_s": "600",
    "background_timeout_s": "600",
    "stop_grace_s": "1",
    "settle_s": "0",
    "lease_s": "1",
}


class Stage:
    """A bus, replicas of the arbiter, and a plug-in that answers when it is told to."""

    def __init__(self, server: EmbeddedServer, client: Client, folder: Path, plug_in: Path) -> None:
        self.server, self.client, self.folder, self.plug_in = server, client, folder, plug_in
        self.replicas: list[Process] = []
        self.decided: list[PlanDecided] = []
        self.following = asyncio.create_task(self.follow())

    async def follow(self) -> None:
        async for event in self.client.events(patterns=["evt.v1.arbiter.plan-decided.*"]):
            assert isinstance(event.message, PlanDecided)
            self.decided.append(event.message)

    async def add(self) -> Process:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("STRETTO_")},
            **{f"STRETTO_ARBITER_{name.upper()}": value for name, value in SETTINGS.items() if name != "lease_s"},
            "STRETTO_LEASE_S": SETTINGS["lease_s"],
            "STRETTO_NATS_URL": self.server.url,
            "STRETTO_STATE_FOLDER": str(self.folder / f"state{len(self.replicas)}"),
            "PYTHONPATH": str(self.plug_in),
        }
        command = (sys.executable, "-m", "stretto_arbiter")
        self.replicas.append(await asyncio.create_subprocess_exec(*command, env=environment, stdout=DEVNULL))
        return self.replicas[-1]

    async def end(self) -> None:
        self.following.cancel()
        for replica in self.replicas:
            if replica.returncode is None:
                replica.kill()
            await replica.wait()

    def asked(self) -> set[int]:
        """The processes that were asked to be thorough."""
        return {int(path.name.split("-")[1]) for path in self.plug_in.glob("asked-*")}

    def of(self, job: str) -> list[PlanDecided]:
        return [decided for decided in self.decided if decided.job == job]

    async def propose(self, job: str, workers: int) -> None:
        document: dict[str, Any] = {"name": job, "model": {"entry": "m:M"}, "dataset": {"samples": 10**9}}
        if job == "a":
            document["priority"] = 2.0  # gives nothing back to the others
        else:
            document["resources"] = {"initial": asdict(plan(workers)), "fixed": True}
        await self.client.publish(JobSubmitted(job=job, spec=spec.JobSpec.parse(document)))
        proposed = {"kind": "initial", "plan": plan(workers), "cost_per_hour": 0.1, "reasons": ("the first",)}
        await self.client.publish(PlanProposed(job=job, **proposed))

    async def contest(self) -> None:
        """Job a has two cores and could have one more for 200 samples/s, or three for 1,000: that is solved again."""
        await self.propose("a", 1)
        await until(lambda: self.of("a"))
        await self.client.publish(PlanApplied(job="a", version=1, plan=plan(1), took_s=1.0))
        rows = ((2, 1200.0), (4, 2000.0))
        front = [candidate(f"w{workers}", plan(workers), rate, 0.1 * workers, 0.01, 1.0) for workers, rate in rows]
        await self.client.publish(computed("a", plan(1), *front))
        await until(self.asked)


def plan(workers: int) -> Plan:
    return plan_of(workers, cores=1.0)


@pytest.fixture
def plug_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Installed for whoever has its folder on the path."""
    folder = tmp_path / "plug-in"
    registered = folder / "patient-0.1.dist-info"
    registered.mkdir(parents=True)
    (folder / "patient.py").write_text(PLUG_IN)
    (registered / "METADATA").write_text("Metadata-Version: 2.1\nName: patient\nVersion: 0.1\n")
    (registered / "entry_points.txt").write_text(
        "[stretto.select]\nmodest = patient:modest\nthorough = patient:thorough\n"
        "unreadable = patient:unreadable\nshapeless = patient:shapeless\n"
        "boundless = patient:boundless\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    return folder


@pytest.fixture
async def stage(tmp_path: Path, plug_in: Path) -> AsyncIterator[Stage]:
    async with live_bus(tmp_path, secured=False) as (server, client):
        started = Stage(server, client, tmp_path, plug_in)
        yield started
        await started.end()


async def test_jobs_start_and_ticks_count_while_a_background_solve_takes_long_and_is_adopted(stage: Stage) -> None:
    arbiter = await stage.add()
    await stage.contest()
    await stage.propose("b", 4)
    await until(lambda: stage.of("b"))
    await stage.propose("c", 4)  # has room when b's is free again, which only the time tells
    await stage.client.publish(JobCancelled(job="b"))
    await until(lambda: stage.of("c"))
    assert len(stage.of("a")) == 1, "it waits for the background solve"
    await stage.client.publish(JobCancelled(job="c"))
    await stage.propose("d", 1)
    await until(lambda: stage.of("d"))
    (stage.plug_in / "answer").touch()
    await until(lambda: len(stage.of("a")) == 2)
    adopted = stage.of("a")[1]
    assert (adopted.plan.workers, adopted.algorithm) == (4, "thorough")
    assert adopted.round is not None
    assert adopted.round.background is not None
    assert (adopted.round.background.outcome, adopted.round.background.value) == ("adopted", pytest.approx(2000.0))
    (solver,) = stage.asked()
    assert psutil.pid_exists(solver), "kept for the next"
    arbiter.terminate()
    assert await arbiter.wait() == 0
    assert not psutil.pid_exists(solver)


async def test_an_heir_asks_again_what_a_killed_owner_asked_and_all_is_replayed_byte_by_byte(stage: Stage) -> None:
    owner = await stage.add()
    await stage.contest()
    (solver,) = stage.asked()
    await stage.add()
    owner.kill()
    await until(lambda: not psutil.pid_exists(solver))
    await stage.propose("b", 1)
    await until(lambda: len(stage.asked()) == 2 and stage.of("b"))
    (stage.plug_in / "answer").touch()
    await until(lambda: len(stage.of("a")) == 2)
    assert [(decided.version, decided.plan.workers) for decided in stage.of("a")] == [(1, 1), (2, 4)]
    service = Arbiter(ArbiterSettings(state_folder=stage.folder))
    for job, count in (("a", 2), ("b", 1)):
        done = await replay(BusStreams(stage.client.bus), service, job)
        assert [decision.verdict for decision in done.decisions] == ["same"] * count
        assert done.missing == []
    assert await stage.client.dead_letters() == []


@pytest.mark.parametrize("algorithm", ["unreadable", "shapeless", "boundless"])
async def test_an_answer_that_cannot_be_used_is_told_as_a_fault(
    algorithm: str, plug_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[BackgroundSolved] = []

    class Journal(Arbiter):
        async def observe(self, key: str, message: Any, trace: str = "") -> None:
            encode(message)  # as the journal does
            told.append(message)

    monkeypatch.setenv("PYTHONPATH", str(plug_in))
    solver = BackgroundSolver(Journal(ArbiterSettings()))
    problem = SelectionProblem((), {"cpu_cores": 1.0}, "gain", 0.0)
    try:
        async with asyncio.timeout(60):
            await solver.solve(BackgroundTask(1, "a", algorithm, problem, {}))
    finally:
        await solver.end()
    (done,) = told
    assert (done.number, done.plans) == (1, {})
    assert "the answer cannot be" in done.fault


@pytest.mark.parametrize("share", [0.0, 0.5], ids=["between two problems", "in the middle of one"])
async def test_the_solver_ends_with_who_asks_it_whenever_that_one_dies(share: float) -> None:
    problem = pickle.dumps(("hull", SelectionProblem((), {"cpu_cores": 1.0}, "gain", 0.0)))
    command = (sys.executable, "-m", "stretto_arbiter.solver")
    solver = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=DEVNULL)
    assert solver.stdin is not None
    solver.stdin.write(problem[: round(len(problem) * share)])
    solver.stdin.close()
    async with asyncio.timeout(60):
        assert await solver.wait() == 0
