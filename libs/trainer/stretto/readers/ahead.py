"""Blocks of files: read blocks are kept within a budget of memory, the next ones are read ahead in threads."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")


class Ahead(Generic[T]):
    """Loads blocks by number, each once while it is kept. It may be used by several threads.

    load: block -> its content. size: block -> its bytes in memory. Blocks that are kept, and those being loaded, have
    ``budget_bytes`` together. The block that is asked for is loaded whatever its size; one ahead only if there is room.
    """

    def __init__(self, load: Callable[[int], T], size: Callable[[int], int], budget_bytes: int, threads: int) -> None:
        self._load = load
        self._size = size
        self._budget_bytes = budget_bytes
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="read-ahead")
        self._lock = threading.Lock()
        self._blocks: OrderedDict[int, Future[T]] = OrderedDict()  # the one that was used last stands last
        self._bytes = 0

    def get(self, block: int, expected: Iterable[int] = ()) -> T:
        """Return a block. expected: blocks that will be wanted next, in order; the loads of those begin beside it."""
        while True:
            own: Future[T] | None = None
            with self._lock:
                future = self._blocks.get(block)
                if future is None or future.cancel():  # not yet begun: no thread is quicker than this one
                    if future is None:
                        self._make_room(self._size(block), {block})
                        self._bytes += self._size(block)
                    own = future = self._blocks[block] = Future()
                self._blocks.move_to_end(block)
                self._begin_ahead(block, expected)
            if own is not None:
                try:
                    own.set_result(self._load(block))
                except BaseException as error:
                    own.set_exception(error)
            try:
                return future.result()
            except CancelledError:
                continue  # another thread took the load over
            except BaseException:
                with self._lock:  # whoever asks next tries again
                    if self._blocks.get(block) is future:
                        self._remove(block)
                raise

    def kept_bytes(self) -> int:
        """Return the bytes of the blocks that are kept or being loaded."""
        with self._lock:
            return self._bytes

    def _begin_ahead(self, block: int, expected: Iterable[int]) -> None:
        wanted = {block}
        for each in expected:
            wanted.add(each)
            if each not in self._blocks:
                if not self._make_room(self._size(each), wanted):
                    return
                self._blocks[each] = self._pool.submit(self._load, each)
                self._bytes += self._size(each)
            self._blocks.move_to_end(each)

    def _make_room(self, size: int, wanted: set[int]) -> bool:
        """Drop the blocks used longest ago until there is room; wanted blocks and blocks being loaded stay."""
        for block in [block for block, future in self._blocks.items() if block not in wanted and future.done()]:
            if self._bytes + size <= self._budget_bytes:
                break
            self._remove(block)
        return self._bytes + size <= self._budget_bytes

    def _remove(self, block: int) -> None:
        del self._blocks[block]
        self._bytes -= self._size(block)
