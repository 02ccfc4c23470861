"""Data workers: pods that prepare batches for workers. They hold nothing, so nothing waits for or ends with them."""

from __future__ import annotations

from stretto_messages.actuator import DataWorkersChanged
from stretto_messages.values import DataWorker

from stretto_core.actuator.state import ActuatorState, Facts

FAILURES_MAX = 5
"""Data workers that died in a row, none of them stable, after which a job goes on without any."""


def wanted(state: ActuatorState) -> int:
    """Return how many data workers there are to be."""
    works = state.phase == "active" and state.failures_in_row["data"] < FAILURES_MAX
    return state.data.count if works else 0


def settle(state: ActuatorState) -> Facts:
    """Publish the data workers that can be asked, if they are others than those published last."""
    running = tuple(DataWorker(index=pod.number, address=pod.address) for pod in state.of_role("data") if pod.address)
    if running == state.data_published:
        return []
    state.data_published = running
    state.data_version += 1
    return [DataWorkersChanged(job=state.job, version=state.data_version, data_workers=running)]
