"""The next step for a TrainingJob, and the status that it gets: pure functions of the object and its job."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from stretto_kube import Object
from stretto_wire import JobSpec, WireError
from stretto_wire.findings import MOST
from stretto_wire.rest.views import OVER, JobView, Status

from ..requests.checks import OBJECTS

FINALIZER = "stretto.dev/job"
PROGRESS_S = 10.0
"""Interval at which values of the status are written that change with every batch."""
MOVING = ("progress", "samplesDone", "samplesTotal", "throughput")
MESSAGE_MAX = 2000
ENDED = frozenset(status.capitalize() for status in OVER)
RUNNING: frozenset[Status] = frozenset({"training", "finishing"})

Step = Literal["hold", "submit", "cancel", "wait", "release", "nothing"]


@dataclass(frozen=True, slots=True)
class RefusedTrainingJob:
    """The reason why an object has no job."""

    reason: Literal["InvalidSpec", "NameTaken", "QuotaUsed"]
    message: str


def spec_of(one: Object) -> JobSpec:
    """Return the specification in an object, whose name is the name of the job. Raises WireError."""
    name, spec = one["metadata"]["name"], one.get("spec") or {}
    if spec.get("name", name) != name:
        raise WireError("spec.name", spec["name"], f"{name}, the object's name; or leave it out")
    return JobSpec.parse({**spec, "name": name})


def admitted(one: Object) -> bool:
    """Return whether the object's job was submitted for it."""
    return any(each["type"] == "Admitted" and each["status"] == "True" for each in _conditions(one))


def actor_of(one: Object) -> str:
    """Return the actor that submits and cancels the object's job."""
    meta = one["metadata"]
    return f"{OBJECTS}{meta['namespace']}/{meta['name']}"


def next_step(one: Object, view: JobView | None, pods: int) -> Step:
    """Return the next step. ``view``: view of the job with the object's name, if any; ``pods``: number of its pods.

    Another user's job of that name is not touched: only an admitted job is cancelled.
    """
    meta = one["metadata"]
    held = FINALIZER in (meta.get("finalizers") or [])
    ours = admitted(one) or (view is not None and _runs_for(one, view))
    if meta.get("deletionTimestamp"):
        if not held:
            return "nothing"
        if not ours:
            return "release"
        over = view.status in OVER if view is not None else _phase(one) in ENDED  # the job may be older than the stream
        if not over:
            return "cancel" if view is not None else "wait"
        return "wait" if pods or (view is not None and _living(view)) else "release"
    if not held:
        return "hold"
    return "nothing" if ours else "submit"


def status_of(one: Object, job: JobView | RefusedTrainingJob, now_s: float) -> Object:
    """Return the status of an object: the state of its job, or the reason why it has no job."""
    status: Object = {"observedGeneration": one["metadata"].get("generation", 1)}
    if isinstance(job, RefusedTrainingJob):
        status |= {"phase": "Failed", "message": job.message[:MESSAGE_MAX]}
        conditions: list[tuple[str, bool, str, str]] = [
            ("Admitted", False, job.reason, job.message),
            ("Failed", True, job.reason, job.message),
        ]
    else:
        status |= _job_status(job)
        conditions = _conditions_of(one, job)
    return {**status, "conditions": _with_times(one, conditions, now_s)}


def worth_writing(before: Object, after: Object, since_s: float) -> bool:
    """Return whether the status has news. Values that change all the time wait for :data:`PROGRESS_S`."""
    if before == after:
        return False
    return since_s >= PROGRESS_S or any(
        before.get(key) != after.get(key) for key in before.keys() | after.keys() if key not in MOVING
    )


def _job_status(view: JobView) -> Object:
    done, total = view.progress.samples_done, view.progress.samples_total
    running = [pod.role for pod in view.pods.values() if pod.state == "running"]
    status: Object = {
        "phase": view.status.capitalize(),
        "workers": running.count("worker"),
        "ps": running.count("ps"),
        "planVersion": view.plan_version,
        "samplesDone": done,
        "samplesTotal": total,
        "progress": f"{100 * done // total}%" if total and not view.data.growing else str(done),
        "throughput": f"{view.progress.samples_per_s:.0f}",
        "submittedAt": _time(view.submitted_at_s),
    }
    if view.reason:
        status["message"] = view.reason[:MESSAGE_MAX]
    if view.ended_at_s is not None:
        status["endedAt"] = _time(view.ended_at_s)
    return status


def _conditions_of(one: Object, view: JobView) -> list[tuple[str, bool, str, str]]:
    phase = view.status.capitalize()
    ended_badly = view.status in ("failed", "cancelled")
    conditions = [
        ("Admitted", True, "Submitted", ""),
        ("Running", view.status in RUNNING, phase, ""),
        ("Completed", view.status == "finished", phase, ""),
        ("Failed", ended_badly, phase, view.reason if ended_badly else ""),
    ]
    if (changed := _change(one, view)) is not None:
        conditions.append(("SpecChanged", True, "Immutable", changed))
    return conditions


def _change(one: Object, view: JobView) -> str | None:
    """Return how the object's spec differs from the submitted job, or None."""
    remedy = "a job stays as it was submitted: undo the change, or delete the object and apply one of another name"
    try:
        wanted = spec_of(one).model_dump()
    except WireError as error:
        return f"{error}; {remedy}"
    known = view.spec.model_dump()
    different = sorted(key for key in wanted if wanted[key] != known[key])
    return f"spec.{', spec.'.join(different)} changed and has no effect; {remedy}" if different else None


def refusal_of(error: WireError) -> RefusedTrainingJob:
    """Return the refusal of an invalid specification, with every finding."""
    findings = "; ".join(str(each) for each in error.findings[:MOST])
    return RefusedTrainingJob("InvalidSpec", findings or str(error))


def _with_times(one: Object, conditions: list[tuple[str, bool, str, str]], now_s: float) -> list[Object]:
    """Return the conditions of an object. A condition whose status is unchanged keeps its transition time."""
    before: dict[str, Any] = {each["type"]: each for each in _conditions(one)}
    result: list[Object] = []
    for kind, holds, reason, message in conditions:
        status = "True" if holds else "False"
        known = before.get(kind)
        since = known["lastTransitionTime"] if known and known["status"] == status else _time(now_s)
        result.append(
            {
                "type": kind,
                "status": status,
                "reason": reason,
                "lastTransitionTime": since,
                "observedGeneration": one["metadata"].get("generation", 1),
                # a server of 1.20 turns an empty text into null and refuses it
                **({"message": message[:MESSAGE_MAX]} if message else {}),
            }
        )
    return result


def _runs_for(one: Object, view: JobView) -> bool:
    """Return whether a replica submitted the job for the object, and could not write that into the object's status."""
    return view.submitted_by == actor_of(one) and view.status not in OVER


def _living(view: JobView) -> bool:
    return any(pod.state == "running" for pod in view.pods.values())


def _phase(one: Object) -> str:
    return str((one.get("status") or {}).get("phase", ""))


def _conditions(one: Object) -> list[Object]:
    return (one.get("status") or {}).get("conditions") or []


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
