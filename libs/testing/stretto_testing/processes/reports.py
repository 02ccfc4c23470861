"""Reports of the pods of a simulated place: their times, and the memory that the rows of a parameter server take."""

from __future__ import annotations

from collections.abc import Sequence

from stretto_actuator.backend import PodSpec
from stretto_messages.pods import DataWorkerReported, PsReported, WorkerReported
from stretto_messages.values import BUCKETS, StepTimes
from stretto_wire.surroundings import wall_s

from stretto_testing.processes.training import BATCH, COLUMNS, Job

REPORT_S = 1.0
"""Interval of reports."""
STEPS = 6
"""Steps of a worker, and batches of a data worker, in each of them."""
BASE_BYTES, SAMPLE_BYTES, ROW_BYTES = 100 << 20, 1500, 150
"""Memory of a pod without rows; of the rows that a sample brings; of a row."""
STEP_S, PREPARE_S = 0.15, 0.4
"""Times of a step with its batch at hand, and of preparing a batch, in a job that may have data workers."""


def of_worker(job: Job, spec: PodSpec, number: int, data_workers: int) -> WorkerReported:
    """Return the report of a worker's window, its ``number`` th: it waits for batches that nobody has prepared."""
    prepare_s = PREPARE_S if job.data_workers else 0.0
    read_s = max(0.0, prepare_s / (1 + data_workers) - STEP_S)
    times = StepTimes(emb_s=0.04, grad_s=0.06, upd_s=0.02, sync_s=0.02, read_s=read_s)
    return WorkerReported(
        job=job.name, pod=spec.pod, plan_version=job.plan_version, ended_at_s=wall_s(), window_s=REPORT_S, steps=STEPS,
        steps_total=STEPS * number, samples_total=STEPS * BATCH * number, step_time_s=STEP_S + read_s,
        longest_gap_s=0.3, times=times, prepare_s=prepare_s, prepared_elsewhere=data_workers / (1 + data_workers),
        cpu_used_cores=0.8 * spec.cpu_cores, cpu_limit_cores=spec.cpu_cores, memory_used_bytes=BASE_BYTES,
        memory_limit_bytes=spec.memory_bytes,
    )  # fmt: skip


def of_data_worker(job: Job, spec: PodSpec) -> DataWorkerReported:
    """Return the report of a data worker's window."""
    return DataWorkerReported(
        job=job.name, pod=spec.pod, ended_at_s=wall_s(), window_s=REPORT_S, lanes=1, batches=STEPS,
        busy_s=STEPS * STEP_S, cpu_used_cores=0.9 * spec.cpu_cores, cpu_limit_cores=spec.cpu_cores,
        memory_used_bytes=BASE_BYTES, memory_limit_bytes=spec.memory_bytes,
    )  # fmt: skip


def of_server(job: Job, spec: PodSpec, columns: Sequence[int]) -> PsReported:
    """Return the report of a parameter server that owns ``columns``: its share of all rows is in its memory."""
    total = job.counted(0)[0]
    rows_bytes = (SAMPLE_BYTES * total + job.surge_bytes()) * len(columns) // COLUMNS
    return PsReported(
        job=job.name, pod=spec.pod, ended_at_s=wall_s(), window_s=REPORT_S, updates=STEPS, update_time_s=0.001,
        applied_samples_total=total, categories=rows_bytes // ROW_BYTES, row_bytes=float(ROW_BYTES),
        table_bytes=rows_bytes, buckets=sum(column < BUCKETS for column in columns), cpu_used_cores=0.1,
        cpu_limit_cores=spec.cpu_cores, memory_used_bytes=BASE_BYTES + rows_bytes,
        memory_limit_bytes=spec.memory_bytes,
    )  # fmt: skip
