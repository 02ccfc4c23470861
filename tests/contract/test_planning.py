"""Planner and arbiter derive the same, complete knowledge of a job from its specification."""

from __future__ import annotations

import pytest
from stretto_arbiter.service import Arbiter
from stretto_arbiter.settings import ArbiterSettings
from stretto_core.model.types import DataWorkerLimits, JobLimits, JobProfile, Prices
from stretto_messages.values import Plan, Resources
from stretto_planner.service import Planner
from stretto_planner.settings import PlannerSettings
from stretto_runtime import Meta, Service
from stretto_wire import JobSpec, JobSubmitted

GIB = 2**30
INITIAL = {
    "workers": 3, "ps": 2, "worker_cpu_cores": 2.0, "ps_cpu_cores": 1.0, "worker_memory_bytes": 2 * GIB,
    "ps_memory_bytes": 4 * GIB,
}  # fmt: skip


@pytest.mark.parametrize("service", [Planner(PlannerSettings()), Arbiter(ArbiterSettings())])
def test_a_profile_is_all_that_the_specification_says(service: Service) -> None:
    spec = JobSpec.parse(
        {
            "name": "a",
            "model": {"entry": "m:M", "metadata": {"fields": 26}},
            "dataset": {"samples": 1000, "epochs": 3, "batch_size": 64},
            "resources": {
                "workers": {"count": {"max": 8}, "cpu_cores": {"min": 1.0}, "memory": {"min": "1Gi", "max": "8Gi"}},
                "data": {"count": 5, "cpu_cores": 0.5, "memory": "3Gi"},
                "initial": INITIAL,
                "fixed": True,
            },
            "prices": {"cpu_core_hour": 0.1, "memory_gib_hour": 0.02},
            "priority": 2.5,
            "deadline_s": 3600.0,
        }
    )
    meta = Meta(seq=1, time_s=0.0, subject="evt.v1.gateway.job-submitted.a", headers={}, key="a")
    event = service.to_event(JobSubmitted(job="a", spec=spec), meta)
    assert event.job == "a"
    assert event.profile == JobProfile(
        batch_size=64,
        samples=3000,
        limits=JobLimits(Plan(1, 1, 1.0, 0.5, GIB, GIB // 8), Plan(8, 16, 32.0, 32.0, 8 * GIB, 64 * GIB)),
        prices=Prices(0.1, 0.02),
        weight=2.5,
        metadata={"fields": 26},
        initial=Plan(3, 2, 2.0, 1.0, 2 * GIB, 4 * GIB),
        fixed=True,
        deadline_s=3600.0,
        data=DataWorkerLimits(Resources(0.5, 3 * GIB), always=0, most=5),
    )
