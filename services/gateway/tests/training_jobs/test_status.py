"""Consequences of an object and its job: a pure function, so that any replica continues from the present state."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stretto_gateway.training_jobs.schema import CONDITIONS, PHASES
from stretto_gateway.training_jobs.status import (
    FINALIZER,
    PROGRESS_S,
    RefusedTrainingJob,
    next_step,
    spec_of,
    status_of,
    worth_writing,
)
from stretto_wire import JobSpec, WireError
from stretto_wire.rest.views import OVER, JobView, PodView, Status

SPEC: dict[str, Any] = {"model": {"entry": "m:M"}, "dataset": {"samples": 1000}}
statuses: st.SearchStrategy[Status] = st.sampled_from(
    ["submitted", "waiting", "starting", "training", "finishing", "finished", "failed", "cancelled"]
)


def an_object(
    held: bool = True, deleting: bool = False, admitted: bool = False, phase: str = "", **spec: Any
) -> dict[str, Any]:
    meta: dict[str, Any] = {"name": "ads", "namespace": "training", "generation": 3}
    meta |= {"finalizers": [FINALIZER]} if held else {}
    meta |= {"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleting else {}
    condition = {"type": "Admitted", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    status = {"phase": phase, "conditions": [condition] if admitted else []}
    return {"metadata": meta, "spec": {**SPEC, **spec}, "status": status}


def a_view(status: Status, running: int = 0, by: str = "ada", **more: Any) -> JobView:
    view = JobView("ads", status, JobSpec.parse({**SPEC, "name": "ads"}), 0.0, by, **more)
    view.pods = {f"worker-{number}": PodView(f"worker-{number}", "worker") for number in range(running)}
    return view


@given(*[st.booleans()] * 4, st.none() | statuses, st.integers(0, 2), st.integers(0, 2))
def test_every_next_step_is_right(
    held: bool, deleting: bool, told: bool, own: bool, status: Status | None, running: int, pods: int
) -> None:
    """``told``: the object says that it was admitted; ``own``: its job was submitted for it, whatever it says."""
    view = a_view(status, running, "trainingjob/training/ads" if own else "ada") if status is not None else None
    step = next_step(an_object(held, deleting, told, phase="Training"), view, pods)
    admitted = told or (own and status is not None and status not in OVER)
    if step == "cancel":
        assert admitted, "somebody else's job is not cancelled"
        assert status is not None
        assert status not in OVER
    if step == "submit":
        assert held, "an object that nobody holds could be deleted while its job is submitted"
        assert not deleting
        assert not admitted, "a job is submitted once"
    if step == "release":
        assert deleting
        assert not admitted or (status in OVER and not running and not pods)
    if deleting and held and admitted and status in OVER and not running and not pods:
        assert step == "release"
    if step == "hold":
        assert not held
        assert not deleting


def test_an_object_outlives_what_the_stream_keeps_of_its_job() -> None:
    assert next_step(an_object(admitted=True, phase="Finished"), None, 0) == "nothing"
    assert next_step(an_object(admitted=True, deleting=True, phase="Finished"), None, 0) == "release"
    assert next_step(an_object(admitted=True, deleting=True, phase="Training"), None, 0) == "wait"


@given(statuses, st.floats(0, 4e9))
def test_every_status_is_one_that_the_definition_knows(status: Status, now_s: float) -> None:
    told = status_of(an_object(), a_view(status), now_s)
    assert told["phase"] in PHASES
    kinds = {each["type"]: each["status"] for each in told["conditions"]}
    assert kinds.keys() <= set(CONDITIONS)
    assert kinds["Admitted"] == "True"
    assert (kinds["Completed"], kinds["Failed"]).count("True") == (status in OVER)
    assert told["observedGeneration"] == 3


def test_a_condition_keeps_the_time_since_it_holds() -> None:
    one = an_object()
    one["status"] = status_of(one, a_view("training"), 1000.0)
    later = status_of(one, a_view("finished"), 2000.0)
    since = {each["type"]: each["lastTransitionTime"] for each in later["conditions"]}
    assert since["Admitted"] == "1970-01-01T00:16:40Z"
    assert since["Completed"] == "1970-01-01T00:33:20Z"


def test_what_was_refused_says_why_until_it_is_corrected() -> None:
    told = status_of(an_object(), RefusedTrainingJob("InvalidSpec", "dataset.samples: a whole number"), 0.0)
    assert (told["phase"], told["message"]) == ("Failed", "dataset.samples: a whole number")
    assert {each["type"]: each["status"] for each in told["conditions"]} == {"Admitted": "False", "Failed": "True"}


def test_progress_alone_is_told_now_and_then() -> None:
    before = {"phase": "Training", "progress": "1%", "workers": 1}
    assert not worth_writing(before, dict(before), 1e9)
    assert not worth_writing(before, {**before, "progress": "2%"}, PROGRESS_S - 1)
    assert worth_writing(before, {**before, "progress": "2%"}, PROGRESS_S)
    assert worth_writing(before, {**before, "workers": 2}, 0.0)


def test_the_name_is_the_object_s() -> None:
    assert spec_of(an_object()).name == "ads"
    assert spec_of(an_object(name="ads")).name == "ads"
    with pytest.raises(WireError, match=r"spec\.name"):
        spec_of(an_object(name="other"))
