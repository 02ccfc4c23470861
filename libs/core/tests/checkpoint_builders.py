"""Messages and observations of a job named "job", with defaults for the fields that a test does not care about."""

from __future__ import annotations

from facts import maker
from stretto_core.checkpoints.observations import (
    ColumnsImported,
    ImagesFlushed,
    ImagesSaved,
    ParametersRestored,
    StepFailed,
)
from stretto_messages.actuator import (
    JobFailed,
    JobFinished,
    MigrationFinished,
    MigrationStarted,
    ParametersLost,
    ServersChanged,
)
from stretto_messages.checkpoints import SaveCheckpoint
from stretto_messages.dispatcher import EvaluationMeasured, JobCompleted, RecomputationDecided
from stretto_messages.values import Evaluation, ParameterServer


def servers_changed(version: int, servers: tuple[int, ...], leaving: tuple[int, ...] = ()) -> ServersChanged:
    listed = (ParameterServer(index=n, address=f"host:{n}", leaving=n in leaving) for n in (*servers, *leaving))
    return ServersChanged(job="job", version=version, servers=tuple(listed))


def parameters_lost(version: int, servers: tuple[int, ...], leaving: tuple[int, ...] = ()) -> ParametersLost:
    listed = servers_changed(version, servers, leaving).servers
    return ParametersLost(job="job", pod="ps-9", version=version, servers=listed)


columns_imported = maker(ColumnsImported, "id", "columns", columns=38, size_bytes=1000)
recomputation_decided = maker(RecomputationDecided, "loss", "granted", checkpoint="job-000001", granted=True)
migration_started, migration_finished = maker(MigrationStarted), maker(MigrationFinished)
job_completed, job_finished, job_failed = maker(JobCompleted), maker(JobFinished), maker(JobFailed)
_quality = Evaluation(samples=1, loss=0.5, auc=0.5)
evaluated = maker(EvaluationMeasured, "best", samples_done=9, samples_done_after=9, evaluation=_quality)
save_checkpoint = maker(SaveCheckpoint)
images_saved = maker(
    ImagesSaved, "id", "ledger", "samples", ledger="ledger", samples=1, size_bytes=1000, pause_s=0.1, took_s=0.5
)
images_flushed = maker(ImagesFlushed, "id", took_s=1.0)
step_failed = maker(StepFailed, "id", "reason", "damaged", damaged=False)
parameters_restored = maker(ParametersRestored, "id", "checkpoint", "servers", "bases", ledger="ledger", bases=())
