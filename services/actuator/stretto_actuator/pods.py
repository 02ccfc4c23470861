"""What a pod is started with: the contract of ``stretto.ps`` and ``stretto.worker``."""

from __future__ import annotations

import json
import os
from pathlib import Path

from stretto_core.actuation import ActuatorState, Pod

from .backend import PodSpec
from .settings import ActuatorSettings


def write_spec(state_folder: Path, job: str, spec: str) -> Path:
    """The job's specification where its pods read it."""
    file = state_folder.resolve() / "pods" / job / "job.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_suffix(".tmp")
    draft.write_text(spec)
    draft.replace(file)
    return file


def pod_spec(pod: Pod, state: ActuatorState, settings: ActuatorSettings, spec_file: Path, trace: str) -> PodSpec:
    """Command and environment. Nothing of our own STRETTO_ settings leaks: they may hold credentials."""
    spec = json.loads(state.spec)
    folder = settings.state_folder.resolve()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STRETTO_")}
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
