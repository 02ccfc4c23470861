"""The lock of a store: operations that only read share it, an operation that changes anything has it alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

from ..errors import ServerEmptied


class SharedLock:
    """A readers-writer lock: any number of readers at once, or one writer.

    Writers and new readers wait at one door, so readers that keep coming do not shut a writer out.
    """

    def __init__(self) -> None:
        self._door = threading.Lock()
        self._free = threading.Lock()
        """A writer has it, or the first of the readers for all of them."""
        self._counting = threading.Lock()
        self._readers = 0

    def acquire(self) -> None:
        self._door.acquire()
        self._free.acquire()

    def release(self) -> None:
        self._free.release()
        self._door.release()

    def share(self) -> None:
        """Let others that only read come in, from an operation that had the lock alone and only reads from now on."""
        with self._counting:
            self._readers += 1  # the first of them, and what it holds is what the writer held
        self._door.release()

    def acquire_shared(self) -> None:
        with self._door, self._counting:
            if not self._readers:
                self._free.acquire()  # held by readers that leave or by nobody: a writer would hold the door
            self._readers += 1

    def release_shared(self) -> None:
        with self._counting:
            self._readers -= 1
            if not self._readers:
                self._free.release()


class Turn:
    """The lock of a store, for the operations of one life of its server; after its end each raises ServerEmptied."""

    def __init__(self, lock: SharedLock) -> None:
        self.lock = lock
        self._ended = False

    def end(self) -> None:
        """End the life. The caller has the lock alone."""
        self._ended = True

    @contextmanager
    def alone(self, first: Callable[[], object] | None = None) -> Generator[None]:
        """Hold the lock without any other operation, to change the store. first: what is done before all else."""
        self.lock.acquire()
        try:
            self._check()
            if first is not None:
                first()
            yield
        finally:
            self.lock.release()

    @contextmanager
    def shared(self, first: Callable[[], object] | None = None) -> Generator[None]:
        """Hold the lock beside others that only read. first: a change that is made alone, and that none comes after."""
        if first is None:
            self.lock.acquire_shared()
        else:
            self._change(first)
        try:
            self._check()
            yield
        finally:
            self.lock.release_shared()

    def _change(self, first: Callable[[], object]) -> None:
        """Take the lock alone for a change, and share it from then on."""
        self.lock.acquire()
        try:
            self._check()
            first()
        except BaseException:
            self.lock.release()
            raise
        self.lock.share()

    def _check(self) -> None:
        if self._ended:
            raise ServerEmptied("the server was emptied and has begun a new life since; ask it anew")
