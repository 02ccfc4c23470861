"""Rows on the servers' disks instead of more memory: chosen where it is cheaper, told where there is no memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
from closed_loop import LIMITS, plan, profile
from job_builders import candidates_computed, oom_forecast, plan_applied, plan_proposed
from stretto_core.arbiter.machine import ArbiterMachine
from stretto_core.arbiter.state import ArbiterSettings
from stretto_core.machine import Emit, Tick
from stretto_core.model.types import JobLimits, JobOpened, SpillPolicy
from stretto_messages.arbiter import PlanDecided, PlanRefused
from stretto_messages.base import GIB
from stretto_messages.oom import OomForecast
from stretto_messages.values import Interval, Remedy, Resources


class Arbiter:
    """An arbiter with one job of 1,000 samples a second under a worker and a server of a core and 1 GiB each."""

    def __init__(self, spill: SpillPolicy, memory: int = 256 * GIB, limits: JobLimits = LIMITS) -> None:
        self.machine, self.now = ArbiterMachine(None, ArbiterSettings(Resources(64, memory))), 0.0
        self.tell(JobOpened("a", profile(spill=spill, limits=limits)))
        self.tell(plan_proposed("a", "warm-start", plan(), 0.1, ("r",)))
        self.tell(plan_applied("a", 1, plan(), 1.0))
        self.tell(candidates_computed("a", 1, plan(), 1000.0, ()))

    def tell(self, event: object) -> list[PlanDecided | PlanRefused]:
        self.now += 1.0
        return [action.fact for action in self.machine.handle(event, self.now) if isinstance(action, Emit)]


def asks(slowest: float, need: int = 3 * GIB) -> OomForecast:
    """A server needs so much memory, or reads 186 rows a step. The present plan costs 0.09 an hour, 3 GiB 0.1."""
    spill = Remedy(
        kind="spill", ps=1, ps_memory_bytes=GIB, cost_per_hour=0.09, slowdown=slowest / 2,
        slowdown_interval=Interval(low=0.0, high=slowest), reads_per_step=186.0, hot_share=0.4,
    )  # fmt: skip
    return oom_forecast("a", "grow", need, "grows", remedies=(spill,))


def test_under_auto_rows_go_to_disk_where_the_speed_lost_is_worth_less_than_the_memory_saved() -> None:
    arbiter = Arbiter("auto")
    (fact,) = arbiter.tell(asks(0.1))
    assert isinstance(fact, PlanDecided)
    assert (fact.kind, fact.plan, fact.previous, fact.version) == ("memory", plan(), plan(), 2)
    assert fact.reads_per_step == 186
    assert fact.throughput == pytest.approx(1000 / 1.05)
    assert fact.throughput_interval == Interval(low=1000 / 1.1, high=1000.0)
    assert (
        fact.reasons[0]
        == "rows go to the servers' disks: 40% of the rows in memory, 186 reads a step, 5% slower (0% to 10%)"
    )
    assert fact.reasons[1] == "1 PS of 3.00 GiB, which hold all rows, cost 11.1% more"
    arbiter.tell(plan_applied("a", 2, plan(), 1.0))
    assert arbiter.tell(asks(0.1)) == [], "decided once"


@pytest.mark.parametrize("spill", ["auto", "emergency"])
def test_memory_is_given_where_it_is_cheaper_or_the_user_wants_the_disk_for_emergencies_alone(
    spill: SpillPolicy,
) -> None:
    (fact,) = Arbiter(spill).tell(asks(0.12 if spill == "auto" else 0.0))
    assert isinstance(fact, PlanDecided)
    assert (fact.plan.ps_memory_bytes, fact.reads_per_step) == (3 * GIB, None)


def test_a_job_that_spills_gets_memory_once_reads_cost_more_than_it() -> None:
    arbiter = Arbiter("auto")
    arbiter.tell(asks(0.1))
    arbiter.tell(plan_applied("a", 2, plan(), 1.0))
    (fact,) = arbiter.tell(asks(0.3))
    assert isinstance(fact, PlanDecided)
    assert fact.plan.ps_memory_bytes == 3 * GIB
    arbiter.tell(plan_applied("a", 3, fact.plan, 1.0))
    (again,) = arbiter.tell(asks(0.1, 6 * GIB))
    assert again.reads_per_step == 186, "another plan, another decision"


@pytest.mark.parametrize(
    ("memory", "most"), [(3 * GIB, LIMITS.high), (256 * GIB, replace(LIMITS.high, ps=1, ps_memory_bytes=GIB))]
)
def test_a_refusal_says_what_the_disk_does_meanwhile(memory: int, most: object) -> None:
    arbiter = Arbiter("emergency", memory, JobLimits(LIMITS.low, most))
    (fact,) = arbiter.tell(asks(0.5))
    assert isinstance(fact, PlanRefused)
    assert fact.reasons[-1].startswith("meanwhile rows go to the servers' disks: 40% of the rows in memory")
    assert arbiter.tell(Tick()) == []
