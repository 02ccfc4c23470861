"""Messages and observations of a job named "job", with defaults for the fields that a test does not care about."""

from __future__ import annotations

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
from stretto_messages.dispatcher import JobCompleted, RecomputationDecided
from stretto_messages.values import CheckpointRef, ParameterServer

JOB = "job"


def servers_changed(version: int, servers: tuple[int, ...], leaving: tuple[int, ...] = ()) -> ServersChanged:
    listed = (ParameterServer(index=n, address=f"host:{n}", leaving=n in leaving) for n in (*servers, *leaving))
    return ServersChanged(job=JOB, version=version, servers=tuple(listed))


def parameters_lost(version: int, servers: tuple[int, ...], leaving: tuple[int, ...] = ()) -> ParametersLost:
    return ParametersLost(
        job=JOB, pod="ps-9", version=version, servers=servers_changed(version, servers, leaving).servers
    )


def columns_imported(name: str, columns: int = 38) -> ColumnsImported:
    return ColumnsImported(job=JOB, id=name, columns=columns, size_bytes=1000)


def recomputation_decided(loss: int, granted: bool = True) -> RecomputationDecided:
    return RecomputationDecided(job=JOB, loss=loss, checkpoint="job-000001", granted=granted)


def migration_started() -> MigrationStarted:
    return MigrationStarted(job=JOB, plan_version=1, cause="plan", sources=(), destinations=(), buckets=1)


def migration_finished() -> MigrationFinished:
    return MigrationFinished(job=JOB, plan_version=1, buckets=1, moved_bytes=0, took_s=0.0, longest_freeze_s=0.0)


def job_completed() -> JobCompleted:
    return JobCompleted(job=JOB, samples=1000, samples_abandoned=0, epochs=1, shards=4, requeued=0, started_at_s=0.0)


def job_finished() -> JobFinished:
    return JobFinished(
        job=JOB,
        samples_expected=1000,
        samples_applied=1000,
        samples_lost=0,
        samples_repeated=0,
        repeats_recognised=0,
        rows=0,
    )


def job_failed() -> JobFailed:
    return JobFailed(job=JOB, reason="enough")


def save_checkpoint() -> SaveCheckpoint:
    return SaveCheckpoint(job=JOB, request_id="test")


def images_saved(
    name: str, ledger: str = "ledger", samples: int = 1, *, size_bytes: int = 1000, difference: bool = False
) -> ImagesSaved:
    given = {"ledger": ledger, "samples": samples, "size_bytes": size_bytes, "difference": difference}
    return ImagesSaved(job=JOB, id=name, pause_s=0.1, took_s=0.5, **given)  # type: ignore[arg-type]


def images_flushed(name: str) -> ImagesFlushed:
    return ImagesFlushed(job=JOB, id=name, took_s=1.0)


def step_failed(name: str, reason: str, damaged: bool = False) -> StepFailed:
    return StepFailed(job=JOB, id=name, reason=reason, damaged=damaged)


def parameters_restored(
    name: str, checkpoint: CheckpointRef, servers: tuple[int, ...], bases: tuple[str, ...] = ()
) -> ParametersRestored:
    return ParametersRestored(job=JOB, id=name, checkpoint=checkpoint, ledger="ledger", servers=servers, bases=bases)
