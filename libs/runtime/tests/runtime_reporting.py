"""A service that counts reports: whatever is lost, doubled or reordered shows in its outputs.

``python runtime_reporting.py`` runs one replica of it, for tests that kill.
"""

from __future__ import annotations

from typing import Any

from runtime_counting import Add, Counting
from stretto_messages.gateway import JobCancelled
from stretto_messages.pods import WorkerReported
from stretto_messages.profiler import HotPsCleared
from stretto_runtime import Input, Meta, run

QUIET, LOUD_FROM = "quiet", 1000
"""Beginning of the names of jobs about which nothing is published until they have counted so many."""


class Reporting(Counting):
    """Publishes count and sum after each event and each report; a report counts its ``steps_total``."""

    name = "profiler"
    inputs = (Input(JobCancelled), Input(WorkerReported))
    rpcs = ()

    def to_event(self, message: Any, meta: Meta) -> Any:
        if isinstance(message, WorkerReported):
            return Add(message.job, message.steps_total)
        return super().to_event(message, meta)

    def to_message(self, key: str, fact: Any) -> Any:
        if key.startswith(QUIET) and fact.total < LOUD_FROM:
            return None
        return HotPsCleared(job=fact.job, pod="ps-0", update_time_s=fact.count, peers_update_time_s=fact.total)


if __name__ == "__main__":
    run(Reporting)
