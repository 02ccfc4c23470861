"""The configuration of a pod as a Docker container: pure functions of its specification."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from docker.types import DeviceRequest, LogConfig, Mount

from ..backend import BackendError, Places, PodSpec
from ..pod.devices import GPU, NO_GPUS, RUNTIME_VISIBLE, VARIABLE, Given, paths, variables
from ..pod.job_volumes import path_in
from .engine import limits

PLACES = Places(files="/run/stretto", scratch="/var/lib/stretto/pod", state="")
SCRATCH_VOLUME = "/var/lib/stretto"
USER = 10001
MACHINE = "host.docker.internal"
"""Name by which containers reach the engine's machine."""
PROCESSES_MAX = 4096
LOG = {"max-size": "10m", "max-file": "2"}


def config(spec: PodSpec, name: str, labels: Mapping[str, str], given: Given) -> dict[str, Any]:
    """Return the process of a container. ``name``: the container's, by which other pods find it. ``given``: devices."""
    gpus = {RUNTIME_VISIBLE: ",".join(given.get(GPU, ())) or NO_GPUS}
    return {
        "command": [*spec.command],
        "entrypoint": [],
        "environment": {**spec.environment, **variables(given), **gpus, "STRETTO_POD_HOST": name},
        "hostname": spec.pod,
        "user": f"{USER}:{USER}",
        "working_dir": PLACES.scratch,
        "labels": dict(labels),
    }


def volumes(spec: PodSpec) -> list[Mount]:
    """Return the mounts of the volumes that a job names."""
    return [
        Mount(
            path_in(volume, PLACES.scratch),
            volume.source,
            type="bind" if volume.kind == "folder" else "volume",
            read_only=not volume.writable,
            no_copy=volume.kind == "docker_volume",
        )
        for volume in spec.volumes
    ]


def texts_by_folder(spec: PodSpec) -> dict[str, dict[str, bytes]]:
    """Return the absolute files of a job: folder -> name -> content.

    The root is read-only, so each folder is a volume.
    """
    found: dict[str, dict[str, bytes]] = {}
    for path, content in spec.texts.items():
        folder, _, name = path.rpartition("/")
        found.setdefault(folder, {})[name] = content
    return found


def devices(given: Given) -> dict[str, Any]:
    """Return the devices of a container: GPUs by the engine's own way, all others as files.

    Raises:
        BackendError: a device that is no GPU has no file.
    """
    for name, each in given.items():
        if name != GPU and (nameless := [device for device in each if not device.startswith("/")]):
            raise BackendError(
                f"{name} = {nameless[0]}: a container gets a device by its path; name the paths in {VARIABLE}, as in "
                f'{{"{name}": ["/dev/…"]}}'
            )
    others = {name: each for name, each in given.items() if name != GPU}
    gpus = [DeviceRequest(device_ids=list(given[GPU]), capabilities=[["gpu"]])] if GPU in given else []
    return {"device_requests": gpus, "devices": [f"{path}:{path}:rwm" for path in paths(others)]}


def host(spec: PodSpec, network: str, folders: Sequence[Mount], given: Given) -> dict[str, Any]:
    """Return a container's share of the machine: limits, devices, a network, ``folders`` beside its own volumes; no
    rights. Raises BackendError."""
    return {
        **limits(spec.cpu_cores, spec.memory_bytes),
        **(devices(given) if given else {}),
        "network_mode": network,
        "extra_hosts": {MACHINE: "host-gateway"},
        "mounts": [
            *(Mount(folder, None) for folder in (PLACES.files, SCRATCH_VOLUME, *texts_by_folder(spec))),
            *folders,
            *volumes(spec),
        ],
        "tmpfs": {"/tmp": "rw,nosuid,nodev"},
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "pids_limit": PROCESSES_MAX,
        "init": True,
        "log_config": LogConfig(type=LogConfig.types.JSON, config=LOG),
    }
