"""The end of a job: its pods stop, and nothing else is wanted any more."""

from __future__ import annotations

from typing import Literal

from stretto_messages.actuator import JobFailed
from stretto_messages.base import bounded

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


def fail_beyond_samples_given_up(state: ActuatorState, samples: int, last: str = "") -> Facts:
    """Fail the job if more samples were given up than its specification allows. ``last``: the latest reason."""
    limit = state.samples_given_up_max
    if limit is None or samples <= limit:
        return []
    last = f"; the last: {last}" if last else ""
    return fail(state, f"{samples} samples were given up, restarts.samples_given_up allows {limit}{last}")
