"""Notice of the ends of pods, so that nobody waits for the next look at them."""

from __future__ import annotations

import asyncio
import contextlib
import os

from stretto_runtime.process.pid import ProcessIdentity

from ..backend import Following
from .records import Record


class Ends:
    """Notifies the followers of a job when the shell of one of its pods ends, where the system offers that."""

    def __init__(self, following: Following) -> None:
        self._following = following
        self._watched: dict[tuple[str, str], int] = {}
        """Descriptor that tells the end of each pod whose job is followed."""

    def watch(self, record: Record) -> None:
        """Watch a running pod, if its job is followed."""
        key = record.job, record.pod
        if record.job not in self._following or key in self._watched:
            return
        with contextlib.suppress(OSError):
            descriptor = os.pidfd_open(record.pid)
            if ProcessIdentity.of(record.pid) != record.birth:
                os.close(descriptor)
                return
            self._watched[key] = descriptor
            asyncio.get_running_loop().add_reader(descriptor, self._ended, *key)

    def close(self) -> None:
        """Watch no pod any longer."""
        for job, pod in [*self._watched]:
            self._unwatch(job, pod)

    def _ended(self, job: str, pod: str) -> None:
        self._unwatch(job, pod)
        self._following.notify(job)

    def _unwatch(self, job: str, pod: str) -> None:
        descriptor = self._watched.pop((job, pod))
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)
