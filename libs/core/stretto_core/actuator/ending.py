"""The end of a job: its pods stop, and nothing else is wanted any more."""

from __future__ import annotations

from typing import Literal

from stretto_messages.actuator import JobFailed
from stretto_messages.base import bounded
from stretto_messages.values import GIVEN_UP_PERCENT

from stretto_core.actuator.state import ActuatorState, Facts


def end(state: ActuatorState, phase: Literal["finished", "failed", "cancelled"]) -> None:
    """End the job: stop all its pods."""
    state.phase = phase
    state.rebalance = None
    state.migration = None
    for pod in state.pods.values():
        pod.stop()


def fail(state: ActuatorState, reason: str) -> Facts:
    """End the job, which cannot go on."""
    end(state, "failed")
    return [JobFailed(job=state.job, reason=bounded(reason))]


def fail_beyond_samples_given_up(state: ActuatorState, samples: int) -> Facts:
    """Fail the job if more samples were given up than it may give up: a number of its specification, or a share.

    The share is judged once the number of all samples is known.
    """
    total, most = state.samples_total or state.samples_known, state.samples_given_up_max
    if most is None and total == 0:
        return []
    allowed = total * GIVEN_UP_PERCENT // 100 if most is None else most
    if samples <= allowed:
        return []
    of_all = f" of {total:,} ({samples / total:.2%})" if total else ""
    bound = (
        "restarts.samples_given_up"
        if most is not None
        else f"{GIVEN_UP_PERCENT} %, as restarts.samples_given_up is null"
    )
    last = f"; the last: {state.given_up_reason}" if state.given_up_reason else ""
    return fail(
        state,
        f"{samples:,} samples{of_all} were given up, and at most {allowed:,} may be ({bound}): mend the data, or allow "
        f"more by a higher restarts.samples_given_up{last}",
    )
