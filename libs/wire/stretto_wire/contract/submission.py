"""The messages that carry a job's specification. They are here since only pydantic can read one."""

from __future__ import annotations

from dataclasses import dataclass

from stretto_messages.base import CLUSTER, DEFAULT_TEAM, GIB, ClusterKey, Message, Name, Team, example
from stretto_messages.scenario import JOB, METADATA, OBJECT_JOB

from ..jobspec.spec import JobSpec

SPEC = JobSpec.parse(
    {
        "name": JOB,
        "model": {
            "entry": "stretto.examples.wide_deep:WideDeep",
            "arguments": {"hidden_units": 256, "dropout": 0.1},
            "optimizer": "adagrad",
            "learning_rate": 0.05,
            "embedding_dim": 16,
            "metadata": METADATA,
        },
        "dataset": {"samples": 45_840_617, "epochs": 2, "batch_size": 512, "batches_per_shard": 64, "seed": 7},
        "resources": {"workers": {"count": {"min": 1, "max": 8}}, "ps": {"memory": {"min": "1Gi", "max": "16Gi"}}},
        "priority": 2.0,
        "deadline_s": 21_600.0,
        "checkpoint": {"every_s": 600.0, "keep": 3},
        "environment": {"CRITEO_FOLDER": "/data/criteo"},
        "evaluate": 100_000,
    }
)
"""Specification of the job in the examples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSubmitted(Message):
    """A valid specification was accepted; from here on the job exists."""

    spec: JobSpec
    submitted_by: Name = "anonymous"
    team: Team = DEFAULT_TEAM


example(JobSubmitted(job=JOB, spec=SPEC, submitted_by="ada", team="ads"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectAdopted(JobSubmitted):
    """An object of another controller asks for a size: planner and arbiter see it as this job, which nobody else runs.

    ``spec.program.object`` names the object.
    """


example(
    ObjectAdopted(
        job=OBJECT_JOB,
        spec=JobSpec.parse(
            {
                "name": OBJECT_JOB,
                "program": {"command": ["Job/training/my-dlrm"], "level": 0, "object": "Job/training/my-dlrm"},
                "resources": {
                    "workers": {"count": {"min": 1, "max": 8}, "cpu_cores": {"min": 2.0, "max": 2.0}},
                    "initial": {"workers": 2, "worker_cpu_cores": 2.0, "worker_memory_bytes": 4 * GIB},
                },
            }
        ),
        submitted_by="Job/training/my-dlrm",
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewPlan(Message):
    """Ask for the first plan of a job that is not submitted yet."""

    job: ClusterKey = CLUSTER
    spec: JobSpec
    team: Team = DEFAULT_TEAM


example(PreviewPlan(spec=SPEC, team="ads"))
