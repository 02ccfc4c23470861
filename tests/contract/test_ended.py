"""The machines of a job that is over say so: then they rest, and are forgotten when its events have aged out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stretto_actuator.service import Actuator
from stretto_actuator.settings import ActuatorSettings
from stretto_checkpoints.service import Checkpoints
from stretto_checkpoints.settings import CheckpointsSettings
from stretto_dispatcher.service import Dispatcher
from stretto_dispatcher.settings import DispatcherSettings
from stretto_fitter.service import Fitter
from stretto_fitter.settings import FitterSettings
from stretto_messages.base import Message, example_of
from stretto_messages.gateway import JobCancelled
from stretto_messages.profiler import ProfileMeasured
from stretto_oom.service import Oom
from stretto_oom.settings import OomSettings
from stretto_planner.service import Planner
from stretto_planner.settings import PlannerSettings
from stretto_profiler.service import Profiler
from stretto_profiler.settings import ProfilerSettings
from stretto_runtime import Meta
from stretto_wire.contract.submission import JobSubmitted
from stretto_wire.jobspec.spec import JobSpec

JOB = "job-a"
SPEC = JobSpec.parse({"name": JOB, "model": {"entry": "m:M"}, "dataset": {"samples": 100}})
SERVICES: dict[str, tuple[Any, Any]] = {
    "actuator": (Actuator, ActuatorSettings),
    "checkpoints": (Checkpoints, CheckpointsSettings),
    "dispatcher": (Dispatcher, DispatcherSettings),
    "fitter": (Fitter, FitterSettings),
    "oom": (Oom, OomSettings),
    "planner": (Planner, PlannerSettings),
    "profiler": (Profiler, ProfilerSettings),
}


@pytest.mark.parametrize("name", SERVICES)
def test_a_machine_has_ended_once_its_job_is_over_and_not_before(name: str, tmp_path: Path) -> None:
    service_type, settings_type = SERVICES[name]
    service = service_type(settings_type(state_folder=tmp_path))
    machine = service.machine(JOB, None)

    def tell(message: Message) -> None:
        if any(entry.message is type(message) and entry.scope == "job" for entry in service.inputs):
            event = service.to_event(message, Meta(1, 1000.0, "", {}, JOB))
            machine.handle(event, 1000.0)

    tell(JobSubmitted(job=JOB, spec=SPEC, submitted_by="somebody"))
    tell(replace(example_of(ProfileMeasured), job=JOB))
    assert not machine.ended
    tell(JobCancelled(job=JOB, by="somebody", reason=""))
    assert machine.ended
    assert not getattr(machine, "ticking", False), "a resting machine gets no ticks"
