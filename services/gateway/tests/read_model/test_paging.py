"""Pages of the list of jobs: each job once, whatever comes and goes meanwhile."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stretto_gateway.problems import Problem
from stretto_gateway.read_model.paging import JobQuery, Order, page
from stretto_gateway.read_model.projection import Projection
from stretto_messages.values import MetricValue
from stretto_wire.rest.views import Cost, JobView

from ..gateway_process import Running
from ..job_events import submitted
from ..rest_documents import problem, spec

PROJECTION = Projection()
PROJECTION.apply(submitted("a"), 1, 1.0)
VIEW = PROJECTION.jobs["a"]


def job(name: str, submitted_at_s: float = 1.0, by: str = "ada") -> JobView:
    """A job that is dearer the later it came; of the latest nothing tells how good its model is."""
    told = {} if submitted_at_s > 1e9 else {"quality": [MetricValue(name="log loss", value=submitted_at_s)]}
    cost = Cost(so_far=submitted_at_s)
    return replace(VIEW, name=name, submitted_at_s=submitted_at_s, submitted_by=by, cost=cost, **told)


NAMES = st.text("abc", min_size=1, max_size=3)
JOBS = st.dictionaries(NAMES, st.sampled_from([1.0, 2.5, 2.5000001, 3e9]), max_size=20).map(
    lambda found: [job(name, at_s) for name, at_s in found.items()]
)
ORDERS = st.sampled_from(get_args(Order))


def ordered(jobs: list[JobView], order: str) -> list[str]:
    backwards = order[0] == "-"
    dated = order.strip("-") in ("submitted", "cost", "quality")
    unknown = -1.0 if backwards and "quality" in order else 3e9

    def place(one: JobView) -> tuple[float, str]:
        return (one.submitted_at_s if one.quality else unknown if "quality" in order else one.submitted_at_s), one.name

    return [one.name for one in sorted(jobs, key=place if dated else lambda one: one.name, reverse=backwards)]


@given(JOBS, ORDERS, st.integers(1, 7))
def test_the_pages_are_the_whole_list_in_order(jobs: list[JobView], order: Order, limit: int) -> None:
    seen, cursor, wanted = list[str](), None, JobQuery(order=order, limit=limit)
    while True:
        found = page(jobs, wanted, cursor)
        assert found.total == len(jobs)
        assert len(found.views) <= limit
        seen += [one.name for one in found.views]
        if (cursor := found.cursor) is None:
            break
        assert len(found.views) == limit
    assert seen == ordered(jobs, order)


@given(JOBS, ORDERS, st.integers(1, 4), st.data())
def test_jobs_that_come_and_go_shift_no_page(
    jobs: list[JobView], order: Order, limit: int, data: st.DataObject
) -> None:
    stays = {one.name for one in jobs if data.draw(st.booleans(), label=one.name)}
    present, seen, cursor, wanted = list(jobs), list[str](), None, JobQuery(order=order, limit=limit)
    while True:
        found = page(present, wanted, cursor)
        seen += [one.name for one in found.views]
        if (cursor := found.cursor) is None:
            break
        gone = data.draw(st.sets(st.sampled_from([one.name for one in present])))
        come = data.draw(st.dictionaries(NAMES, st.sampled_from([0.5, 2.7, 4e9]), max_size=3))
        names = {one.name for one in jobs} | {one.name for one in present}
        present = [one for one in present if one.name in stays or one.name not in gone]
        present += [job(name, at_s) for name, at_s in come.items() if name not in names]
    assert len(seen) == len(set(seen))
    assert stays <= set(seen)
    assert [name for name in seen if name in stays] == ordered([one for one in jobs if one.name in stays], order)


def test_filters_hold_together() -> None:
    jobs = [job("ads-1"), job("ads-2", by="bob"), job("feed-ada", by="bob"), job("x", by="ADA")]
    jobs[0].status = "training"

    def names(**wanted: object) -> list[str]:
        return [one.name for one in page(jobs, JobQuery(order="name", **wanted)).views]  # type: ignore[arg-type]

    assert names(q="ADA") == ["ads-1", "feed-ada", "x"], "in the name or the owner, in any case"
    assert names(owner="bob") == ["ads-2", "feed-ada"]
    assert names(q="ads", owner="ada") == ["ads-1"]
    assert names(statuses=frozenset({"training", "failed"})) == ["ads-1"]


@pytest.mark.parametrize("wrong", ["x", "", "é", "W10", "WyJuYW1lIl0", "bnVsbA", "a" * 500])
def test_what_is_no_cursor_is_refused(wrong: str) -> None:
    if not wrong:
        assert page([VIEW], JobQuery(), wrong).cursor is None
        return
    with pytest.raises(Problem) as caught:
        page([VIEW], JobQuery(), wrong)
    assert (caught.value.status, caught.value.field) == (400, "cursor")


def test_a_cursor_of_another_order_is_refused() -> None:
    cursor = page([job("a"), job("b")], JobQuery(limit=1)).cursor
    with pytest.raises(Problem, match="in the order -submitted"):
        page([VIEW], JobQuery(order="-submitted"), cursor)


def test_a_gateway_answers_pages_that_lead_to_each_other(gateway: Running) -> None:
    owner = "ada-of-pages"
    documents = [spec() for _ in range(5)]
    with gateway.http() as http:
        for document in documents:
            http.post("/jobs", json=document, headers={"X-Stretto-User": owner})
        params = {"owner": owner, "limit": "2", "order": "-submitted", "status": ["submitted", "waiting"]}
        answer, seen = http.get("/jobs", params=params), list[str]()
        assert answer.headers["total-count"] == "5"
        while True:
            seen += [one["name"] for one in answer.json()]
            if "next" not in answer.links:
                break
            address = answer.links["next"]["url"]
            assert re.match(r"/api/v1/jobs\?.*cursor=", address)
            http.delete(f"/jobs/{seen[-1]}")
            answer = http.get(address.removeprefix("/api/v1"))
        assert seen == [document["name"] for document in reversed(documents)]
        last = http.get("/jobs", params={"owner": owner, "q": seen[0]}).json()
        assert (last[0]["submitted_by"], last[0]["priority"], last[0]["pods_pending"]) == (owner, 1.0, 0)
        for wrong, value, status in (
            *(("cursor", "x", 400), ("order", "status", 422), ("status", "done", 422)),
            *(("limit", "0", 422), ("limit", "1001", 422), ("limits", "5", 422), ("limit", ["5", "6"], 422)),
        ):
            refused = problem(http.get("/jobs", params={wrong: value}))
            assert (refused["status"], refused["field"].partition(".")[0]) == (status, wrong)
