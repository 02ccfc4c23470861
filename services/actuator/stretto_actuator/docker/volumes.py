"""Volumes of the engine that pods share for the store of checkpoints. A job sees its own folder in each, and to read
those that its specification names; the others are not there for it.

A folder of a volume is mounted by its place on the engine's machine: engines before 26 know no other way.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass

from docker.types import Mount
from stretto_runtime import SettingsFault
from stretto_wire.jobspec.pod_files import VolumeSpec

from ..backend import BackendError, folders_in
from .engine import Engine, NameTaken


@dataclass(frozen=True, slots=True)
class Volume:
    """By name, or a folder of the engine's machine; ``path``: where pods find their folder in it."""

    source: str
    path: str

    @property
    def whole(self) -> Mount:
        kind = "bind" if self.source.startswith("/") else "volume"
        return Mount(self.path, self.source, type=kind, no_copy=kind == "volume")


def volumes_of(setting: str) -> tuple[Volume, ...]:
    """``name:/path`` or ``/folder:/path``, separated by commas. Raises SettingsFault."""
    found: list[Volume] = []
    for part in (each.strip() for each in setting.split(",") if each.strip()):
        source, _, path = part.partition(":")
        if not source or not path.startswith("/") or path == "/":
            raise SettingsFault(
                f"STRETTO_ACTUATOR_DOCKER_VOLUMES={setting!r} is refused at {part!r}: "
                "give name:/path or /folder:/path, separated by commas"
            )
        found.append(Volume(source, path.rstrip("/")))
    return tuple(found)


class JobFolders:
    """The folders of jobs in the volumes; blocking, as the engine is."""

    def __init__(self, engine: Engine, volumes: tuple[Volume, ...], owner: int) -> None:
        self._engine = engine
        self._volumes = volumes
        self._owner = owner
        self._made: set[tuple[str, str]] = set()
        self._making = threading.Lock()
        """Held while volumes are made: pods of a job are started together, in threads."""

    def mounts(self, job: str, reads: Iterable[str], image: str) -> list[Mount]:
        """Return the mounts of a pod of ``job`` that also reads these URLs. Raises BackendError."""
        result: list[Mount] = []
        for volume in self._volumes:
            with self._making:
                self._make(volume, job, image)
            place = volume.source if volume.source.startswith("/") else self._engine.volume_folder(volume.source)
            result.append(Mount(f"{volume.path}/{job}", f"{place}/{job}", type="bind"))
            for other in sorted({*folders_in(volume.path, reads)} - {job}):
                result.append(Mount(f"{volume.path}/{other}", f"{place}/{other}", type="bind", read_only=True))
        return result

    def check(self, volumes: Iterable[VolumeSpec]) -> None:
        """Refuse volumes that are not there, which the engine would make, or that hold checkpoints of all jobs.

        Raises BackendError.
        """
        for volume in volumes:
            name = volume.source
            stores = (store.source for store in self._volumes)
            if any(f"{name}/".startswith(f"{store}/") or f"{store}/".startswith(f"{name}/") for store in stores):
                raise BackendError(
                    f"volumes.{volume.name} = {volume.kind}:{name}: the installation keeps checkpoints of all jobs "
                    "there; name another one"
                )
            if volume.kind == "docker_volume" and not self._engine.has_volume(name):
                raise BackendError(
                    f"volumes.{volume.name} = {volume.kind}:{name}: the engine has no such volume; make it with "
                    f"`docker volume create {name}`"
                )

    def _make(self, volume: Volume, job: str, image: str) -> None:
        """By a container that is never started: only the engine can write there."""
        if (volume.source, job) in self._made:
            return
        name = f"folder.{job}.{self._engine.installation}"
        host = {"mounts": [volume.whole], "network_mode": "none"}
        try:
            helper = self._engine.create(name, image, {"labels": self._engine.own}, host)
        except NameTaken:
            self._engine.remove(name)  # of an actuator that died meanwhile
            helper = self._engine.create(name, image, {"labels": self._engine.own}, host)
        try:
            self._engine.make_folder(helper, volume.path, job, self._owner)
        finally:
            self._engine.remove(helper)
        self._made.add((volume.source, job))
