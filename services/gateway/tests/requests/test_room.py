"""Room for a plan: what the gateway says of it, by the arbiter's account of the cluster and the quotas of teams."""

from __future__ import annotations

from dataclasses import replace

import pytest
from stretto_core.model.teams import TeamQuota
from stretto_gateway.requests.cluster import Room, room_for
from stretto_gateway.requests.predictions import predicted
from stretto_messages.arbiter import Amount, GetClusterReply
from stretto_messages.base import GIB, example_of
from stretto_messages.fitter import ModelFitted
from stretto_messages.planner import PredictPlanReply
from stretto_messages.values import Resources, extended_of
from stretto_wire.contract.submission import JobSubmitted
from stretto_wire.rest.views import JobView, Model

EXAMPLE = example_of(GetClusterReply)
(HOLDER,) = EXAMPLE.holders
NOBODY_WAITS = replace(EXAMPLE, waiting=(), waiting_count=0)
"""A cluster of 64 cores and 256 GiB: the job of the team ads holds 36 and 120, 26 and 134 are free."""
NO_DEVICES = Amount(cpu_cores=0.0, memory_bytes=0)
IN_DATA = replace(HOLDER, data_held=Amount(cpu_cores=8.0, memory_bytes=GIB))


def of(cores: float, memory_gib: float, **devices: int) -> Resources:
    return Resources(
        cores, int(memory_gib * GIB), extended_of({f"nvidia.com/{name}": n for name, n in devices.items()})
    )


FREE = "26 cores and 134 GiB are free"
BEYOND = "it needs 8 cores more, 4 cores beyond the quota of the team ads, which holds 36 cores and"


@pytest.mark.parametrize(
    ("cluster", "quota", "wanted", "fits", "told"),
    [
        (None, None, of(1, 1), None, "unknown: the arbiter does not answer"),
        (EXAMPLE, None, of(36, 100), True, "fits: it needs no more than the job holds"),
        (NOBODY_WAITS, None, of(50, 130), True, f"fits: it needs 14 cores and 10 GiB more, {FREE}"),
        (NOBODY_WAITS, None, of(64, 120), False,
         "does not fit now: it needs 28 cores more, 26 cores are free: 2 cores lack"),
        (replace(NOBODY_WAITS, holders=(IN_DATA,)), None, of(64, 120), True,
         "fits: it needs 28 cores more, 34 cores are free"),
        (NOBODY_WAITS, None, of(65, 120), False,
         "cannot fit: the job would need 65 cores, the whole cluster has 64 cores"),
        (NOBODY_WAITS, None, of(36, 120, gpu=1), False,
         "cannot fit: the job would need 1 nvidia.com/gpu, the whole cluster has 0 nvidia.com/gpu"),
        (EXAMPLE, None, of(37, 120), False, "does not fit now: 1 waiting job may start before a running one grows"),
        (NOBODY_WAITS, TeamQuota(cores=40), of(40, 130), True, f"fits: it needs 4 cores and 10 GiB more, {FREE}"),
        (NOBODY_WAITS, TeamQuota(cores=40), of(44, 120), True,
         f"fits: {BEYOND} borrows them until another team asks for its own"),
        (NOBODY_WAITS, TeamQuota(cores=40, borrow=False), of(44, 120), False,
         f"does not fit: {BEYOND} may not borrow"),
    ],
)  # fmt: skip
def test_room_says_what_is_needed_and_what_lacks(
    cluster: GetClusterReply | None, quota: TeamQuota | None, wanted: Resources, fits: bool | None, told: str
) -> None:
    assert room_for(cluster, {} if quota is None else {"ads": quota}, "ads", wanted, HOLDER.job) == (fits, told)


def test_a_job_that_would_start_holds_nothing_and_waits_for_no_other() -> None:
    told = room_for(EXAMPLE, {}, "ads", of(2, 1), "")
    assert told == Room(True, "fits: it needs 2 cores and 1 GiB, 26 cores and 134 GiB are free")


@pytest.mark.parametrize(
    ("workers", "worker_cores", "extrapolated", "told"),
    [
        (2, 1.0, False, "within what was measured: 1 to 3 workers, 1 parameter server"),
        (16, 1.0, True, "an extrapolation: 16 workers asked, 1 to 3 measured, 5.33 times the most"),
        (3, 0.5, True, "an extrapolation: 0.5 cores a worker asked, 1 measured"),
    ],
)  # fmt: skip
def test_a_prediction_says_how_far_it_is_beyond_what_was_measured(
    workers: int, worker_cores: float, extrapolated: bool, told: str
) -> None:
    reply = example_of(PredictPlanReply).prediction
    assert reply is not None
    plan = replace(reply.plan, workers=workers, ps=1, worker_cpu_cores=worker_cores, ps_cpu_cores=0.5)
    fitted = example_of(ModelFitted)
    (one,) = fitted.measured
    sizes = replace(one, workers=1), replace(one, workers=3)
    model = Model.of(replace(fitted, measured=sizes), 0.0)
    view = JobView("a", "training", example_of(JobSubmitted).spec, 0.0, "ada", model=model)
    found = predicted(view, plan, replace(reply, plan=plan), Room(True, "fits"), 0.0)
    assert (found.extrapolated, found.measured) == (extrapolated, told)
