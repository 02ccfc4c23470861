"""A job lives longer than its events are kept; a gateway that starts anew knows it all the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import stretto_wire as wire
from stretto_gateway.problems import Problem
from stretto_gateway.read_model.projection import Projection
from stretto_gateway.service import Gateway
from stretto_gateway.settings import ENDED_BYTES, GatewaySettings
from stretto_gateway.streams.retention import Retention
from stretto_messages.arbiter import PlanDecided
from stretto_messages.base import example_of
from stretto_messages.gateway import JobCancelled
from stretto_runtime.spent_names import SpentShard
from stretto_wire.contract.registry import EVENTS_KEPT_S
from stretto_wire.rest.views import JobView

from tests.live_bus import decision, plan_of

from ..gateway_process import Running

"""the least age that the server takes"""


def document(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "model": {"entry": "m:M"},
        "dataset": {"growing": True, "partitions": [{"name": "a", "samples": 100}]},
    }


def test_a_job_older_than_its_events_is_known_to_a_gateway_that_starts(own_gateway: Running) -> None:
    with own_gateway.http() as http:
        for name in ("old", "over"):
            assert http.post("/jobs", json=document(name)).status_code == 201
        http.post("/jobs/old/data", json={"partitions": [{"name": "b", "samples": 50}]})
    own_gateway.publish(*(decision("old", plan_of(), version) for version in (1, 2)))
    own_gateway.restart()  # what it has read is kept as soon as it has caught up
    with own_gateway.http() as http:
        before = http.get("/jobs/old").json()
        assert before["plan_version"] == 2
        http.post("/jobs", json=document("young"))  # something is read after that
    own_gateway.age_out()
    with own_gateway.http() as http:
        assert http.delete("/jobs/over").status_code == 202
    own_gateway.restart()
    with own_gateway.http() as http:
        view = http.get("/jobs/old").json()
        for known in ("spec", "submitted_at_s", "trace_id", "plan", "plan_version", "data"):
            assert view[known] == before[known], known
        assert http.get("/jobs/over").json()["status"] == "cancelled", "its end is younger than its submission"
        assert http.post("/jobs", json=document("old")).status_code == 200, "it is that job"
        assert http.post("/jobs", json=document("old") | {"priority": 2.0}).status_code == 409
        assert http.delete("/jobs/old").json()["status"] == "cancelled"


def submitted(name: str) -> wire.JobSubmitted:
    return wire.JobSubmitted(job=name, spec=wire.JobSpec.parse(document(name)), submitted_by="somebody")


def test_what_is_over_is_kept_until_a_day_before_its_end_ages_out_and_no_longer() -> None:
    projection, retention = Projection(), Retention(ENDED_BYTES)
    for seq, message in enumerate((submitted("j"), JobCancelled(job="j", by="user", reason="")), start=1):
        projection.apply(message, seq, 1000.0)
        retention.note(message, seq, 1000.0, "")
    soon, late = 1000.0 + EVENTS_KEPT_S - 90_000, 1000.0 + EVENTS_KEPT_S - 80_000
    retention.stored = retention.due(projection.jobs, soon)
    assert [kept.seq for kept in retention.aged_out(2, soon)] == [1]
    assert retention.due(projection.jobs, soon) == {}
    assert retention.due(projection.jobs, late) == {}
    another = Retention(ENDED_BYTES, stored=retention.stored)
    assert another.aged_out(9, late) == [], "without its end it would seem to live"
    assert retention.outlived == another.outlived == {"j"}
    assert another.is_taken("j")
    shorter = Retention(ENDED_BYTES, stored=retention.stored, events_kept_s=8 * 86400)
    assert shorter.aged_out(9, 1000.0 + 8 * 86400 - 80_000) == [], "an installation may keep events for less"


def test_only_jobs_that_have_changed_are_looked_at() -> None:
    """Goal: a minute's work does not grow with the jobs of a month. Method: count the views that are asked for."""

    class Views(dict[str, JobView]):
        asked: ClassVar[list[str]] = []

        def get(self, job: str, default: Any = None) -> Any:
            self.asked.append(job)
            return super().get(job, default)

    projection, retention = Projection(), Retention(ENDED_BYTES)
    for seq in range(1, 6):
        projection.apply(submitted(f"job-{seq}"), seq, 1000.0)
        retention.note(submitted(f"job-{seq}"), seq, 1000.0, "")
    views = Views(projection.jobs)
    assert len(retention.due(views, 1001.0, most=3)) == 3
    assert retention.has_more
    assert len(retention.due(views, 1001.0)) == 2
    views.asked.clear()
    changed = replace(example_of(PlanDecided), job="job-3")
    projection.apply(changed, 6, 1002.0)
    retention.note(changed, 6, 1002.0, "")
    assert list(retention.due(views, 1003.0)) == views.asked == ["job-3"]
    retention.put_back(["job-3"])
    assert list(retention.due(views, 1003.0)) == ["job-3"], "it could not be stored"


async def test_the_name_of_a_job_that_aged_out_is_not_given_again() -> None:
    """The services know what they have decided about the old one: they would take it for that, and do nothing."""
    projection, retention = Projection(), Retention(ENDED_BYTES)
    for seq, message in enumerate((submitted("j"), JobCancelled(job="j", by="user", reason="")), start=1):
        projection.apply(message, seq, 1000.0)
        retention.note(message, seq, 1000.0, "")
    late = 1000.0 + EVENTS_KEPT_S
    bus: Any = Emptied(retention.due(projection.jobs, 1000.0))
    gateway = Gateway(bus, GatewaySettings(), lambda: late)
    with pytest.raises(Problem, match="not ready: still reading"):  # it does not know yet what names are spent
        await gateway.submissions.submit(submitted("j").spec, "somebody")
    await gateway.follow()
    with pytest.raises(Problem, match="a job called j ended long ago"):
        await gateway.submissions.submit(submitted("j").spec, "somebody")


class Emptied:
    """A bus whose stream has nothing left."""

    there = True
    events_kept_s = EVENTS_KEPT_S

    def __init__(self, stored: dict[str, bytes]) -> None:
        self.stored = stored

    async def kept(self) -> tuple[int, dict[str, bytes]]:
        return 3, self.stored

    async def spent(self, number: int | None = None) -> dict[int, SpentShard]:
        return {}

    async def fold(self, _: object, __: object, caught_up: Callable[[], None], ___: object) -> None:
        caught_up()


async def test_one_kept_job_that_cannot_be_read_keeps_no_gateway_from_the_others() -> None:
    projection, retention = Projection(), Retention(ENDED_BYTES)
    for seq, name in enumerate(("bad", "good"), start=1):
        projection.apply(submitted(name), seq, 1000.0)
        retention.note(submitted(name), seq, 1000.0, "")
    stored = retention.due(projection.jobs, 1000.0)
    stored["bad"] = stored["bad"].replace(b"m:M", b"no entry")

    bus: Any = Emptied(stored)
    gateway = Gateway(bus, GatewaySettings(), lambda: 1000.0)
    await gateway.follow()
    assert list(gateway.follower.projection.jobs) == ["good"]
