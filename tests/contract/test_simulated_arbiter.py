"""The simulator's arbiter decides as the live one: the same defaults, the same algorithms."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from stretto_arbiter.service import Arbiter
from stretto_arbiter.settings import ArbiterSettings
from stretto_cli.main import app
from stretto_core.algorithms import SELECT
from stretto_core.arbiter.machine import ArbiterMachine
from stretto_core.arbiter.selection import Selection, SelectionProblem
from stretto_core.arbiter.selection.hull import hull
from stretto_core.arbiter.state import ArbiterSettings as Rules
from stretto_core.machine import Action, Emit, Tick
from stretto_core.model.types import JobLimits, JobOpened, JobProfile
from stretto_messages.actuator import PlanApplied
from stretto_messages.arbiter import PlanDecided
from stretto_messages.base import GIB, Message
from stretto_messages.planner import CandidatesComputed, PlanProposed
from stretto_messages.values import NOTHING, Plan
from stretto_runtime import Meta
from stretto_sim.cluster import Arrival, ClusterTraceSettings, Policy, TraceJob, jobs_of, simulate
from stretto_sim.cluster.stretto import Knobs, Services
from stretto_wire import JobSpec, JobSubmitted
from stretto_wire.codec import decode, encode
from typer.testing import CliRunner

from tests.live_bus import candidate, computed

META = Meta(1, 1000.0, "evt", {}, "_")
Moment = tuple[float, Any, list[bytes]]
"""when the arbiter was told, its event, its decisions as they are published"""


class Recorder:
    """The simulator's arbiter, with a record of its inputs and its decisions."""

    def __init__(self, machine: ArbiterMachine) -> None:
        self.machine, self.stream = machine, list[Moment]()

    def handle(self, event: Any, now: float) -> list[Action]:
        actions = self.machine.handle(event, now)
        self.stream.append((now, event, [encode(action.fact) for action in actions if isinstance(action, Emit)]))
        return actions

    def task(self) -> Any:
        return self.machine.task()


def recorded(trace: Sequence[TraceJob], pool: ClusterTraceSettings) -> list[Moment]:
    """Simulate the trace; return what its arbiter was told and decided."""
    services = Services(trace, pool, Knobs())
    recorder = Recorder(services.arbiter)
    services.arbiter = recorder  # type: ignore[assignment]
    simulate(
        trace,
        Policy(
            lambda trace, pool: services,
            dynamic=True,
            when_pods_die="the pod is replaced",
            windows=True,
            period_s=Knobs().round_s,
        ),
        pool,
    )
    return recorder.stream


def submission_of(job: str, profile: JobProfile) -> JobSubmitted:
    """Return the submission that says what the simulator's trace says of a job."""

    def limits(pod: str, count: str) -> dict[str, Any]:
        def ends(name: str) -> dict[str, Any]:
            return {"min": getattr(profile.limits.low, name), "max": getattr(profile.limits.high, name)}

        return {"count": ends(count), "cpu_cores": ends(f"{pod}_cpu_cores"), "memory": ends(f"{pod}_memory_bytes")}

    document = {
        "name": job,
        "model": {"entry": "m:M", "metadata": profile.metadata},
        "dataset": {"samples": profile.samples, "batch_size": profile.batch_size},
        "resources": {"workers": limits("worker", "workers"), "ps": limits("ps", "ps")},
    }
    return JobSubmitted(job=job, spec=JobSpec.parse(document))


def over_the_wire(service: Arbiter, event: Any) -> Any:
    """Return the event as the service makes it of a message's bytes."""
    if isinstance(event, Tick):
        return service.tick_event(event.machines)
    message: Message = submission_of(event.job, event.profile) if isinstance(event, JobOpened) else event
    return service.to_event(decode(type(message), encode(message)), META)


def test_the_service_and_the_simulator_read_their_defaults_in_core() -> None:
    live = Arbiter(ArbiterSettings())
    served = live.machine("_", None)
    simulated = Services([], ClusterTraceSettings(nodes=1), Knobs()).arbiter
    assert replace(served.settings, capacity=NOTHING) == Rules(NOTHING)
    assert served.settings.background_algorithm == simulated.settings.background_algorithm == "exact"
    assert live.settings.algorithm == SELECT.default
    assert served.select is simulated.select is ArbiterMachine().select


def test_a_round_of_the_live_arbiter_is_what_whatif_answers_to_the_same_problem() -> None:
    """Goal: one default. Method: three equal jobs of which the greedy walk serves two; both get the round's problem."""
    asked = list[tuple[SelectionProblem, Selection]]()
    least = Plan(1, 1, 1.0, 1.0, GIB, GIB)
    service = Arbiter(ArbiterSettings(cpu_cores=12, memory_bytes=64 * GIB, objective="gain", rho=0.0))
    machine = service.machine("_", None)
    choose = machine.select

    def noted(problem: SelectionProblem) -> Selection:
        asked.append((problem, choose(problem)))
        return asked[-1][1]

    machine.select = noted
    for job in ("a", "b", "c"):
        machine.handle(JobOpened(job, JobProfile(512, 10**8, JobLimits(least, replace(least, workers=9)))), 0.0)
        proposal = PlanProposed(job=job, kind="warm-start", plan=least, cost_per_hour=0.1, reasons=("r",))
        machine.handle(proposal, 0.0)
        machine.handle(PlanApplied(job=job, version=1, plan=least, took_s=3.0), 0.0)
    machine.state.last_round_s = 100.0
    for job in ("a", "b", "c"):
        machine.handle(offered(job, least, (4, 2400.0), (3, 2400.0)), 100.0)
    decided = [action.fact.plan.workers for action in machine.handle(Tick(), 103.0)]
    ((problem, found),) = asked
    assert decided == [3, 3, 3]
    assert hull(problem).value < found.value
    document = {
        "capacity": problem.free,
        "objective": problem.objective,
        "rho": problem.rho,
        "jobs": [
            {
                "id": each.job,
                "remaining_samples": each.remaining_samples,
                "candidates": [
                    {"id": option.id, "resources": option.amounts, "cost": option.cost, "gain": option.gain,
                     "throughput": option.throughput}
                    for option in each.options
                ],
            }
            for each in problem.contenders
        ],
    }  # fmt: skip
    answer = CliRunner().invoke(app, ["whatif", "select", "-", "-o", "json"], input=json.dumps(document))
    told = json.loads(answer.stdout)
    assert (told["chosen"], told["value"]) == (found.chosen, found.value)
    assert told["gap"] < 1e-8


def offered(job: str, plan: Plan, *rows: tuple[int, float]) -> CandidatesComputed:
    """Return candidates of so many workers, each with its throughput."""
    made = [
        candidate(f"c{i}", replace(plan, workers=workers), rate, 0.1 * workers, 0.05)
        for i, (workers, rate) in enumerate(rows)
    ]
    return computed(job, plan, *made)


def live(pool: ClusterTraceSettings, knobs: Knobs) -> Arbiter:
    """Return the service under the settings that the simulator states; every other one is the default."""
    return Arbiter(
        ArbiterSettings(
            cpu_cores=pool.capacity.cpu_cores,
            memory_bytes=pool.capacity.memory_bytes,
            algorithm=knobs.select,
            objective=knobs.objective,
            round_s=knobs.round_s,
            settle_s=knobs.settle_s,
            apply_timeout_s=6 * pool.pod_start_s + 300.0,
        )
    )


def decides_alike(service: Arbiter, stream: Sequence[Moment]) -> None:
    """Give the service the bytes of the stream; assert that it publishes the same bytes."""
    machine = service.machine("_", None)
    for now, event, decisions in stream:
        actions = machine.handle(over_the_wire(service, event), now)
        made = [service.to_message("_", action.fact) for action in actions if isinstance(action, Emit)]
        assert [encode(message) for message in made] == decisions


@pytest.mark.night
def test_a_simulation_is_decided_alike_by_the_live_service() -> None:
    rng, count, pool = np.random.default_rng(3), 30, ClusterTraceSettings(nodes=3)
    rows = zip(
        rng.random(count) * 20_000, rng.lognormal(0, 1, count) * 3_600, rng.choice([1, 1, 2, 4], count), strict=True
    )
    stream = recorded(jobs_of([Arrival(float(at), float(took), int(gpus)) for at, took, gpus in rows], 3), pool)
    decides_alike(live(pool, Knobs()), stream)
    assert sum(len(decisions) for _, _, decisions in stream) > 100


def test_a_contested_round_is_decided_alike_with_the_help_of_the_background_algorithm() -> None:
    """Goal: both ask a slower algorithm. Method: three jobs whose best shares the greedy walk does not find."""
    knobs = replace(Knobs(), select="hull", objective="gain")
    pool, plan = ClusterTraceSettings(nodes=1, node_cpu_cores=10.0), Plan(1, 1, 1.0, 1.0, GIB, GIB)
    services = Services([], pool, knobs)
    recorder = Recorder(services.arbiter)
    services.arbiter = recorder  # type: ignore[assignment]
    limits = JobLimits(plan, replace(plan, workers=8))
    for job, more, gain in (("a", 3, 1000.0), ("b", 2, 600.0), ("c", 2, 600.0)):
        best = candidate("c0", replace(plan, workers=1 + more), 1000.0 + gain, 0.1 * more, 0.001)
        for event in (
            JobOpened(job, JobProfile(512, 10**7, limits)),
            PlanProposed(job=job, kind="warm-start", plan=plan, cost_per_hour=0.1, reasons=("r",)),
            PlanApplied(job=job, version=1, plan=plan, took_s=2.0),
            computed(job, plan, best),
        ):
            services._to_arbiter(event, 10.0)
    services._to_arbiter(Tick(), 1000.0)
    decides_alike(live(pool, knobs), recorder.stream)
    improved = [fact for fact in services.facts if isinstance(fact, PlanDecided) and fact.kind == "improve"]
    assert {fact.job for fact in improved} == {"b", "c"}
    assert all(fact.round and fact.round.background and fact.round.background.outcome == "adopted" for fact in improved)
