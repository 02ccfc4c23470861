"""One sentence on each decision: what a person reads who knows neither the model nor its terms."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, get_args

import pytest
from stretto_messages.base import GIB
from stretto_messages.values import DeviceSpeed, Match, Plan, PlanKind, WorkerGroup
from stretto_wire.rest.sentences import sentence
from stretto_wire.rest.views import Decision, Outcome, WarmStart

OLD = Plan(workers=2, ps=1, worker_cpu_cores=0.5, ps_cpu_cores=1, worker_memory_bytes=GIB, ps_memory_bytes=GIB)

ON_A = WorkerGroup("gpu-a", 1, 8.0, 64 * GIB)


def decision(kind: PlanKind = "improve", gain: float | None = None, **changes: Any) -> Decision:
    """A decision that costs 0.03 an hour more and should bring 45 %."""
    nothing = dict.fromkeys((each.name for each in fields(Decision)), None)
    plans = {"plan": replace(OLD, **changes), "previous": OLD, "cost_per_hour": 0.115, "cost_before": 0.085}
    rates = {"throughput": 1450.0, "throughput_before": 1000.0, "outcome": Outcome(gain=gain), "in_words": ""}
    return Decision(**{**nothing, **plans, **rates, "kind": kind})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (decision(workers=3, gain=1.41), "A third worker should bring +45 % for 0.03 an hour more; it brought +41 %."),
        (decision(workers=3), "A third worker should bring +45 % for 0.03 an hour more."),
        (
            decision("measure", gain=0.958, workers=1, ps=3),
            "Tried, to learn what it brings: 1 worker less and 2 parameter servers more, +45 % expected, "
            "for 0.03 an hour more; it brought −4.2 %.",
        ),
        (
            decision("memory", gain=0.69, ps_memory_bytes=GIB * 3 // 2),
            "0.5 GiB more for each parameter server, so that parameter servers do not run full, "
            "for 0.03 an hour more.",
        ),
        (
            replace(decision("memory", ps_memory_bytes=GIB // 2), cost_before=0.13),
            "0.5 GiB less for each parameter server, which the job will not need, for 0.015 an hour less.",
        ),
        (decision("requested", worker_cpu_cores=1.5), "Asked for by hand: 1 core more for each worker should bring "
         "+45 % for 0.03 an hour more."),
        (replace(decision("rebalance", workers=1), cost_before=0.2, throughput=None),
         "Other jobs need the room: 1 worker less, for 0.085 an hour less."),
        (decision("measure", workers=3, groups=(ON_A,)),
         "Tried, to learn what it brings: a worker on gpu-a, +45 % expected, for 0.03 an hour more."),
        (decision(workers=2, groups=(replace(ON_A, workers=2),)),
         "2 workers less and 2 workers on gpu-a more should bring +45 % for 0.03 an hour more."),
        (replace(decision(workers=40), cost_before=0.115), "38 workers more should bring +45 % at the same price."),
        (replace(decision(workers=3), throughput_before=0.0, cost_per_hour=0.00012, cost_before=0.00008),
         "A third worker, for 0.00004 an hour more."),
        (replace(decision(workers=3), cost_before=0.115 - 999.7), "A third worker should bring +45 % for 1,000 an hour "
         "more."),
    ],
)  # fmt: skip
def test_a_change_says_what_it_should_bring_for_how_much_and_what_it_brought(given: Decision, told: str) -> None:
    assert sentence(given) == told


@pytest.mark.parametrize(
    ("kind", "like", "told"),
    [
        ("initial", (), "The job file asks for this size"),
        ("warm-start", (), "No similar job was completed here, so it starts small"),
        ("warm-start", (Match(job="a", similarity=1.0, weight=1.0, plan=OLD, throughput=1.0),),
         "Similar jobs ran well at about this size"),
        ("fit-capacity", (), "The cluster has no room for more"),
    ],
)  # fmt: skip
def test_a_first_plan_says_where_it_comes_from(kind: PlanKind, like: tuple[Match, ...], told: str) -> None:
    given = replace(decision(kind), previous=None, outcome=Outcome(throughput=26_849.7))
    given.warm_start = WarmStart(0.0, like, 0.5, OLD)
    size = "2 workers and 1 parameter server for 0.115 an hour; it trained 26,800 samples a second."
    assert sentence(given) == f"{told}: {size}"


def test_a_first_plan_tells_who_measured_the_speed_of_a_type_beforehand() -> None:
    given = replace(decision("warm-start"), previous=None)
    speed = DeviceSpeed(device="gpu-a", cores=5.87, log_sd=0.1, job="ranking-on-gpu-a", measured_at_s=1.7e9)
    given.warm_start = WarmStart(0.0, (), 0.5, OLD, (speed, replace(speed, device="b", cores=1.0, measured_at_s=0.0)))
    assert sentence(given).endswith(
        "; a unit of gpu-a counts as 5.87 cores, which the job ranking-on-gpu-a measured until 2023-11-14 22:13 UTC"
        "; a unit of b counts as 1 core, which the job ranking-on-gpu-a measured."
    )


def test_a_first_plan_tells_the_stages_of_its_workers() -> None:
    groups = (replace(ON_A, stage=1, first_layer=1), replace(ON_A, stage=2, first_layer=3))
    given = replace(decision("initial", workers=3, groups=groups), previous=None)
    given.warm_start = WarmStart(0.0, (), 0.5, OLD)
    told = "3 workers, 1 of them of stage 1 on gpu-a, 1 of them of stage 2 on gpu-a, and 1 parameter server for 0.115"
    assert told in sentence(given)


def test_every_kind_of_decision_has_a_sentence() -> None:
    assert all(sentence(decision(kind, workers=3)).endswith(".") for kind in get_args(PlanKind))
