"""Alerts that the gateway judges by itself, beside the rules of Prometheus."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast, get_args

import yaml
from stretto_bus.reading.damage import Damage
from stretto_gateway.read_model import alerts
from stretto_gateway.read_model.job_views import JobViews
from stretto_gateway.read_model.projection import Projection
from stretto_gateway.read_model.summaries import rounded_rows
from stretto_messages.base import example_of
from stretto_messages.pods import PsReported
from stretto_wire.contract.registry import PARTITIONS, SERVICES
from stretto_wire.jobspec.spec import PsLimits
from stretto_wire.rest.answers import ServiceView

from ..gateway_process import Running
from ..job_events import decided, plan, started, submitted

RULES = Path(__file__).parents[4] / "charts" / "stretto" / "alerts.yaml"


def test_each_has_a_rule_and_the_same_bounds() -> None:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    rules = {rule["alert"]: rule["expr"] for rule in group["rules"]}
    assert set(get_args(alerts.AlertName)) <= rules.keys()
    assert rules["StrettoStreamFilling"].endswith(f"> {alerts.FILLING}")
    assert rules["StrettoStreamFull"].endswith(f"> {alerts.FULL}")
    assert f"{PARTITIONS} - " in rules["StrettoPartitionWithoutOwner"]


def test_a_service_without_replicas_or_owners_fires() -> None:
    counts = {"arbiter": (1, PARTITIONS), "planner": (2, PARTITIONS - 3), "fitter": (0, 0)}
    services = [
        ServiceView(service=name, replicas=replicas, partitions=partitions, ready=partitions == PARTITIONS)
        for name, (replicas, partitions) in counts.items()
    ]
    found = {one.subject: one.alert for one in alerts.of_services(services)}
    assert found == {"planner": "StrettoPartitionWithoutOwner", "fitter": "StrettoServiceGone"}


def test_a_bus_that_stores_nothing_fires_with_the_reason() -> None:
    assert [*alerts.of_bus("")] == []
    (alert,) = alerts.of_bus("its disk is full")
    assert (alert.alert, alert.detail) == ("StrettoBusStoresNothing", "its disk is full")


def test_a_stream_that_fills_fires_one_alert() -> None:
    shares = {"EMPTY": 0.7, "FILLING": 0.71, "FULL": 0.95}
    found = {one.subject: one.alert for one in alerts.of_streams(shares)}
    assert found == {"FILLING": "StrettoStreamFilling", "FULL": "StrettoStreamFull"}


def test_a_stream_with_messages_that_cannot_be_read_fires_and_names_jobs_to_those_who_read_all() -> None:
    damages = {"STRETTO": Damage("STRETTO", ((7, 7),), {"3.evt.v1.gateway.job-submitted.b": 1})}
    ((told,), (hidden,)) = (tuple(alerts.of_damages(damages, told_all)) for told_all in (True, False))
    assert (told.alert, told.subject) == ("StrettoStreamDamaged", "STRETTO")
    assert told.detail.endswith("sequence 7; subject 3.evt.v1.gateway.job-submitted.b (job b)")
    assert hidden.detail.endswith("sequence 7")


def test_a_job_whose_stored_events_cannot_be_read_says_so_from_the_moment_on_that_it_is_known() -> None:
    projection, damages = Projection(), dict[str, Damage]()
    projection.apply(submitted(), 1, 1.0)
    follower: Any = SimpleNamespace(projection=projection, ready=True)
    views = JobViews(follower, cast(Any, None), cast(Any, None), lambda: 2.0, damages)
    sound = views.tag("a", ["head"])
    assert (views.present("a").unreadable, views.summary("a").unreadable) == (0, 0)
    subjects = {"3.evt.v1.arbiter.plan-decided.a": 1, "3.evt.v1.planner.plan-proposed.a": 2, "3.evt.v1.x.y.b": 4}
    damages["STRETTO"] = Damage("STRETTO", ((7, 7),), subjects)
    assert (views.present("a").unreadable, views.summary("a").unreadable) == (3, 3)
    assert views.tag("a", ["head"]) != sound, "a client that holds the earlier answer asks again"


def test_a_job_that_trains_without_a_checkpoint_fires() -> None:
    projection = Projection()
    for seq, message in enumerate([submitted(), decided(1, "initial", plan(), None), started("worker-0")], 1):
        projection.apply(message, seq, float(seq))
    view = projection.jobs["a"]
    view.status, view.started_at_s = "training", 3.0
    view.spec = view.spec.model_copy(update={"checkpoint": view.spec.checkpoint.model_copy(update={"every_s": 100.0})})
    assert [*alerts.of_jobs([view], 103.0)] == []
    (late,) = alerts.of_jobs([view], 304.0)
    assert (late.alert, late.subject) == ("StrettoCheckpointLate", "a")


def test_a_server_with_rows_on_its_disk_fires_while_it_lacks_memory_and_did_not_choose_to() -> None:
    projection = Projection()
    for seq, message in enumerate([submitted(), started("ps-0")], 1):
        projection.apply(message, seq, float(seq))
    full = {"cold_rows": 1200, "warm_rows": 300, "memory_used_bytes": 800 * 2**20}
    projection.report(replace(example_of(PsReported), job="a", pod="ps-0", **full), 3.0)
    view = projection.jobs["a"]
    assert rounded_rows(view) == 300
    (short,) = alerts.of_jobs([view], 3.0)
    assert (short.alert, short.detail) == (
        "StrettoServerSpilling",
        "ps-0 has 1,200 rows on its disk for lack of memory",
    )
    view.pods["ps-0"].memory_limit_bytes = 2**31
    assert [*alerts.of_jobs([view], 3.0)] == [], "it has memory again, and nobody uses the rows"
    view.pods["ps-0"].spill_fault = "No space left on device"
    (fault,) = alerts.of_jobs([view], 3.0)
    assert (fault.alert, fault.detail) == (
        "StrettoSpillFault",
        "ps-0 has no room for its rows: No space left on device",
    )
    view.pods["ps-0"].spill_fault, view.pods["ps-0"].memory_limit_bytes = "", 900 * 2**20
    resources = view.spec.resources.model_copy(update={"ps": PsLimits(spill="auto")})
    view.spec = view.spec.model_copy(update={"resources": resources})
    assert [*alerts.of_jobs([view], 3.0)] == [], "there it was decided"


def test_a_gateway_alone_says_that_every_other_service_is_gone(gateway: Running) -> None:
    with gateway.http() as http:
        found = http.get("/alerts").json()
    assert found["judged"] == list(get_args(alerts.AlertName))
    of_services = [
        one for one in found["firing"] if one["subject"] in SERVICES
    ]  # others' jobs have alerts of their own
    assert {one["alert"] for one in of_services} == {"StrettoServiceGone"}
    assert "planner" in {one["subject"] for one in of_services}
