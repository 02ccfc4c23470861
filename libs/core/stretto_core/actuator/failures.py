"""Deaths of pods that a job survives: they are counted by their kind, and each kind has its bound."""

from __future__ import annotations

from stretto_messages.actuator import PodExited

from stretto_core.actuator.ending import fail
from stretto_core.actuator.state import ActuatorState, Facts, Pod

USER_ERROR = 3
"""Exit code of a pod whose user's code or data failed."""
UNTRAINED_USER_FAILURES = 1
"""Ends of workers with the user's error that a job survives before it has trained a sample, or before its first plan
is applied if they are of one later stage. The second try excludes an accident of one machine; code and data that have
never worked would fail again."""

STABLE_S = 30.0
"""A pod that ran at least so long before it died starts the back-off of its role afresh."""
PLATFORM_FAILURES = 20
"""More failures of one role in a row than this, none of them stable, end the job."""
ENDURING_S = 600.0
CRASHES_MAX = 20
CRASHES_PER_WORKER = 4
"""More crashes and oom-kills of workers in a row than the larger bound end the job, unless one lived ``ENDURING_S``."""
CRASHES = (132, 134, 135, 136, 139)
"""Exit codes after SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV"""
BLAMELESS = ("evicted", "preempted", "node-lost")
"""Reasons that are no fault of the job or its pods: they are counted against nothing."""
OOM_FACTOR = 1.5
"""Memory of the next workers, relative to a worker that was killed for its memory."""


def count(state: ActuatorState, pod: Pod, event: PodExited, now: float) -> str | None:
    """Count the unwanted death of ``pod``; return the reason if the job ends with it.

    A stable pod that dies is replaced at once; one that keeps dying, less and less often; at last not at all. An image
    that pods of the job have run with is out of reach, not wrong: it is tried again like anything else.
    """
    _note_stage(state, pod, now)
    if event.reason in BLAMELESS:
        return None
    if event.used_up:  # another pod would do the same, while all other jobs stand still
        return f"the job has used up {event.used_up}"
    if event.reason == "image-pull" and not state.applied_version:
        return f"the image of {pod.name} cannot be had: {event.detail}"
    failures = 1 if _is_stable(pod, now) else state.failures_in_row[pod.role] + 1
    state.failures_in_row[pod.role] = failures
    what = f"{pod.name} ended with exit code {event.exit_code} ({event.reason})"
    why = event.detail.rpartition(f"exit {event.exit_code}: ")[2]  # a pod's last line says it (libs/trainer)
    detail = f": {why}" if why else ""
    if pod.role == "data":  # the job goes on without it
        state.data_failure = what + detail
        return None
    if event.exit_code == USER_ERROR and pod.role == "ps":
        return f"the model cannot be built{detail}"  # a server runs no other code of the user's: it would fail again
    if event.exit_code == USER_ERROR:
        state.user_failures += 1
        return _too_many_user_failures(state, pod, what, detail)
    crashed = _count_crash(state, pod, event, now) if pod.role == "worker" else None
    if failures > PLATFORM_FAILURES:
        return f"{what}; {failures} {pod.role} pods in a row died within {STABLE_S:g} s of their start{detail}"
    return f"{what}; {crashed}{detail}" if crashed else None


def _is_stable(pod: Pod, now: float) -> bool:
    return pod.started_at_s is not None and now - pod.started_at_s >= STABLE_S


def _note_stage(state: ActuatorState, pod: Pod, now: float) -> None:
    """Note that the later stage of ``pod``, which has died, has begun: that one of its workers ran stably."""
    if not pod.stage or pod.stage in state.begun_stages:
        return
    if any(_is_stable(each, now) for each in (pod, *state.of_role("worker")) if each.stage == pod.stage):
        state.begun_stages.append(pod.stage)
        state.stage_failures.pop(str(pod.stage), None)


def program_ended(state: ActuatorState, event: PodExited) -> Facts:
    """Take note of a program that ended after the last sample; a program that failed there may have kept no result.

    Nobody runs it again: all samples are done, and another worker would have none to lead it to its end.
    """
    if event.exit_code == 0:
        return []
    why = event.detail.rpartition(f"exit {event.exit_code}: ")[2]
    code = "no exit code" if event.exit_code is None else f"exit code {event.exit_code}"
    what = why if event.exit_code == USER_ERROR and why else f"{code} ({event.reason}){f': {why}' if why else ''}"
    return fail(state, f"the program of {event.pod} failed after the last sample, and may not have saved: {what}")


def _too_many_user_failures(state: ActuatorState, pod: Pod, what: str, detail: str) -> str | None:
    """Return the reason if workers ended with the user's error more often than the job survives.

    The job trains without a later stage, and would do so to its end if no worker can compute its layers.
    """
    times, whose, stage = state.user_failures, "workers", str(pod.stage)
    if pod.stage and pod.stage not in state.begun_stages:
        state.stage_failures[stage] = state.stage_failures.get(stage, 0) + 1
    if times > state.worker_failures_allowed:
        bound = f"restarts.worker_failures allows {state.worker_failures_allowed}"
    elif not state.has_trained and times > UNTRAINED_USER_FAILURES:
        bound = f"the job has not {'done any of its work' if state.runs_program else 'trained any sample'}"
    elif not state.applied_version and state.stage_failures.get(stage, 0) > UNTRAINED_USER_FAILURES:
        times, whose = state.stage_failures[stage], f"workers of stage {stage}"
        bound = f"none of them ran {STABLE_S:g} s"
    else:
        return None
    repeated = f"{whose} ended so {times} time{'s' * (times != 1)}"
    return f"{what}, an error of the user's code or data; {repeated}, and {bound}{detail}"


def _count_crash(state: ActuatorState, pod: Pod, event: PodExited, now: float) -> str | None:
    """Count a worker's crash or oom-kill; return the reason if there were too many, however long each one lived.

    After an oom-kill the next workers get more memory. A plain SIGKILL comes from outside: a preemption.
    """
    oom = event.reason == "oom-killed"
    if not oom and event.exit_code not in CRASHES:
        return None
    workers = [pod, *state.of_role("worker")]
    enduring = any(w.started_at_s is not None and now - w.started_at_s >= ENDURING_S for w in workers)
    state.crashes_in_row = 1 if enduring else state.crashes_in_row + 1
    if oom and not pod.device:  # a unit of devices has the memory that it has
        raised = min(int(pod.memory_bytes * OOM_FACTOR), state.worker_memory_max_bytes)
        state.worker_memory_least_bytes = max(state.worker_memory_least_bytes, raised)
    if state.crashes_in_row <= max(CRASHES_MAX, CRASHES_PER_WORKER * (state.plan.workers if state.plan else 0)):
        return None
    return (
        f"{state.crashes_in_row} workers in a row crashed or were killed for their memory, and none lived "
        f"{ENDURING_S:g} s; the last one had {pod.memory_bytes} bytes; "
        f"resources.workers.memory.max allows {state.worker_memory_max_bytes}"
    )
