"""The interface to a place where pods run: processes (``local.py``), containers or Kubernetes.

Every call is idempotent: the actuator repeats it until what it sees is what it wants, also after its own restart.
``tests/backend_contract.py`` holds every backend to the same behaviour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from stretto_messages.values import Extended
from stretto_wire.jobspec.kubernetes import Toleration
from stretto_wire.jobspec.pod_files import VolumeSpec
from stretto_wire.stores.urls import canonical, within

ExitReason = Literal[
    "completed", "failed", "killed", "oom-killed", "evicted", "preempted", "node-lost", "image-pull", "vanished"
]
"""Ends of a pod: by itself (exit code 0, another), by a signal, for memory, by its node or its scheduler; never begun
for want of its image; unobserved."""

WaitReason = Literal["no-room", "quota", "image-pull", "starting"]
"""Reasons why a pod does not run yet: no node has room, a quota is used up, its image is missing, nothing is wrong."""


SIGNALLED = 128
HEADROOM = 1.1
"""A memory limit is never set below what is in use times this."""
NOT_STARTED = "not started: "
"""Beginning of the line of whatever starts a pod, when it cannot."""


def folders_in(path: str, urls: Iterable[str]) -> Iterator[str]:
    """Yield the folders just below ``path``, of the pods' file system, in which these URLs lie."""
    for url in urls:
        if within(url, path):
            name = canonical(url).removeprefix(f"{canonical(path)}/").partition("/")[0]
            if not name.startswith("."):  # no job's: logs of all pods are in such a folder
                yield name


def exit_reason(code: int | None, oom_killed: bool = False) -> ExitReason:
    """Classify the end of a process by its exit code, as a shell reports it."""
    if oom_killed:
        return "oom-killed"
    if code is None:
        return "vanished"
    if code == 0:
        return "completed"
    return "killed" if code > SIGNALLED else "failed"


def stated_reason(log: str, code: int | None) -> str:
    """Return the reason that a pod's last lines state in the words of Stretto's own programs, empty if there is none.

    Events are for every reader, so no other line of a log goes into them: it may hold anything that a job prints.
    """
    for line in reversed(log.splitlines()):
        for beginning in (f"exit {code}: ", NOT_STARTED):
            before, found, reason = line.partition(beginning)
            if found and (not before or before.endswith(" ")):
                return beginning + reason
    return ""


class BackendError(Exception):
    """A backend could not do what it was asked; the text names the value and the remedy."""


class NotInPlace(BackendError):
    """A running pod cannot get other limits where it is: another one in its place could."""


class NoRoom(BackendError):
    """A pod cannot start now, and can once other pods have ended; the text names what it lacks."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The reason why a pod does not run yet, and the backend's own words for it.

    ``held``: a scheduling gate holds the pod back for as long as it takes.
    """

    reason: WaitReason
    detail: str = ""
    held: bool = False


@dataclass(frozen=True, slots=True)
class Places:
    """Folders as a pod sees them."""

    files: str
    """Holds ``PodSpec.files``; only the pod can read it."""
    scratch: str
    """The pod's own folder to write into; lost with it."""
    state: str
    """The installation's state folder; empty where pods share none."""


@dataclass(frozen=True, slots=True)
class PodSpec:
    """A pod to run. ``command`` is an argument vector, ``environment`` is complete.

    ``files``: name -> content, laid into ``Places.files`` before it starts. ``image``: where the backend has images;
    empty: its default. ``near``: a hint, a pod of the same job that it would best run beside. ``reads``: URLs outside
    its own job that it reads, such as another job's checkpoint. ``stores``: URLs of the job's own folders of
    checkpoints. ``egress``: the job has asked for a way out of its own network. ``secrets``: names of secrets of the
    place itself, whose keys become variables; a place without secrets finds them in ``files``. ``volumes``: data beside
    its own. ``texts``: absolute path -> content, laid into a container; the pod's program writes the others.
    ``extended``: counts of devices, which the backend chooses. ``node_selector``, ``tolerations``: labels and taints of
    the nodes that it may be on, where there are nodes. ``listens``: the variable by which it learns at which port its
    program may listen, where a box leaves it no other one; empty: its program is not to listen.
    """

    job: str
    pod: str
    command: tuple[str, ...]
    environment: dict[str, str]
    cpu_cores: float
    memory_bytes: int
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    image: str = ""
    near: str = ""
    reads: tuple[str, ...] = ()
    stores: tuple[str, ...] = ()
    egress: bool = False
    secrets: tuple[str, ...] = ()
    volumes: tuple[VolumeSpec, ...] = ()
    texts: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    extended: Extended = ()
    node_selector: Mapping[str, str] = field(default_factory=dict[str, str])
    tolerations: tuple[Toleration, ...] = ()
    listens: str = ""


@dataclass(frozen=True, slots=True)
class PodStatus:
    """A pod that exists or has existed.

    ``exit_code``: as a shell reports it (128 + signal); None: nobody observed the end. ``reason``: how it has exited.
    ``waiting``: the reason why it is pending. ``limits``: the means that enforce its limits.
    ``launched_at_s``: when it began to run; while it is pending, when it was asked for.
    ``detail``: what the place says of its end. ``used_up``: what all need and its job has used up, for which it was
    ended. ``log``: the last lines that it wrote, when it failed, which are its owner's alone. ``adopted``: this
    backend found it running when it started.
    """

    job: str
    pod: str
    state: Literal["pending", "running", "exited"]
    cpu_cores: float
    memory_bytes: int
    waiting: Waiting | None = None
    limits: tuple[str, ...] = ()
    launched_at_s: float = 0.0
    exit_code: int | None = None
    reason: ExitReason | None = None
    detail: str = ""
    used_up: str = ""
    log: str = ""
    adopted: bool = False
    pids: tuple[int, ...] = field(default=())


class Backend(Protocol):
    """Pods by name. Never two of one name; as long as its job is followed, never a name again once it has exited."""

    async def open(self) -> None:
        """Reach the place and find the pods that are there. Raises BackendError: unreachable, or not allowed."""
        ...

    async def close(self) -> None:
        """Let go of the place; pods go on."""
        ...

    def places(self, job: str, pod: str) -> Places:
        """Return the folders of a pod, as it sees them."""
        ...

    def follow(self, job: str, changed: Callable[[], None]) -> Callable[[], None]:
        """Call ``changed`` (on the event loop) when pods of the job may have changed, too often rather than too seldom;
        returns what ends it. A backend that cannot know never calls: the actuator looks by itself every second."""
        ...

    async def list(self, job: str | None = None) -> Sequence[PodStatus]:
        """Pods that exist, and exited ones until they are forgotten."""
        ...

    async def launch(self, spec: PodSpec) -> None:
        """Start a pod unless one of this name exists or existed; it may be pending for a while. One that is held gets
        the files of ``spec`` instead of those that it had. Raises NoRoom: asked again, it starts once there is some;
        BackendError."""
        ...

    async def stop(self, job: str, pod: str, grace_s: float) -> None:
        """Ask a pod to end; asked again after ``grace_s``, end it."""
        ...

    async def kill(self, job: str, pod: str) -> None:
        """End a pod at once."""
        ...

    async def resize(self, job: str, pod: str, cpu_cores: float, memory_bytes: int) -> tuple[float, int]:
        """Change the limits of a running pod; returns those now in force (memory in use is never taken away). Raises
        NotInPlace."""
        ...

    async def logs(self, job: str, pod: str, lines: int) -> str:
        """Return the last lines of a pod's log; empty for an unknown pod."""
        ...

    async def forget(self, job: str, pod: str) -> None:
        """Remove the traces of an exited pod whose end is published. Its log stays where the backend keeps logs."""
        ...


class Following:
    """Implements ``Backend.follow``. Use it on the event loop only; a thread calls ``notify`` through the loop.

    ``unfollowed`` is called with a job when its last follower has left.
    """

    def __init__(self, unfollowed: Callable[[str], None] = lambda job: None) -> None:
        self._unfollowed = unfollowed
        self._of: dict[str, list[Callable[[], None]]] = {}

    def add(self, job: str, changed: Callable[[], None]) -> Callable[[], None]:
        """Call ``changed`` whenever pods of ``job`` may have changed; return the function that ends this."""
        self._of.setdefault(job, []).append(changed)

        def leave() -> None:
            others = self._of[job]
            others.remove(changed)
            if not others:
                del self._of[job]
                self._unfollowed(job)

        return leave

    def __contains__(self, job: object) -> bool:
        return job in self._of

    def notify(self, job: str) -> None:
        """Notify the followers of ``job``: its pods may have changed."""
        for changed in [*self._of.get(job, [])]:
            changed()

    def notify_all(self) -> None:
        """Notify all followers: pods of any job may have changed."""
        for job in [*self._of]:
            self.notify(job)
