"""The stages of a job as pods: one is lost, others take its place while the job trains, and the books are exact."""

from __future__ import annotations

from typing import Any

import pytest
from trainer_harness import spec_of, wait_for

pytestmark = pytest.mark.slow

SAMPLES = 10_000_000
"""More than are trained: the test leaves out what nobody has begun."""


def test_stages_are_lost_and_replaced_in_a_running_job(started: Any):
    cluster = started(spec_of(SAMPLES, resources={"workers": {"stages": "auto", "devices": ["fast"]}}))
    cluster.start_ps(0)
    cluster.launch_stage("worker-1", 1, 1)
    cluster.launch_stage("worker-2", 2, 5)
    cluster.announce_stages("worker-1", "worker-2")
    cluster.launch("worker-0")
    cluster.launch_stage("worker-3", 1, 1)  # computes to the end of the model

    def serve(*pods: str) -> None:
        """Wait until each of these pods has reported steps from now on."""
        before = len(cluster.worker_reports())

        def served() -> bool:
            return {*pods} <= {report.pod for report in cluster.worker_reports()[before:] if report.steps}

        wait_for(served)

    serve("worker-1", "worker-2")
    cluster.kill("worker-2")  # nobody says so: the stage before finds out
    serve("worker-0", "worker-1")
    cluster.announce_stages("worker-3")
    serve("worker-0", "worker-3")
    assert cluster.terminate("worker-1") == 0
    leased = cluster.end_soon()
    wait_for(cluster.finished)
    assert cluster.books(0)[0].applied_samples == leased
    assert not cluster.failed
    found = {report.pod: report for report in cluster.worker_reports() if report.steps}
    assert [found[f"worker-{number}"].stage for number in range(4)] == [0, 1, 2, 1]
    assert [found[f"worker-{number}"].samples_total > 0 for number in range(4)] == [True, False, False, False]
    assert all(report.times.grad_s > 0 for report in found.values())
    assert cluster.evaluated("worker-3", 1000).samples == 1000
