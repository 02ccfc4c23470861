"""Volumes of a job in the three kinds of places where pods run: mounts of containers, links of processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from stretto_wire.jobspec.pod_files import SourceKind, VolumeSpec
from stretto_wire.jobspec.spec import JobSpec
from stretto_wire.policy.allowed_volumes import shown

from ..backend import BackendError

KINDS_OF: dict[str, tuple[SourceKind, ...]] = {
    "local": ("folder",),
    "docker": ("docker_volume", "folder"),
    "kubernetes": ("claim", "folder"),
}
"""Kinds of sources that each backend has."""
MACHINES = {
    "local": "processes of this machine",
    "docker": "containers of an engine",
    "kubernetes": "pods of Kubernetes",
}


def check(spec: JobSpec, backend: str) -> None:
    """Refuse volumes and files that there cannot be where the pods run. Raises BackendError."""
    kinds = KINDS_OF[backend]
    for index, volume in enumerate(spec.volumes):
        where = f"volumes.{index}.{volume.kind} = {volume.source}"
        if volume.kind not in kinds:
            raise BackendError(f"{where}: pods are {MACHINES[backend]} here; name a source by {' or '.join(kinds)}")
        if backend == "local" and volume.path.startswith("/") and volume.path != volume.source:
            raise BackendError(
                f"volumes.{index}.path = {volume.path}: processes see a folder where it is; state {volume.source}, or "
                f"a relative path such as {volume.name}"
            )
    absolute = next((path for path in spec.files if path.startswith("/")), None)
    if backend == "local" and absolute is not None:
        raise BackendError(
            f"files.{absolute}: pods are {MACHINES[backend]} here, whose files are not a job's to write; state a "
            "relative path, which is below the pod's own folder"
        )


def path_in(volume: VolumeSpec, scratch: str) -> str:
    """Return the absolute place of a volume in a container whose pod has the folder ``scratch``."""
    return volume.path if volume.path.startswith("/") else f"{scratch}/{volume.path}"


def folders_of(volumes: Iterable[VolumeSpec], barred: Sequence[Path]) -> Iterator[tuple[Path, bool]]:
    """Yield the folders that a process opens, and whether it may write there.

    Raises BackendError: a folder is not there, is reached by a link, or would open one of the ``barred`` places.
    """
    for volume in volumes:
        folder = Path(volume.source)
        if not folder.is_dir() or folder.resolve() != folder:
            raise BackendError(
                f"volumes.{volume.name} = {shown(volume)}: no such folder here, or a link on the way to it; name an "
                "existing folder by its own path"
            )
        for place in barred:
            if place.is_relative_to(folder) or folder.is_relative_to(place):
                raise BackendError(
                    f"volumes.{volume.name} = {shown(volume)}: it holds, or lies in, a folder of the installation that "
                    "is closed to jobs; name another one"
                )
        yield folder, volume.writable


def check_folders(volumes: Sequence[VolumeSpec]) -> None:
    """Check every folder, also where pods are not confined. Raises BackendError."""
    for _ in folders_of(volumes, ()):
        pass


def link(volumes: Sequence[VolumeSpec], scratch: Path) -> None:
    """Put links to the folders of volumes with relative paths into a pod's own folder. Raises BackendError, OSError."""
    check_folders(volumes)
    for volume in volumes:
        if not volume.path.startswith("/"):
            place = scratch / volume.path
            place.unlink(missing_ok=True)  # of a start that did not come about
            place.symlink_to(volume.source)
