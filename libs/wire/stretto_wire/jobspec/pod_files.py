"""Volumes and files of a job's pods: their places in a pod, and their sources.

A place is an absolute path, or a relative one below the pod's own folder, in which its program starts. Relative places
are the same for processes, containers and Kubernetes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from .kubernetes import ObjectName
from .part import Spec

SourceKind = Literal["claim", "docker_volume", "folder"]
KINDS: tuple[SourceKind, ...] = get_args(SourceKind)
"""Sources of a volume: fields of a volume, and kinds in the installation's list."""

FILE_BYTES_MAX = 32 << 10
FILES_BYTES_MAX = 48 << 10
"""A specification is stored and published as one message; the gateway takes 64 KiB by default."""
RESERVED = ("/run/stretto", "/var/lib/stretto", "/proc", "/sys", "/dev", ".stretto", "tmp", "cache", "plane.sock")
"""Places in a container, and in a pod's own folder, that belong to Stretto or to the system."""

_PLACE = re.compile(r"/?[A-Za-z0-9._@=+-]+(/[A-Za-z0-9._@=+-]+)*")
_FOLDER = re.compile(r"(/[A-Za-z0-9._@=+ -]+)+")
_PLACE_REMEDY = (
    "a path such as /data or config/model.yaml: letters, digits and ._@=+- between single slashes, without the parts "
    f". and .., outside of {', '.join(RESERVED)}"
)


def _checked_place(path: str) -> str:
    """Return a place in a pod. Raises ValueError, with the remedy."""
    parts = path.split("/")
    if not _PLACE.fullmatch(path) or "." in parts or ".." in parts or overlap(path, RESERVED):
        raise ValueError(_PLACE_REMEDY)
    return path


def checked_folder(path: str) -> str:
    """Return a folder of a machine in its one spelling. Raises ValueError, with the remedy."""
    parts = path.split("/")
    if not _FOLDER.fullmatch(path) or "." in parts or ".." in parts:
        raise ValueError(
            "an absolute path below / such as /srv/clicks, without the parts . and .., and no slash at the end"
        )
    return path


PodPath = Annotated[str, StringConstraints(min_length=1, max_length=200), AfterValidator(_checked_place)]
HostFolder = Annotated[str, StringConstraints(max_length=1000), AfterValidator(checked_folder)]
DockerVolumeName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,199}$")]
VolumeName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$")]


def overlap(path: str, others: Iterable[str]) -> str:
    """Return the first of the places that is ``path``, or holds it, or lies in it; empty if there is none."""
    return next((each for each in others if f"{each}/".startswith(f"{path}/") or f"{path}/".startswith(f"{each}/")), "")


class VolumeSpec(Spec):
    """Data that a job's pods see as a folder. The installation says which sources jobs may name."""

    name: VolumeName = Field(description="name of the volume in the job")
    path: PodPath = Field(
        description="place in the pod: an absolute path, or a relative one below the pod's own folder, in which its "
        "program starts. A process of the machine sees a folder where it is, or at a relative path"
    )
    claim: ObjectName | None = Field(default=None, description="a PersistentVolumeClaim in the pods' namespace")
    docker_volume: DockerVolumeName | None = Field(default=None, description="a named volume of the Docker engine")
    folder: HostFolder | None = Field(
        default=None, description="a folder of the machine on which the pods run, which is there already"
    )
    writable: bool = Field(default=False, description="the pods may write; the installation has to allow that, too")

    @model_validator(mode="after")
    def _one_source(self) -> VolumeSpec:
        if sum(getattr(self, kind) is not None for kind in KINDS) != 1:
            raise ValueError(f"state exactly one source: {', '.join(KINDS)}")
        if "/" in self.path[1:] and not self.path.startswith("/"):  # the folders between would be root's in containers
            raise ValueError(f"{self.path.rpartition('/')[2]} instead of {self.path}: a relative path is one name")
        return self

    @property
    def kind(self) -> SourceKind:
        """The kind of its source."""
        return next(kind for kind in KINDS if getattr(self, kind) is not None)

    @property
    def source(self) -> str:
        """The name of its source, or the path of the folder."""
        return str(getattr(self, self.kind))


def check_places(volumes: Iterable[VolumeSpec], files: Mapping[str, str]) -> None:
    """Refuse places of which one is, or holds, another one. Raises ValueError, with the remedy.

    A file may lie in the pod's own folder beside volumes, not within one: that is another's data.
    """
    taken: dict[str, str] = {}
    names: set[str] = set()
    for volume in volumes:
        if volume.name in names:
            raise ValueError(f"each volume once; the name {volume.name} is stated twice")
        names.add(volume.name)
        if other := overlap(volume.path, taken):
            raise ValueError(
                f"places of their own; {volume.path} of {volume.name} and {other} of {taken[other]} overlap"
            )
        taken[volume.path] = volume.name
    for path in files:
        if path.startswith("/") and "/" not in path[1:]:
            raise ValueError(f"/etc/ads{path} instead of {path}: an absolute path names a folder, too")
        if other := overlap(path, taken):
            raise ValueError(f"places of their own; {path} and {other} of {taken[other]} overlap")
        taken[path] = "files"


def check_files(files: Mapping[str, str]) -> dict[str, str]:
    """Return the files if they are few and small. Raises ValueError, with the remedy."""
    sizes = {path: len(text.encode()) for path, text in files.items()}
    if (large := next((path for path, size in sizes.items() if size > FILE_BYTES_MAX), None)) is not None:
        raise ValueError(
            f"texts of at most {FILE_BYTES_MAX} bytes; {large} has {sizes[large]}: put it into an image, a volume or a "
            "store"
        )
    if (total := sum(sizes.values())) > FILES_BYTES_MAX:
        raise ValueError(
            f"texts of at most {FILES_BYTES_MAX} bytes together, not {total}: put some into an image, a volume or a "
            "store"
        )
    return dict(files)
