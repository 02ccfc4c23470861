"""The lock of a store: operations that only read share it, an operation that changes anything has it alone."""

from __future__ import annotations

import threading
from collections.abc import Generator
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
    def alone(self) -> Generator[None]:
        """Hold the lock without any other operation, to change the store."""
        self.lock.acquire()
        try:
            self._check()
            yield
        finally:
            self.lock.release()

    @contextmanager
    def shared(self) -> Generator[None]:
        """Hold the lock beside others that only read."""
        self.lock.acquire_shared()
        try:
            self._check()
            yield
        finally:
            self.lock.release_shared()

    def _check(self) -> None:
        if self._ended:
            raise ServerEmptied("the server was emptied and has begun a new life since; ask it anew")
