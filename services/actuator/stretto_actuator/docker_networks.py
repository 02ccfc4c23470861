"""On which network the pods of a job are: on one for all, or each job on its own, where no other job's pods reach them.

What stands on the common network beside pods, such as the bus, is joined to every job's network under the names that
it has there.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Generator

from .backend import BackendError
from .docker_engine import POD, Engine


class JobNetworks:
    """Blocking, as the engine is. ``apart``: each job has a network of its own."""

    def __init__(self, engine: Engine, common: str, apart: bool) -> None:
        self._engine = engine
        self._common = common
        self._apart = apart
        self._changing = threading.Lock()
        """pods of a job are started together, in threads"""
        self._starting: Counter[str] = Counter()
        """how many pods of a job are on their way to its network"""

    def open(self) -> None:
        """Make the common one where it is missing. Raises BackendError."""
        self._engine.ensure_network(self._common, {})

    @contextlib.contextmanager
    def used_by(self, job: str) -> Generator[str]:
        """The network of a job, joined by what pods speak to; it stays while a pod is started. Raises BackendError."""
        if not self._apart:
            yield self._common
            return
        name = self._of(job)
        with self._changing:
            self._starting[job] += 1
        try:
            with self._changing:
                self._engine.ensure_network(name, self._mark)
                self._join(name)
            yield name
        finally:
            with self._changing:
                self._starting[job] -= 1

    def join(self) -> None:
        """Whatever came to the common network meanwhile, to the networks of all jobs."""
        if self._apart:
            with self._changing:
                for name in self._engine.networks(self._mark):
                    self._join(name)

    def leave(self, job: str) -> None:
        """The job has no pods left; unless one is on its way, or has come meanwhile."""
        if not self._apart:
            return
        name = self._of(job)
        with self._changing:
            if self._starting[job] or name not in self._engine.networks(self._mark):
                return
            members = self._engine.members(name)
            if any(POD in labels for labels in members.values()):
                return
            del self._starting[job]
            for container in members:
                self._engine.part(name, container)
            self._engine.remove_network(name)

    def _of(self, job: str) -> str:
        return f"{self._engine.installation}.{job}"

    @property
    def _mark(self) -> dict[str, str]:
        return {**self._engine.own, "stretto.dev/common-network": self._common}

    def _join(self, name: str) -> None:
        there = self._engine.members(name)
        for container, labels in self._engine.members(self._common).items():
            if POD not in labels and container not in there:
                names = self._engine.names_on(self._common, container)
                if not names:
                    raise BackendError(f"{container} has left {self._common} meanwhile")
                self._engine.join(name, container, names)
