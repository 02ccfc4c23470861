"""Rows of a server that find no room in memory: when they are rounded or go to the disk, and how they come back.

A thread evicts while the server is near its budget, slice by slice, so that a push waits for no disk and for a slice at
most. A batch that needs cold rows reads them before it takes the lock.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from stretto_parameters import LogDamaged, Pulled, RowsAsleep, Store, Tiers
from stretto_parameters.kernels import Kernels
from stretto_parameters.layout import PAGE_BYTES
from stretto_parameters.tiers import Asleep
from stretto_parameters.tiers.eviction import Hand, Victims
from stretto_parameters.tiers.pages import PageFile, ReadQueues, aligned
from stretto_parameters.tiers.reuse import ReuseDistances

from ..errors import ServerEmptied
from .layout import I64, U64
from .turns import Turn

log = logging.getLogger("stretto.engine")

R = TypeVar("R")
Hold = Callable[[Callable[[], None] | None], AbstractContextManager[None]]

_TRIES = 8
"""Times that a batch looks for its rows again before it keeps the lock while they are read."""
_LOOK_S = 0.05
_FAULT_S = 1.0
"""Pause after the disk has refused rows."""
_MEASURED_FROM = 0.25
_PROBE_PAGES, _PROBE_READS = 2**13, 1024
_RECENT = 64
"""Batches over which the rows of one are averaged."""
_ACTIVE_S = 10.0
"""Seconds since the last push of a worker, within which the worker counts as training."""
_AT_HAND = 5
"""Batches of a worker whose rows are to be hot: the batch that is computed with, the next, and three to come."""
_GAP_S = 1e-4
"""Pause after a slice of which nothing is to be written: who waits for the lock gets it before the next slice does."""
_SLICES = 64
"""Slices after which an eviction looks at its budget again."""


@dataclass(frozen=True, slots=True)
class Spill:
    """Where a server keeps rows that find no room in memory.

    folder: of the files; None: no row goes to a disk. bytes_max: of the files, all together. budget_bytes: what all
    rows, entries and indices may take, given what they take now; it follows the limit of the pod. warms: memory may
    have rows rounded to bfloat16.
    """

    folder: Path | None
    bytes_max: int
    budget_bytes: Callable[[int], int]
    warms: bool = False

    def prepare(self, store: Store) -> str:
        """Let a store keep cold rows; return why it cannot, else ""."""
        try:
            store.spill_to(self.folder, self.bytes_max, self.budget_bytes(0), warms=self.warms)
        except OSError as error:
            return f"rows cannot be kept in {self.folder}: {error.strerror or error}"
        return ""


def awake(
    turn: Turn, store: Callable[[], Store], hold: Hold, call: Callable[[Store], R], pulls: Pulls | None = None
) -> R:
    """Return the result of a call under the lock, once all rows that it needs are hot.

    hold: holds the lock, after a first change if one is given. What is read is woken in the hold of the next try, so
    that nobody evicts it in between. pulls: counts what is read; None: no batch of training needs it. Raises
    LogDamaged, and what the call raises.
    """
    needed: Sequence[Asleep] = ()
    for _ in range(_TRIES):
        with _read(store, needed, pulls) as wake:
            try:
                with hold(wake):
                    return call(store())
            except RowsAsleep as asleep:
                needed = asleep.rows
    with _read(store, needed, pulls) as wake, turn.alone(wake):
        while True:  # each time others have evicted what was hot: now nobody else comes between
            try:
                return call(store())
            except RowsAsleep as asleep:
                tiers = _tiers_of(store())
                try:
                    for each in asleep.rows:
                        tiers.wake(each, tiers.read(each), over_budget=True)
                    _count(pulls, asleep.rows)
                finally:
                    tiers.let_go(asleep.rows)


def look_ahead(turn: Turn, store: Callable[[], Store], keys: Sequence[U64], pulls: Pulls | None) -> None:
    """Wake the rows of a batch that comes, by table. pulls: counts what is read. Raises LogDamaged."""
    try:
        with turn.shared():
            store().look_for(keys)
    except RowsAsleep as asleep:
        with _read(store, asleep.rows, pulls) as wake, turn.alone(wake):
            pass


@contextmanager
def _read(
    store: Callable[[], Store], needed: Sequence[Asleep], pulls: Pulls | None
) -> Generator[Callable[[], None] | None]:
    """Read cold rows, and end the hold on them after the block; yield what wakes them, None if there are none."""
    if not needed:
        yield None
        return
    tiers = _tiers_of(store())
    try:
        rows = [tiers.read(each) for each in needed]
        _count(pulls, needed)

        def wake() -> None:
            for each, words in zip(needed, rows, strict=True):
                tiers.wake(each, words)

        yield wake
    finally:
        tiers.let_go(needed)


def _count(pulls: Pulls | None, rows: Sequence[Asleep]) -> None:
    if pulls is not None:
        pulls.read(sum(len(each.keys) for each in rows))


def _tiers_of(store: Store) -> Tiers:
    assert store.tiers is not None, "only tiers have cold rows"
    return store.tiers


class Pulls:
    """Counters of the rows that workers pull from a server, and of how soon rows are used again."""

    def __init__(self) -> None:
        self.rows = 0
        """Rows that were pulled since the start, each once a batch."""
        self.rows_read = 0
        """Rows that batches had read from the disk, ahead or when they came. A row that was evicted between is read,
        and counted, again."""
        self.batch: tuple[float, ...] = ()
        """The rows of a batch, by table: a mean over the last ones."""
        self._reuse = ReuseDistances(secrets.randbits(64))
        self._counting = threading.Lock()

    def add(self, keys: Sequence[U64]) -> list[U64]:
        """Count a pull of keys, by table; return the keys whose next pulls are followed from now on."""
        fresh = list[U64]()
        with self._counting:
            self.rows += sum(len(each) for each in keys)
            before = self.batch or [len(each) for each in keys]
            self.batch = tuple(rows + (len(each) - rows) / _RECENT for rows, each in zip(before, keys, strict=True))
            for number, each in enumerate(keys):
                # another number for each table: the low bits, by which keys are sampled, stay
                mask = np.uint64(number << 40)
                fresh.append(self._reuse.add(each ^ mask if number else each) ^ mask)
        return fresh

    def had_rows(self, keys: int, rows: int) -> None:
        """Count a number of the keys that `add` returned as used before: they are among `rows` of the server."""
        if keys:
            with self._counting:
                self._reuse.had_rows(keys, rows)

    def read(self, rows: int) -> None:
        """Count rows that a batch had read from the disk."""
        with self._counting:
            self.rows_read += rows

    def miss_ratios(self, rows: int) -> tuple[float, ...]:
        """Return the share of pulled rows that would be read if k/16 of all `rows` were in memory, for each k."""
        with self._counting:
            return self._reuse.miss_ratios(rows)


def counted_pull(turn: Turn, store: Callable[[], Store], keys: Sequence[U64], slices: I64, pulls: Pulls) -> Pulled:
    """Return the weights of keys, by table, and of slices, and count a pull of training. Raises LogDamaged."""
    store().check_pull(keys, slices)
    fresh = pulls.add(keys)

    def call(store: Store) -> tuple[Pulled, int, int]:
        return store.pull(keys, slices), store.with_rows(fresh), store.categories()

    pulled, known, rows = awake(turn, store, turn.shared, call, pulls)
    pulls.had_rows(known, rows)
    return pulled


def at_hand_bytes(pulls: Pulls, store: Store, now_s: float) -> float:
    """Return about what the rows take of all batches that workers compute with, have pulled, or name ahead.

    now_s: by the clock of the pushes.
    """
    active = sum(seen.last_us > (now_s - _ACTIVE_S) * 1e6 for seen in store.workers().values())
    batch = sum(rows * store.layout.row_bytes(table) for table, rows in enumerate(pulls.batch))
    return _AT_HAND * active * batch


class Eviction:
    """Evicts rows of a server: in a thread from `start` to `close`, or one `round` after the other.

    store: the store of the server's life now, with its lock. on_damage: called with the reason when rows are lost.
    at_hand_bytes: returns about what the rows take that workers need soon. They may take what is otherwise kept free.
    """

    def __init__(
        self,
        spill: Spill,
        store: Callable[[], tuple[Store, Turn]],
        on_damage: Callable[[str], None],
        at_hand_bytes: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._spill = spill
        self._at_hand_bytes = at_hand_bytes
        self._store = store
        self._on_damage = on_damage
        self.fault = ""
        """Why rows find no room: they cannot be evicted, or not as many as memory lacks; "" while they can."""
        self.disk_reads_per_s = 0.0
        """Random reads of the disk, measured once the rows take a quarter of their budget; 0: not known."""
        self._is_measured = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="eviction", daemon=True)

    def start(self) -> None:
        """Begin the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        pause_s = _LOOK_S
        while not self._ended.wait(pause_s):
            pause_s = _LOOK_S
            try:
                self.round()
            except ServerEmptied:
                continue
            except LogDamaged as error:
                self._on_damage(str(error))
                pause_s = _FAULT_S
            except Exception as error:  # a thread that ended would leave the server without memory
                if not self.fault:
                    log.warning("rows cannot be evicted: %s", error, exc_info=not isinstance(error, OSError))
                self.fault, pause_s = str(error) or type(error).__name__, _FAULT_S

    def round(self) -> None:
        """Evict and tidy as far as it is due. Raises what the last of them raised."""
        store, turn = self._store()
        tiers = store.tiers
        if tiers is None:
            return
        hand = tiers.hand
        short = self._set_budget(hand)
        is_due = not self._is_measured and hand.used_bytes > _MEASURED_FROM * hand.budget_bytes
        if is_due and (folder := self._spill.folder):
            self._is_measured = True
            with contextlib.suppress(OSError):
                self.disk_reads_per_s = random_reads_per_s(folder, store.kernels)
        fault: OSError | None = None
        try:
            if hand.is_full():
                if not (hand.has_disk or hand.can_evict()):
                    raise OSError("rows that may not leave memory take more than there is: give the server more")
                self._evict(hand)
        except OSError as error:  # a full log may have room once it is tidy
            fault = error
        for number, rows in enumerate(tiers.logs):
            if rows.is_wasteful:
                self._tidy(tiers, turn, number)
        if fault is not None:
            raise fault
        is_short = store.cold_rows() or any(table.warms.any() for table in tiers.tables)
        self.fault = short if is_short else ""

    def _set_budget(self, hand: Hand) -> str:
        """Take the budget of now; return why it is too small for what workers need soon, "" if it is not.

        Then rows get the last tenth, too, that eviction keeps free: rows that came for a batch and went before its push
        are read twice.
        """
        given_bytes = self._spill.budget_bytes(hand.used_bytes)
        needed_bytes = int(hand.least_bytes(self._at_hand_bytes()) / hand.low)
        hand.budget_bytes = max(given_bytes, min(needed_bytes, int(given_bytes / hand.high)))
        if needed_bytes <= hand.budget_bytes:
            return ""
        return (
            f"{given_bytes / 1e6:.0f} MB of its memory are left for rows, and what cannot leave it takes, with the "
            f"batches at hand, {needed_bytes / 1e6:.0f} MB: give the server more memory"
        )

    def _evict(self, hand: Hand) -> None:
        """Evict slices of rows until there is room. Raises OSError."""
        written: Victims | None = None
        for left in reversed(range(_SLICES + 1)):
            victims = self._settle(functools.partial(self._next, hand, written, is_last=not left))
            if victims is not None:
                try:
                    hand.write(victims)
                except OSError:
                    self._settle(functools.partial(hand.spare, victims))
                    raise
            elif hand.is_relieved() or not hand.can_evict():
                return
            else:
                time.sleep(_GAP_S)
            written = victims

    def _next(self, hand: Hand, written: Victims | None, *, is_last: bool) -> Victims | None:
        """Release a slice that was written, and choose the next one in the same hold of the lock. Raises LogFull."""
        if written is not None:
            hand.release(written)
        return None if is_last or hand.is_relieved() or self._ended.is_set() else hand.choose()

    def _settle(self, act: Callable[[], R]) -> R:
        """Act with the lock alone, in whatever life of the server: what was chosen in one is spared in the next."""
        while True:
            try:
                with self._store()[1].alone():
                    return act()
            except ServerEmptied:
                continue

    def _tidy(self, tiers: Tiers, turn: Turn, number: int) -> None:
        """Write the live rows of a sparse segment anew. Raises OSError, LogDamaged, ServerEmptied."""
        rows = tiers.logs[number]
        with turn.shared():
            if (segment := rows.sparse()) is None:
                return
            ticket = rows.hold()
        try:
            records, keys, raw = rows.read_segment(segment)
            with turn.alone():
                live = tiers.live(number, keys, records)
                if not live.any():
                    rows.leave_alone(segment)
                    return
                to = rows.allot(int(live.sum()), last=True)
            try:
                rows.write(to, keys[live], rows.rows_of(keys[live], raw[live]))
            except (OSError, LogDamaged):
                self._settle(lambda: rows.drop(to))
                raise
            self._settle(lambda: tiers.move(number, keys[live], records[live], to))
        finally:
            rows.let_go(ticket)


def random_reads_per_s(folder: Path, kernels: Kernels) -> float:
    """Return the random reads of a page that the disk of a folder does in a second, many of them asked for at once.

    32 MiB are written for that, and their pages taken out of the system's cache. Raises OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    queues = ReadQueues(kernels)
    with contextlib.closing(queues), contextlib.closing(PageFile(folder, PAGE_BYTES, kernels, queues)) as file:
        pages = aligned(256 * PAGE_BYTES)
        for offset in range(0, _PROBE_PAGES * PAGE_BYTES, len(pages)):
            pages[:] = np.frombuffer(os.urandom(len(pages)), np.uint8)
            file.write(pages, offset)
        file.uncache()
        chosen = np.sort(np.random.default_rng(0).choice(_PROBE_PAGES, _PROBE_READS, replace=False))
        begun = time.perf_counter()
        file.read(chosen * PAGE_BYTES, PAGE_BYTES, np.empty(_PROBE_READS * PAGE_BYTES, np.uint8))
        return _PROBE_READS / (time.perf_counter() - begun)
