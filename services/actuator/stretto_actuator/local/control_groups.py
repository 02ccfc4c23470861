"""Limits of CPU, memory and processes of pods by the kernel's control groups, version 1 or 2, where they are writable.

Version 1: one hierarchy per controller (``cpu``, ``memory``); version 2: one for all. Either can be missing or
read-only (unprivileged, containers); missing limits are reported, and the backend falls back to weaker means.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from stretto_runtime.settings import groups_name

from ..backend import HEADROOM
from .mounts import PROCESSES

PERIOD_US = 100_000
PROBE_S = 5.0
QUOTA_LEAST_US = 1_000
CONTROLLERS = {"cpu", "memory", "pids"}
MACHINES_PROCESSES = ("kernel/pid_max", "kernel/threads-max")
"""Files below /proc/sys with the most processes and threads of this machine."""


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """A folder of control groups that we may write. ``controllers``: of ``CONTROLLERS``."""

    folder: Path
    version: int
    controllers: frozenset[str]


@dataclass(frozen=True, slots=True)
class Group:
    """One pod's control groups: controller -> (folder, version). Kept with the pod: a restarted actuator may itself
    be in another group and would look elsewhere."""

    folders: dict[str, tuple[str, int]] = field(default_factory=dict[str, tuple[str, int]])

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the limits in force, as in PodStarted: cgroup1-cpu, cgroup2-memory."""
        return tuple(f"cgroup{version}-{controller}" for controller, (_, version) in sorted(self.folders.items()))

    @property
    def entries(self) -> list[str]:
        """The files into which a process writes its pid to enter."""
        return sorted({f"{folder}/cgroup.procs" for folder, _ in self.folders.values()})

    def make(self) -> None:
        """Create the folders. Raises OSError."""
        for folder, version in self.folders.values():
            Path(folder).mkdir(parents=version == 1, exist_ok=True)
        if "pids" in self.folders:
            own = Path(self.folders["pids"][0])
            most = min(
                filter(None, (_number(Path("/proc/sys", name)) for name in MACHINES_PROCESSES)), default=PROCESSES
            )
            (own / "pids.max").write_text(str(PROCESSES))
            (own.parent / "pids.max").write_text(str(most * 3 // 4))  # of all pods together

    def set(self, cpu_cores: float, memory_bytes: int) -> int:
        """Change the limits live; returns the memory limit, which stays above what is in use. Raises OSError."""
        if "cpu" in self.folders:
            folder, version = self.folders["cpu"]
            quota = max(int(cpu_cores * PERIOD_US), QUOTA_LEAST_US)
            if version == 2:
                Path(folder, "cpu.max").write_text(f"{quota} {PERIOD_US}")
            else:
                Path(folder, "cpu.cfs_period_us").write_text(str(PERIOD_US))
                Path(folder, "cpu.cfs_quota_us").write_text(str(quota))
        if "memory" in self.folders:
            folder, version = self.folders["memory"]
            used = _number(Path(folder, "memory.current" if version == 2 else "memory.usage_in_bytes"))
            memory_bytes = max(memory_bytes, int(used * HEADROOM))
            Path(folder, "memory.max" if version == 2 else "memory.limit_in_bytes").write_text(str(memory_bytes))
        return memory_bytes

    def oom_kills(self) -> int:
        """Return how often the kernel killed a process of the group for its memory."""
        if "memory" not in self.folders:
            return 0
        folder, version = self.folders["memory"]
        file = Path(folder, "memory.events" if version == 2 else "memory.oom_control")
        with contextlib.suppress(OSError, ValueError):
            for line in file.read_text().splitlines():
                key, _, value = line.partition(" ")
                if key == "oom_kill":
                    return int(value)
        return 0

    def pids(self) -> list[int]:
        """Processes in the group."""
        for entry in self.entries:
            with contextlib.suppress(OSError, ValueError):
                return [int(line) for line in Path(entry).read_text().split()]
        return []

    def remove(self) -> bool:
        """Clear an empty group; whether it is gone: the kernel refuses while a process is still dying in it."""
        folders = {Path(folder): version for folder, version in self.folders.values()}
        for folder, version in folders.items():
            with contextlib.suppress(OSError):
                folder.rmdir()
                if version == 1:
                    folder.parent.rmdir()  # the installation's last pod
        return not any(folder.exists() for folder in folders)


class Cgroups:
    """Folders in which one installation may create the control groups of its pods."""

    def __init__(self, hierarchies: list[Hierarchy]) -> None:
        self._of = {controller: h for h in hierarchies for controller in h.controllers}

    @classmethod
    def find(cls, name: str) -> Cgroups:
        """Folders called ``name`` below our own control groups, created where the system lets us."""
        found: list[Hierarchy] = []
        for version, mount, controllers, own in _mounts():
            missing = controllers - {c for h in found for c in h.controllers}
            for wanted in (missing, missing - {"pids"}):  # a group that was delegated to us may lack it
                if wanted and (folder := _create(mount, own, name, version, wanted)):
                    found.append(Hierarchy(folder, version, frozenset(wanted)))
                    break
        return cls(found)

    @classmethod
    def of_installation(cls, pods: Path) -> Cgroups:
        """Folders for the pods whose records are in this folder."""
        return cls.find(groups_name(pods))

    def has(self, controller: str) -> bool:
        """Return True if the kernel can limit ``cpu``, ``memory`` or ``pids`` here."""
        return controller in self._of

    def group(self, name: str) -> Group:
        """The control groups of a pod, not created yet."""
        return Group({c: (str(h.folder / name), h.version) for c, h in self._of.items()})


def _mounts() -> list[tuple[int, Path, set[str], str]]:
    """(version, mount point, those of ``CONTROLLERS`` that it has, our own group in it)."""
    own: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            own.update({controller: path for controller in controllers.split(",")})
    result: list[tuple[int, Path, set[str], str]] = []
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mounts").read_text().splitlines():
            _, mount, kind, options = line.split(" ")[:4]
            if kind == "cgroup":
                controllers = CONTROLLERS & set(options.split(","))
                if controllers:
                    result.append((1, Path(mount), controllers, own.get(min(controllers), "/")))
            elif kind == "cgroup2":
                with contextlib.suppress(OSError):
                    there = set((Path(mount) / "cgroup.controllers").read_text().split())
                    if CONTROLLERS & there:
                        result.append((2, Path(mount), CONTROLLERS & there, own.get("", "/")))
    return result


def _create(mount: Path, own: str, name: str, version: int, controllers: set[str]) -> Path | None:
    """Below our own group first (its limits bind us too), else below the root."""
    parents = [mount / own.lstrip("/")] if ".." not in own else []
    for parent in dict.fromkeys([*parents, mount]):
        folder = parent / name
        try:
            folder.mkdir(exist_ok=True)
            if version == 2:
                for level in (parent, folder):
                    (level / "cgroup.subtree_control").write_text(" ".join(f"+{c}" for c in sorted(controllers)))
            if not _can_enter(folder / f"probe-{os.getpid()}"):
                with contextlib.suppress(OSError):
                    folder.rmdir()
                continue
            if version == 1:
                with contextlib.suppress(OSError):  # not empty: pods are in it
                    folder.rmdir()  # made again with the first pod
            return folder
        except OSError:
            with contextlib.suppress(OSError):
                folder.rmdir()
    return None


def _can_enter(group: Path) -> bool:
    """Return True if a process can enter a group made here, which permissions do not show. Raises OSError."""
    group.mkdir(exist_ok=True)
    try:
        enter = ["/bin/sh", "-c", 'echo $$ > "$1/cgroup.procs"', "probe", str(group)]
        return subprocess.run(enter, stderr=subprocess.DEVNULL, timeout=PROBE_S, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        with contextlib.suppress(OSError):
            group.rmdir()


def _number(file: Path) -> int:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return 0
