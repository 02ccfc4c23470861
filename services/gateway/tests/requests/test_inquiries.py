"""The cluster, first plans and what-if, answered by a real arbiter and a real planner on the bus."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest
from stretto_cli.commands.decisions.whatif.fit import Profile, document_of
from stretto_core.model.teams import TeamQuota
from stretto_core.model.throughput import Configuration, FittedModel, Measurement
from stretto_gateway.requests.cluster import FRESH_S, Arbiter, cluster_view, device_views, team_views
from stretto_gateway.streams.bus import service_views
from stretto_messages.actuator import PlanApplied, PodPending
from stretto_messages.arbiter import GetCluster, GetClusterReply
from stretto_messages.base import GIB, Message, example_of
from stretto_messages.fitter import ModelFitted
from stretto_messages.oom import OomForecast
from stretto_messages.planner import HistoryRecorded
from stretto_messages.values import KnownModel, Plan
from stretto_wire.jobspec.devices import DeviceTypeSpec

from ..deciding_cluster import CORES, WAIT_S, Cluster
from ..gateway_process import Running
from ..rest_documents import problem, spec
from ..token_holders import client

METADATA = {"family": "dcn", "rows": 10}


def least(workers: int) -> dict[str, Any]:
    return {"workers": {"count": {"min": workers, "max": workers}, "cpu_cores": {"min": 1.0, "max": 1.0}}}


def test_the_cluster_says_who_holds_it_and_who_waits(cluster: Cluster) -> None:
    job = cluster.submit(resources=least(2))
    plan = cluster.until(f"/jobs/{job}", lambda told: told["plan"] is not None)["plan"]
    large = cluster.submit(resources=least(11), priority=2.0)
    cluster.publish(PodPending(job=job, pod="worker-0", role="worker", reason="no-room", detail="no node"))
    told = cluster.until("/cluster", lambda told: told["waiting"] and told["unplaceable"])
    assert (told["capacity"]["cpu_cores"], told["waiting_count"], told["others"], told["after"]) == (CORES, 1, 0, None)
    (holder,) = [one for one in told["holders"] if one["job"] == job]
    cores = plan["workers"] * plan["worker_cpu_cores"] + plan["ps"] * plan["ps_cpu_cores"]
    assert (holder["held"]["cpu_cores"], holder["plan"], holder["changing"]) == (cores, plan, True)
    assert told["held"]["cpu_cores"] == sum(one["held"]["cpu_cores"] for one in told["holders"])
    (waiting,) = told["waiting"]
    assert (waiting["job"], waiting["position"], waiting["priority"]) == (large, 1, 2.0)
    assert waiting["lacking"]["cpu_cores"] == pytest.approx(waiting["least"]["cpu_cores"] - told["free"]["cpu_cores"])
    assert "it waits" in waiting["reason"]
    (unplaceable,) = told["unplaceable"]
    assert (unplaceable["job"], unplaceable["pod"], unplaceable["detail"]) == (job, "worker-0", "no node")
    with client(cluster.running, cluster.viewer) as eve:
        answer = eve.get("/cluster")
        assert job not in answer.text
        assert large not in answer.text
        assert "no node" not in answer.text
        shown = answer.json()
    assert (shown["held"], shown["waiting"][0]["lacking"]) == (told["held"], waiting["lacking"])
    assert (shown["others"], shown["holders"], shown["waiting"][0]["job"]) == (len(told["holders"]), [], None)
    with cluster.running.http() as http:
        for name in (job, large):
            http.delete(f"/jobs/{name}")
        page = http.get("/cluster", params={"after": job}).json()
        assert all(one["job"] > job for one in page["holders"])


def test_a_preview_says_how_a_job_would_start_and_from_whom(cluster: Cluster) -> None:
    document = spec(model={"entry": "m:M", "metadata": METADATA}, resources={"ps": {"count": {"min": 1, "max": 2}}})
    with cluster.running.http() as http:
        cold = http.post("/jobs/preview", json=document)
        assert cold.status_code == 200
        first = cold.json()["first_plan"]
        assert (cold.json()["accepted"], cold.json()["findings"], first["matches"]) == (True, [], [])
        assert cold.json()["spec"]["dataset"]["epochs"] == 1
        assert "no past job is similar enough" in first["reasons"][0]
        assert (first["throughput"], first["duration_s"]) == (None, None)
        plan = Plan(3, 2, 1.0, 1.0, GIB, GIB)
        model = KnownModel(form="default", coefficients={"a1": 0.02, "a2": 0.001}, overlap=1.0)
        past = HistoryRecorded(
            job="old", metadata=METADATA, plan=plan, throughput=5000.0, duration_s=60.0, ps_memory_peak_bytes=GIB,
            samples=1000, model=model,
        )  # fmt: skip
        cluster.publish(past)
        deadline = time.monotonic() + WAIT_S
        while not (told := http.post("/jobs/preview", json=document).json())["first_plan"]["matches"]:
            assert time.monotonic() < deadline
        first = told["first_plan"]
        assert [(one["job"], one["similarity"]) for one in first["matches"]] == [("old", 1.0)]
        assert (first["plan"]["workers"], first["plan"]["ps"], first["fits"]) == (3, 2, True)
        assert first["room"].startswith("fits: it needs 5 cores and 5 GiB")
        assert told["cost_per_hour_min"] <= first["cost_per_hour"] <= told["cost_per_hour_max"]
        assert first["duration_s"] == pytest.approx(1000 / first["throughput"])
        assert http.get(f"/jobs/{document['name']}").status_code == 404, "nothing was submitted"
        job = cluster.submit(**{key: value for key, value in document.items() if key != "name"})
        view = cluster.until(f"/jobs/{job}", lambda told: told["decisions"])
        assert view["decisions"][0]["plan"] == first["plan"]
        http.delete(f"/jobs/{job}")
        log = http.get("/audit-log").text
        assert '"action":"preview"' not in log.replace(" ", "")


def test_a_preview_names_every_reason_against_a_job(cluster: Cluster) -> None:
    taken = cluster.submit()
    document = spec(taken, image="registry/not-allowed:1", environment_from=["secret"])
    with cluster.running.http() as http:
        told = http.post("/jobs/preview", json=document).json()
        assert told["accepted"] is False
        assert {(one["status"], one["field"]) for one in told["findings"]} == {
            (409, "name"), (422, "image"), (422, "environment_from.0"),
        }  # fmt: skip
        assert all(one["remedy"] and one["detail"] and one["kind"] for one in told["findings"])
        wrong = problem(http.post("/jobs/preview", json=spec("a", priority=-1, nonsense=1)))
        assert (wrong["status"], {one["field"] for one in wrong["errors"]}) == (422, {"priority", "nonsense"})
        http.delete(f"/jobs/{taken}")
    with client(cluster.running, cluster.viewer) as eve:
        assert eve.post("/jobs/preview", json=document).status_code == 403


def test_what_if_is_what_the_command_predicts_by_the_same_model(cluster: Cluster) -> None:
    job = cluster.submit(resources={"workers": {"count": {"min": 1, "max": 8}}})
    plan = cluster.until(f"/jobs/{job}", lambda told: told["plan"] is not None)["plan"]
    path = f"/jobs/{job}/whatif"
    with cluster.running.http() as http:
        assert problem(http.get(path))["type"].endswith(":no-model")
        fitted = replace(example_of(ModelFitted), job=job, plan_version=1)
        forecast = replace(example_of(OomForecast), job=job)
        cluster.publish(PlanApplied(job=job, version=1, plan=Plan(**plan), took_s=1.0), fitted, forecast)
        cluster.until(f"/jobs/{job}", lambda told: told["forecast"] is not None)
        deadline = time.monotonic() + WAIT_S
        while (answer := http.get(path, params={"workers": 4, "ps": 2})).status_code != 200:
            assert time.monotonic() < deadline, answer.text
        told = answer.json()
        wanted = Plan(**{**told["previous"], "workers": 4, "ps": 2})
        assert Plan(**told["plan"]) == wanted
        setting = Profile(
            workers=4, ps=2, worker_cpu=wanted.worker_cpu_cores, ps_cpu=wanted.ps_cpu_cores,
            batch_size=fitted.batch_size, step_time_s=1.0,
        )  # fmt: skip
        rows = [Measurement(Configuration.measured(row), 0.03, 1.0, {}) for row in fitted.measured]
        command = document_of(FittedModel.of(fitted), rows, setting, 0.0, [setting])
        assert told["step_time_s"] == command["predictions"][0]
        assert [*told["step_time_interval_s"].values()] == command["intervals_90"][0]
        (known,) = FittedModel.of(fitted).predicted([Configuration.of(wanted, fitted.batch_size)])
        assert told["throughput"] == pytest.approx(4 * fitted.batch_size / known.step_time_s)
        assert told["cost_to_end"] == pytest.approx(told["cost_per_hour"] * 1000 / told["throughput"] / 3600)
        interval = told["ends_at_interval_s"]
        assert interval["low"] <= told["ends_at_s"] <= interval["high"]
        of_this_number = max(ps.at_end_bytes for ps in forecast.ps) if len(forecast.ps) == 2 else None
        assert told["ps_memory_at_end_bytes"] == of_this_number
        assert told["room"].startswith("fits" if told["fits"] else ("cannot fit", "does not fit"))
        assert told["extrapolated"] is True
        assert "4 workers asked, 2 measured" in told["measured"]
        assert http.get(path, params={"workers": 99}).json()["plan"]["workers"] == 8, "within the job's limits"
        assert problem(http.get(path, params={"workers": 0}))["field"] == "workers"
        events = http.get("/events/newest", params={"job": job, "event": "plan-requested"}).json()["events"]
        assert events == [], "nothing is asked for"
        http.delete(f"/jobs/{job}")
        assert problem(http.get(path))["type"].endswith(":no-plan")


def test_services_are_counted_by_the_entries_of_members_that_live() -> None:
    entries = [(f"owner.planner.{n}", b"planner-a" if n else b"planner-gone") for n in range(16)]
    entries += [(f"owner.oom.{n}", b"oom-a") for n in range(16)]
    entries += [("member.planner.planner-a", b"1"), ("member.oom.oom-a", b"1"), ("member.oom.oom-b", b"")]
    found = {one.service: (one.replicas, one.partitions, one.ready) for one in service_views(entries)}
    assert found["planner"] == (1, 15, False)
    assert found["oom"] == (1, 16, True)
    assert found["actuator"] == (0, 0, False)


def test_without_arbiter_and_planner_nothing_waits_for_them_for_long(gateway: Running) -> None:
    document = spec()
    with gateway.http() as http:
        assert problem(http.get("/cluster"))["status"] == 503
        told = http.post("/jobs/preview", json=document).json()
    assert (told["accepted"], told["first_plan"]) == (True, None)
    assert 0 < told["cost_per_hour_min"] < told["cost_per_hour_max"]


async def test_however_many_ask_the_arbiter_is_asked_once_a_second_for_each_page() -> None:
    asked, now = list[str](), [1000.0]
    page = example_of(GetClusterReply)
    last = page.holders[-1].job

    class Bus:
        async def call(self, request: Message, timeout_s: float) -> Message:
            assert isinstance(request, GetCluster)
            asked.append(request.after)
            await asyncio.sleep(0)
            return replace(page, more=not request.after)

    arbiter = Arbiter(Bus(), 1.0, lambda: now[0])
    await asyncio.gather(*(arbiter.cluster() for _ in range(20)), arbiter.cluster_if_answered())
    assert sorted(asked) == ["", last]
    now[0] += FRESH_S
    assert len((await arbiter.cluster()).holders) == 2 * len(page.holders)
    assert sorted(asked) == ["", "", last, last]


def test_names_of_other_teams_choose_nothing_among_the_holders() -> None:
    (holder, *_), reply = example_of(GetClusterReply).holders, example_of(GetClusterReply)
    teams = {"a1": "a", "a2": "a", "secret-1": "b", "secret-2": "b"}
    found = replace(reply, holders=tuple(replace(holder, job=job, team=team) for job, team in teams.items()), more=True)
    answers = [
        cluster_view(found, lambda team: team == "a", after) for after in ("a2", "b", "secret-1", "secret-2", "z")
    ]
    assert {(answer.others, answer.after, len(answer.holders)) for answer in answers} == {(2, None, 0)}
    assert [one.job for one in cluster_view(found, lambda team: team == "a", "a1").holders] == ["a2"]


def test_the_cluster_tells_what_a_unit_of_each_type_of_devices_has() -> None:
    stated = DeviceTypeSpec(
        name="new", price_per_hour=0.4, count=3, cpu_cores=2.0, memory=GIB, environment={"KEY": "not told"}
    )
    assert [each.model_dump() for each in device_views([stated])] == [
        {"name": "new", "price_per_hour": 0.4, "count": 3, "cpu_cores": 2.0, "memory_bytes": GIB}
    ]


def test_the_cluster_has_each_readable_team_with_its_quota() -> None:
    found = example_of(GetClusterReply)
    quotas = {
        "feed": TeamQuota(cores=8, memory_gib=2, jobs=3, priority_max=5.0),
        "*": TeamQuota(cores=64, borrow=False),
    }
    views = {view.team: view for view in team_views(found, [], quotas, "ads", lambda _: True)}
    assert views.keys() == {"ads", "feed"}
    ads, feed = views["ads"], views["feed"]
    assert ads.held.cpu_cores == sum(one.held.cpu_cores for one in found.holders if one.team == "ads")
    assert (ads.cpu_cores_max, ads.memory_bytes_max, ads.jobs_max, ads.borrow) == (64, None, None, False)
    assert (feed.held.cpu_cores, feed.memory_bytes_max, feed.jobs_max, feed.priority_max) == (0, 2 * GIB, 3, 5.0)
    assert [view.team for view in team_views(found, [], quotas, "ads", "ads".__eq__)] == ["ads"]
