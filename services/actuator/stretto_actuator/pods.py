"""What a pod is started with: the contract of ``stretto.ps`` and ``stretto.worker``."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from stretto_core.actuation import ActuatorState, Pod

from .backend import PodSpec
from .settings import ActuatorSettings

PRIVATE = 0o600
INHERITED = (
    *("PATH", "HOME", "LANG", "LC_*", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "PYTHON*", "VIRTUAL_ENV"),
    *("*_NUM_THREADS", "TF_*", "CUDA_*"),
)


def write_spec(state_folder: Path, job: str, spec: str) -> Path:
    """The job's specification where its pods read it."""
    file = state_folder.resolve() / "pods" / job / "job.json"
    private_folder(file.parent.parent)
    private_folder(file.parent)
    draft = file.with_suffix(".tmp")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE), "w") as out:
        out.write(spec)
    draft.replace(file)
    return file


def private_folder(folder: Path) -> None:
    """Specifications, logs and what pods keep there are for nobody else's eyes."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)


def inherited(environment: Mapping[str, str], more: str) -> dict[str, str]:
    """What pods get of the actuator's own environment; ``more``: further names, ``*`` stands for anything."""
    names = (*INHERITED, *(name.strip() for name in more.split(",") if name.strip()))
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith("STRETTO_") and any(fnmatchcase(name, pattern) for pattern in names)
    }


def pod_spec(pod: Pod, state: ActuatorState, settings: ActuatorSettings, spec_file: Path, trace: str) -> PodSpec:
    """Command and environment. Of our own only what is known to be harmless: the rest may hold credentials."""
    spec = json.loads(state.spec)
    folder = settings.state_folder.resolve()
    environment = inherited(os.environ, settings.pod_environment)
    environment |= spec["environment"]
    if model_path := spec["model"]["path"]:
        paths = [model_path, environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    nats_url = settings.pod_nats_url.get_secret_value() if settings.pod_nats_url else settings.nats_url
    environment |= {
        "STRETTO_JOB": state.job,
        "STRETTO_POD": pod.name,
        "STRETTO_NATS_URL": nats_url,
        "STRETTO_JOB_SPEC": str(spec_file),
        "STRETTO_PLAN_VERSION": str(state.plan_version),
        "STRETTO_CPU_CORES": f"{pod.cpu_cores:g}",
        "STRETTO_MEMORY_BYTES": str(pod.memory_bytes),
        "STRETTO_POD_FOLDER": str(folder / "pods" / state.job / pod.name),
        "STRETTO_REDIS_URL": settings.redis_url,
        "STRETTO_STATE_FOLDER": str(folder),
        "TRACEPARENT": trace,
        "PYTHONUNBUFFERED": "1",
    }
    module = "stretto.ps" if pod.role == "ps" else "stretto.worker"
    return PodSpec(
        job=state.job,
        pod=pod.name,
        command=(settings.pod_python, "-m", module),
        environment=environment,
        cpu_cores=max(pod.cpu_cores, settings.start_cpu_cores),
        memory_bytes=pod.memory_bytes,
    )
