"""Command, environment and files of a pod: the contract of ``stretto.ps``, ``stretto.worker`` and ``stretto.data``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from stretto_core.actuator.state import ActuatorState, Pod
from stretto_messages.values import extended_of
from stretto_runtime import SettingsFault
from stretto_wire import JobSpec
from stretto_wire.jobspec.devices import DeviceTypeSpec
from stretto_wire.jobspec.keylike import is_keylike
from stretto_wire.program import CONSISTENT, PORT_VARIABLE

from ..backend import BackendError, Places, PodSpec
from ..settings import ActuatorSettings
from . import job_secrets, job_volumes
from .credentials import CA_FILE, CREDENTIALS_FILE, PLANE_KEY_FILE

SPEC_FILE = "job.json"
SECRETS_FILE = "secrets.json"
VARIABLES = {
    CREDENTIALS_FILE: "STRETTO_NATS_CREDENTIALS",
    CA_FILE: "STRETTO_NATS_CA",
    SECRETS_FILE: "STRETTO_SECRETS",
    PLANE_KEY_FILE: "STRETTO_PLANE_KEY",
}
"""Variables that name a pod's files."""
OF_THE_MACHINE = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "PYTHON*", "VIRTUAL_ENV")
HARMLESS = ("LANG", "LC_*", "TZ", "*_NUM_THREADS", "TF_*", "CUDA_*")


def inherited(environment: Mapping[str, str], more: str, here: bool = True) -> dict[str, str]:
    """Return the part of the actuator's own environment that pods inherit.

    ``more``: further names, ``*`` stands for anything that does not look like a key: the actuator itself has the key of
    the store. ``here``: pods run on the actuator's own files, not on those of an image.
    """
    stated = tuple(name.strip() for name in more.split(",") if name.strip())
    names = (*(OF_THE_MACHINE if here else ()), *HARMLESS, *stated)
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith("STRETTO_")
        and any(fnmatchcase(name, pattern) for pattern in names)
        and (name in stated or not is_keylike(name))
    }


def _environment(spec: Mapping[str, Any], inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment that a job's specification asks for, over what its pods inherit."""
    environment = {**inherited, **spec["environment"]}
    if model_path := spec["model"]["path"]:
        paths = [model_path, environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return environment


def _near(pod: Pod, state: ActuatorState) -> str:
    """Return the pod beside which this one best runs: most of its bytes go there."""
    peers = {"worker": state.listed(), "data": state.of_role("worker")}.get(pod.role, [])
    return next((peer.name for peer in peers), "")


def _allowed(state: ActuatorState, settings: ActuatorSettings) -> JobSpec:
    """Return the job's specification. Raises BackendError for what this installation does not give."""
    job = JobSpec.model_validate_json(state.spec)
    if refused := settings.allowed_here.findings(job):
        raise BackendError("; ".join(str(finding) for finding in refused))
    job_volumes.check(job, settings.backend)
    if job.network.egress and not settings.egress:
        raise BackendError(
            f"network.egress=true of {state.job}: this installation gives jobs no way out; leave it out, or have "
            "STRETTO_ACTUATOR_EGRESS=true set"
        )
    return job


def _device(pod: Pod, settings: ActuatorSettings) -> DeviceTypeSpec | None:
    """Return the pod's type of devices; None for a pod on cores. Raises BackendError: the installation lost it."""
    try:
        return settings.device_type(pod.device)
    except SettingsFault as error:
        raise BackendError(str(error)) from error


def pod_spec(
    pod: Pod,
    state: ActuatorState,
    settings: ActuatorSettings,
    places: Places,
    trace: str,
    identity: Mapping[str, bytes],
) -> PodSpec:
    """Describe the process of a pod.

    It inherits only the harmless part of the actuator's environment: the rest may hold credentials.

    Raises:
        BackendError: the job asks for what is not allowed here, or for a secret that cannot be used.
    """
    job = _allowed(state, settings)
    spec = json.loads(state.spec)
    egress = job.network.egress
    secrets = job.environment_from  # a state of before there were any has none
    files = {SPEC_FILE: state.spec.encode(), **identity}
    if secrets and settings.backend != "kubernetes":
        folder = settings.secrets_folder or settings.state_folder.resolve() / "secrets"
        files[SECRETS_FILE] = job_secrets.content(folder, secrets)
        secrets = ()
    here = settings.backend == "local"
    device = _device(pod, settings)
    environment = _environment(spec, inherited(os.environ, settings.pod_environment, here))
    environment |= device.environment if device else {}
    nats_url = settings.pod_nats_url.get_secret_value() if settings.pod_nats_url else settings.nats_url
    environment |= {
        "STRETTO_JOB": state.job,
        "STRETTO_POD": pod.name,
        "STRETTO_NATS_URL": nats_url,
        "STRETTO_JOB_SPEC": f"{places.files}/{SPEC_FILE}",
        "STRETTO_PLAN_VERSION": str(state.plan_version),
        "STRETTO_CPU_CORES": f"{pod.cpu_cores:g}",
        "STRETTO_MEMORY_BYTES": str(pod.memory_bytes),
        "STRETTO_POD_FOLDER": places.scratch,
        "STRETTO_STATE_FOLDER": places.state,
        "STRETTO_STOP_GRACE_S": f"{settings.stop_grace_s:g}",
        "STRETTO_PLANE_ENCRYPTED": settings.plane_encryption,
        **({"STRETTO_PROGRAM_STORE": f"{settings.store}/{state.job}"} if job.level == CONSISTENT else {}),
        **({"STRETTO_DEVICE": pod.device} if pod.device else {}),
        **({"STRETTO_STAGE": str(pod.stage), "STRETTO_FIRST_LAYER": str(pod.first_layer)} if pod.stage else {}),
        **{variable: f"{places.files}/{name}" for name, variable in VARIABLES.items() if name in files},
        "TRACEPARENT": trace,
        "PYTHONUNBUFFERED": "1",
    }
    python = settings.pod_python or (sys.executable if here else "python")
    return PodSpec(
        job=state.job,
        pod=pod.name,
        command=(python, "-m", "stretto.program" if job.program is not None else f"stretto.{pod.role}"),
        environment=environment,
        cpu_cores=max(pod.cpu_cores, settings.start_cpu_cores if settings.backend != "kubernetes" else 0.0),
        memory_bytes=pod.memory_bytes,
        files=files,
        image=spec.get("image") or settings.pod_image,
        reads=(url,) if (url := spec["checkpoint"]["restore_from"]) else (),
        stores=(f"{spec['checkpoint']['url'] or settings.store}/{state.job}",),
        near=_near(pod, state),
        egress=egress,
        secrets=secrets,
        volumes=job.volumes,
        texts={path: text.encode() for path, text in job.files.items() if path.startswith("/")},
        extended=extended_of(device.extended) if device else job.resources.extended.of_pod(pod.role),
        node_selector=device.node_selector if device else {},
        tolerations=device.tolerations if device else (),
        listens=PORT_VARIABLE if job.program is not None and job.program.together and pod.role == "worker" else "",
    )
