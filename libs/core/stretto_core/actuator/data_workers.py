"""Data workers: pods that prepare batches for workers. They hold nothing, so nothing waits for or ends with them."""

from __future__ import annotations

from stretto_messages.actuator import DataWorkersChanged
from stretto_messages.arbiter import DataWorkersDecided
from stretto_messages.values import DataWorker

from stretto_core.actuator.state import ActuatorState, DataWorkers, Facts

FAILURES_MAX = 5
"""Data workers that died in a row, none of them stable, after which a job goes on without any."""


def wanted(state: ActuatorState) -> int:
    """Return how many data workers there are to be."""
    works = state.phase == "active" and state.failures_in_row["data"] < FAILURES_MAX
    return state.data.count if works else 0


def decided(state: ActuatorState, event: DataWorkersDecided) -> None:
    """Want as many as were decided. None before is another try, whatever became of earlier ones."""
    if not state.data.count:
        state.failures_in_row["data"] = 0
    state.data = DataWorkers(event.count, event.cpu_cores, event.memory_bytes)
    state.data_decided = event.version


def settle(state: ActuatorState) -> Facts:
    """Publish the data workers that can be asked, if they are others than those published last."""
    running = tuple(DataWorker(index=pod.number, address=pod.address) for pod in state.of_role("data") if pod.address)
    if running == state.data_published:
        return []
    state.data_published = running
    state.data_version += 1
    return [DataWorkersChanged(job=state.job, version=state.data_version, data_workers=running)]
