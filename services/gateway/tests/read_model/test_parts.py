"""The parts of a job: which events change which, their ETags, and what is not sent again."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from dataclasses import fields, replace
from functools import cache
from typing import Any

import httpx
import pytest
import stretto_wire as wire
from hypothesis import given
from hypothesis import strategies as st
from stretto_gateway.read_model.parts import ALWAYS, LISTED, PARTS_OF, REPORTED, Revisions, dumped, fields_of, matches
from stretto_gateway.read_model.projection import Projection
from stretto_messages.actuator import PodPending, PodStarted
from stretto_messages.arbiter import PlanDecided, PlanRefused
from stretto_messages.base import Message, example_of
from stretto_messages.checkpoints import CheckpointFailed, CheckpointFlushed
from stretto_messages.dispatcher import JobProgressed, LedgerReturn
from stretto_messages.profiler import ProfileMeasured
from stretto_wire.contract.registry import CHANNELS, channel_of
from stretto_wire.rest.parts import PARTS
from stretto_wire.rest.views import JobView

from ..gateway_process import Running
from ..job_events import worker_report
from ..rest_documents import problem, spec

JOB = example_of(wire.JobSubmitted).job
EXAMPLES: list[Message] = [
    replace(example_of(channel.message), job=JOB) for channel in CHANNELS if channel.kind == "evt"
]  # fmt: skip
GROWING = {"samples": 100, "partitions": [{"name": "day=1", "samples": 100}], "growing": True}
SUBMITTED = wire.JobSubmitted(
    job=JOB, spec=wire.JobSpec.parse({"name": JOB, "model": {"entry": "m:M"}, "dataset": GROWING})
)
FINAL = "000009-final"
VARIANTS: list[Message] = [
    *(replace(example_of(PodStarted), pod=pod) for pod in ("worker-1", "worker-3", "ps-0", "ps-1")),
    replace(example_of(PodStarted), pod="worker-9", cause="relaunch"),
    replace(example_of(PodPending), pod="worker-2"),
    replace(example_of(ProfileMeasured), plan_version=2, settled=True),
    replace(
        example_of(JobProgressed),
        returned=LedgerReturn(checkpoint="c", samples_before=5, samples_gained=0, samples_undone=1),
    ),
    replace(example_of(CheckpointFailed), id=FINAL),
    replace(
        example_of(CheckpointFlushed), checkpoint=replace(example_of(CheckpointFlushed).checkpoint, id=FINAL)
    ),
]  # fmt: skip
"""Events that change more than the examples do: of other pods, of the final checkpoint, with a return."""
BEGINNING = [example_of(PlanDecided), replace(example_of(PodPending), pod="worker-2"), example_of(PodStarted)]
"""A pod that could not run is the reason why the job does not train, until it starts."""
CHAPTERS = 40
ENDS = ("job-finished", "job-failed", "job-cancelled", "object-released")


def snapshot(view: JobView) -> dict[str, str]:
    """Each part of a view as text."""
    return {part: json.dumps(_without(json.loads(dumped(view, [part])))) for part in PARTS}


def _without(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in ALWAYS}


@cache
def observed() -> dict[str, set[str]]:
    """The parts that each event changed, in histories of all events in many orders."""
    found: dict[str, set[str]] = defaultdict(set)
    for seed in range(CHAPTERS):
        history = [*EXAMPLES[1:], *VARIANTS, *EXAMPLES[1:]]
        random.Random(seed).shuffle(history)
        history = [*BEGINNING, *history] if seed % 3 == 0 else history
        if seed % 2:  # a job's end stops much: let it come last
            history.sort(key=lambda message: channel_of(message).name in ENDS)
        projection = Projection()
        projection.apply(SUBMITTED, 1, 1.0)
        before = snapshot(projection.jobs[JOB])
        for seq, message in enumerate(history, 2):
            projection.apply(message, seq, float(seq))
            after = snapshot(projection.jobs[JOB])
            found[channel_of(message).name] |= {part for part in PARTS if before[part] != after[part]}
            before = after
    return found


def test_every_field_of_the_view_is_in_one_part() -> None:
    named = [name for part in PARTS for name in fields_of([part]) - ALWAYS]
    assert sorted([*named, *ALWAYS]) == sorted(one.name for one in fields(JobView))


def test_every_event_is_in_the_map() -> None:
    assert PARTS_OF.keys() == {channel.name for channel in CHANNELS if channel.kind == "evt"}


@pytest.mark.parametrize("event", sorted(PARTS_OF.keys() - {"job-submitted", "object-adopted"}))
def test_the_map_names_the_parts_that_an_event_changes_and_no_others(event: str) -> None:
    assert observed()[event] == set(PARTS_OF[event])


@given(st.lists(st.sampled_from([*EXAMPLES[1:], *VARIANTS]), max_size=25), st.sets(st.sampled_from(PARTS), min_size=1))
def test_the_tag_of_what_has_changed_changes(history: list[Message], parts: set[Any]) -> None:
    projection = Projection()
    projection.apply(SUBMITTED, 1, 1.0)
    revisions, view = projection.revisions(JOB), projection.jobs[JOB]
    before, tag = snapshot(view), revisions.tag(parts, "boot")
    for seq, message in enumerate(history, 2):
        projection.apply(message, seq, float(seq))
        after, new = snapshot(view), revisions.tag(parts, "boot")
        if any(before[part] != after[part] for part in parts):
            assert new != tag, channel_of(message).name
        before, tag = after, new


def test_telemetry_changes_the_tags_of_the_parts_that_it_reaches() -> None:
    projection = Projection()
    for seq, message in enumerate((SUBMITTED, replace(example_of(PodStarted), pod="worker-0")), 1):
        projection.apply(message, seq, float(seq))
    revisions, view = projection.revisions(JOB), projection.jobs[JOB]
    before, tags = snapshot(view), {part: revisions.tag([part], "one") for part in PARTS}
    for at_s in (3.0, 4.0):
        projection.report(replace(worker_report("worker-0", at_s, 0.5), job=JOB), at_s)
    after = {part for part in PARTS if snapshot(view)[part] != before[part]}
    changed = {part for part in PARTS if revisions.tag([part], "one") != tags[part]}
    assert after <= changed == REPORTED
    assert revisions.tag(["pods"], "one") != revisions.tag(["pods"], "two"), "each replica counts for itself"
    assert revisions.tag(["spec"], "one") == revisions.tag(["spec"], "two")


@pytest.mark.parametrize(
    ("held", "same"),
    [
        (None, False), ('"7"', True), ('W/"7"', True), ('"6"', False), ('"6", "7"', True), ("*", True), ("7", False),
        ("", False), ('"', False),
    ],
)  # fmt: skip
def test_an_etag_is_compared_as_http_says(held: str | None, same: bool) -> None:
    revisions = Revisions()
    revisions.seqs["spec"] = 7
    assert matches(held, revisions.tag(["spec"], "boot")) is same


def test_of_lists_of_happenings_the_latest_may_be_enough() -> None:
    projection = Projection()
    projection.apply(SUBMITTED, 1, 1.0)
    for seq in range(2, 12):
        projection.apply(example_of(PlanRefused), 2 * seq, float(seq))
        projection.apply(example_of(ProfileMeasured), 2 * seq + 1, float(seq))
    view = projection.jobs[JOB]
    found = json.loads(dumped(view, ["refusals", "migrations", "throughput"], 3))
    assert found.keys() == {*ALWAYS, "refusals", "migrations", "throughput"}
    assert [one["time_s"] for one in found["refusals"]] == [9.0, 10.0, 11.0]
    assert (found["migrations"], len(found["throughput"])) == ([], len(view.throughput))
    assert set(LISTED) < set(PARTS)


def test_a_gateway_sends_what_has_changed_and_nothing_twice(gateway: Running) -> None:
    document = spec()
    path = f"/jobs/{document['name']}"
    with gateway.http() as http:
        http.post("/jobs", json=document)

        def ask(part: list[str], tag: str = "") -> httpx.Response:
            headers = {"If-None-Match": tag} if tag else {}
            return http.get(f"{path}/parts", params={"part": part}, headers=headers)

        whole, head = http.get(path), ask(["head"])
        assert ask([]).json() == whole.json()
        assert head.json().keys() == fields_of(["head"])
        assert head.json().items() <= whole.json().items()
        specified = ask(["spec"])
        assert specified.json()["spec"]["name"] == document["name"]
        for address, tag in ((path, whole.headers["etag"]), (f"{path}/parts?part=head", head.headers["etag"])):
            same = http.get(address, headers={"If-None-Match": tag})
            assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", tag)
            assert same.headers["cache-control"] == "no-store"
        http.delete(path)
        assert ask(["head"], head.headers["etag"]).json()["status"] == "cancelled"
        assert ask(["spec"], specified.headers["etag"]).status_code == 304
        assert problem(ask(["heads"]))["field"].startswith("part")
        assert http.get("/schema/parts").json() == {event: list(parts) for event, parts in PARTS_OF.items()}
        assert http.get("/jobs/no-such-job/parts").status_code == 404
