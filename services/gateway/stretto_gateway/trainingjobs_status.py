"""A TrainingJob and the job that it asks for: what is to do next, and what the object's status says. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from stretto_kube import Object
from stretto_wire import JobSpec, WireError
from stretto_wire.findings import MOST

from .views import OVER, JobView, Status

FINALIZER = "stretto.dev/job"
PROGRESS_S = 10.0
"""what changes with every batch is told so often"""
MOVING = ("progress", "samplesDone", "samplesTotal", "throughput")
MESSAGE_MAX = 2000
ENDED = frozenset(status.capitalize() for status in OVER)
RUNNING: frozenset[Status] = frozenset({"training", "finishing"})

Step = Literal["hold", "submit", "cancel", "wait", "release", "nothing"]


@dataclass(frozen=True, slots=True)
class Refused:
    """Why the object is no job."""

    reason: Literal["InvalidSpec", "NameTaken"]
    message: str


def spec_of(one: Object) -> JobSpec:
    """The job that an object asks for, called like the object. Raises WireError."""
    name, said = one["metadata"]["name"], one.get("spec") or {}
    if said.get("name", name) != name:
        raise WireError("spec.name", said["name"], f"{name}, as the object is called; or leave it out")
    return JobSpec.parse({**said, "name": name})


def admitted(one: Object) -> bool:
    """Whether the object's job was submitted for it."""
    return any(each["type"] == "Admitted" and each["status"] == "True" for each in _conditions(one))


def actor_of(one: Object) -> str:
    """In whose name the object's job is submitted and cancelled."""
    meta = one["metadata"]
    return f"trainingjob/{meta['namespace']}/{meta['name']}"


def next_step(one: Object, view: JobView | None, pods: int) -> Step:
    """``view``: of the job of that name, if there is one; ``pods``: that the cluster has of it.

    A job of somebody else under the same name is not touched: only what was admitted is cancelled.
    """
    meta = one["metadata"]
    held = FINALIZER in (meta.get("finalizers") or [])
    ours = admitted(one) or (view is not None and _runs_for(one, view))
    if meta.get("deletionTimestamp"):
        if not held:
            return "nothing"
        if not ours:
            return "release"
        over = view.status in OVER if view is not None else _phase(one) in ENDED  # it may be older than the stream
        if not over:
            return "cancel" if view is not None else "wait"
        return "wait" if pods or (view is not None and _living(view)) else "release"
    if not held:
        return "hold"
    return "nothing" if ours else "submit"


def status_of(one: Object, job: JobView | Refused, now_s: float) -> Object:
    """What the object is to say of its job, or of why it is none."""
    status: Object = {"observedGeneration": one["metadata"].get("generation", 1)}
    if isinstance(job, Refused):
        status |= {"phase": "Failed", "message": job.message[:MESSAGE_MAX]}
        said = [("Admitted", False, job.reason, job.message), ("Failed", True, job.reason, job.message)]
    else:
        status |= _told(job)
        said = _said(one, job)
    return {**status, "conditions": _kept(one, said, now_s)}


def worth_writing(before: Object, after: Object, since_s: float) -> bool:
    """Whether the status says something new; what moves all the time waits for :data:`PROGRESS_S`."""
    if before == after:
        return False
    return since_s >= PROGRESS_S or any(
        before.get(key) != after.get(key) for key in before.keys() | after.keys() if key not in MOVING
    )


def _told(view: JobView) -> Object:
    done, total = view.progress.samples_done, view.progress.samples_total
    running = [pod.role for pod in view.pods.values() if pod.state == "running"]
    told: Object = {
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
        told["message"] = view.reason[:MESSAGE_MAX]
    if view.ended_at_s is not None:
        told["endedAt"] = _time(view.ended_at_s)
    return told


def _said(one: Object, view: JobView) -> list[tuple[str, bool, str, str]]:
    phase = view.status.capitalize()
    ended_badly = view.status in ("failed", "cancelled")
    said = [
        ("Admitted", True, "Submitted", ""),
        ("Running", view.status in RUNNING, phase, ""),
        ("Completed", view.status == "finished", phase, ""),
        ("Failed", ended_badly, phase, view.reason if ended_badly else ""),
    ]
    if (changed := _change(one, view)) is not None:
        said.append(("SpecChanged", True, "Immutable", changed))
    return said


def _change(one: Object, view: JobView) -> str | None:
    """A job is what was submitted; None: the object still says that."""
    remedy = "a job stays as it was submitted: undo the change, or delete the object and apply one of another name"
    try:
        wanted = spec_of(one).model_dump()
    except WireError as error:
        return f"{error}; {remedy}"
    known = view.spec.model_dump()
    different = sorted(key for key in wanted if wanted[key] != known[key])
    return f"spec.{', spec.'.join(different)} changed and has no effect; {remedy}" if different else None


def refusal_of(error: WireError) -> Refused:
    """Every finding of a specification that is no job's."""
    told = "; ".join(str(each) for each in error.findings[:MOST])
    return Refused("InvalidSpec", told or str(error))


def _kept(one: Object, said: list[tuple[str, bool, str, str]], now_s: float) -> list[Object]:
    """Conditions; one whose status is as before has changed when it did."""
    before: dict[str, Any] = {each["type"]: each for each in _conditions(one)}
    result: list[Object] = []
    for kind, holds, reason, message in said:
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
                # an empty text becomes null where a server of 1.20 applies it, and is refused
                **({"message": message[:MESSAGE_MAX]} if message else {}),
            }
        )
    return result


def _runs_for(one: Object, view: JobView) -> bool:
    """Its job was submitted, and who did it could not write that down."""
    return view.submitted_by == actor_of(one) and view.status not in OVER


def _living(view: JobView) -> bool:
    return any(pod.state == "running" for pod in view.pods.values())


def _phase(one: Object) -> str:
    return str((one.get("status") or {}).get("phase", ""))


def _conditions(one: Object) -> list[Object]:
    return (one.get("status") or {}).get("conditions") or []


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
