"""The part of a job's specification that decisions on its plan depend on."""

from __future__ import annotations

from stretto_core.model.types import DataWorkerLimits, JobLimits, JobOpened, JobProfile, Prices
from stretto_wire.contract.submission import JobSubmitted
from stretto_wire.jobspec.spec import JobSpec

NO_END_IN_SIGHT = 10**13
"""Samples of a dataset that grows, for decisions: a change of plan has all the time to pay off"""


def profile_of(spec: JobSpec) -> JobProfile:
    """Return what the decisions need to know of a specification."""
    resources = spec.resources
    return JobProfile(
        batch_size=spec.dataset.batch_size,
        samples=NO_END_IN_SIGHT if spec.dataset.growing else spec.samples_total,
        limits=JobLimits(resources.least, resources.most),
        prices=Prices(**spec.prices.model_dump()),
        weight=spec.priority,
        metadata=dict(spec.model.metadata),
        initial=resources.initial,
        fixed=resources.fixed,
        deadline_s=spec.deadline_s,
        extended=resources.extended,
        data=DataWorkerLimits(
            resources.data.each, resources.data.always, resources.data.most, reads_ahead=spec.program is None
        ),
        spill=resources.ps.spill,
        spill_limit_bytes=resources.ps.spill_limit,
        devices_asked=resources.workers.devices,
        stages=resources.workers.stages,
        watched=spec.level == 0,
        elsewhere=spec.program is not None and spec.program.object is not None,
    )


def opened(message: JobSubmitted) -> JobOpened:
    """Return the event with which a job begins for the machines that decide on plans."""
    return JobOpened(message.job, profile_of(message.spec), message.team)
