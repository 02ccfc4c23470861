"""Where the samples come from: partitions that may grow, and how far each has been opened.

A partition is cut into blocks, and their seeded order is computed, never stored. Since no order can be drawn over
blocks that are not known, a partition is opened extent by extent: what is known when the last extent is spent makes
the next one, in whole blocks while more may come; a shorter block only when that is all there is. So a partition is
some numbers, however long it grows, and one that is spent is its name and its total.

Partitions of higher priority come first. Equal ones are mixed in proportion to what is left of each; without shuffle
they follow one another as they came. Windows (``window_samples``) follow one another too: each is what is known of one
partition once all before it is trained, and is opened when it has been admitted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from zlib import crc32

from stretto_messages.values import PARTITIONS_MAX, DataPartition

from stretto_core.dispatcher.order import BlockOrder, mixed
from stretto_core.machine import ValueRefused


class LedgerError(ValueRefused):
    """A value that contradicts the ledger's books or settings."""

    unchanged = True


@dataclass(frozen=True, slots=True)
class DataSpec:
    """One epoch of a dataset, and how it is cut and ordered. ``samples``: 0 for data that grow.

    ``name``: which data these are. Numbers alone cannot tell today's data from yesterday's.
    """

    samples: int
    batch_size: int
    batches_per_shard: int
    shuffle: bool = True
    seed: int = 0
    growing: bool = False
    name: str = ""

    def __post_init__(self) -> None:
        for name in ("samples", "batch_size", "batches_per_shard"):
            if getattr(self, name) < 1 and not (self.growing and name == "samples"):
                raise LedgerError(name, getattr(self, name), "at least 1")

    @property
    def block_samples(self) -> int:
        """Samples of every block but the last of an extent."""
        return self.batch_size * self.batches_per_shard


@dataclass(slots=True)
class Range:
    """Consecutive samples of one epoch, in the partition's own order."""

    epoch: int
    start: int
    length: int
    partition: str = ""


@dataclass(slots=True)
class Partition:
    """``opened`` of its ``samples`` have been, in this epoch: all before the extent, ``position`` blocks of it."""

    samples: int
    priority: int = 0
    opened: int = 0
    begin: int = 0
    end: int = 0
    position: int = 0


class Orders:
    """The orders of the extents that are being opened. Not part of any state: computed wherever one is missing."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[int, int, int], BlockOrder]] = {}

    def of(self, spec: DataSpec, epoch: int, name: str, part: Partition) -> BlockOrder:
        """The order of the blocks of a partition's extent."""
        key = (epoch, part.begin, part.end)
        known = self._known.get(name)
        if known is not None and known[0] == key:
            return known[1]
        blocks = -(-(part.end - part.begin) // spec.block_samples)
        seed = spec.seed
        if name or part.begin:
            seed = mixed(seed, crc32(name.encode()) << 32 ^ part.begin)
        order = BlockOrder(blocks, seed, epoch, spec.shuffle)
        if len(self._known) > PARTITIONS_MAX:
            self._known.clear()
        self._known[name] = key, order
        return order


@dataclass(slots=True)
class Source:
    """All samples of a job, as far as nobody was given them. Data that grow have one epoch."""

    spec: DataSpec
    epochs: int
    complete: bool = True
    """Nothing more can come."""
    samples: int = 0
    """Samples of all partitions."""
    epoch: int = 0
    opened: int = 0
    """Samples opened, of all epochs."""
    partitions: dict[str, Partition] = field(default_factory=dict[str, Partition])
    spent: dict[str, int] = field(default_factory=dict[str, int])
    """Partitions of growing data whose samples were all opened, with their totals."""
    stopped: str = ""
    """Reason why nothing more is opened; what has been is trained."""
    window_samples: int = 0
    """Samples of each window that are evaluated before it is opened; 0: the data have no windows."""
    admitted: str = ""
    """The partition of the window that may be opened."""
    admitted_end: int = 0
    """Where that window ends, in the partition's own order."""

    @classmethod
    def begin(
        cls, spec: DataSpec, epochs: int, arrivals: Iterable[DataPartition] = (), window_samples: int = 0
    ) -> Source:
        """Return an untouched source. Without ``arrivals``, data that do not grow are one partition without a name."""
        new = cls(spec, epochs, not spec.growing, window_samples=window_samples)
        new.arrive(tuple(arrivals) or (() if spec.growing else (DataPartition(name="", samples=spec.samples),)))
        return new

    def arrive(self, arrivals: Iterable[DataPartition]) -> None:
        """Set the totals of partitions. A total below the known one is an older message and changes nothing."""
        arrivals = tuple(arrivals)
        names = {*self.partitions, *self.spent, *(one.name for one in arrivals)}
        if len(names) > PARTITIONS_MAX:
            raise LedgerError("partitions", len(names), f"at most {PARTITIONS_MAX} in all; add to one that there is")
        for arrival in arrivals:
            name, samples, priority = arrival.name, arrival.samples, arrival.priority
            part, spent = self.partitions.get(name), self.spent.get(name, 0)
            if part is not None:
                part.priority = priority
                self.samples += max(0, samples - part.samples)
                part.samples = max(samples, part.samples)
            elif samples > spent:
                self.spent.pop(name, None)
                self.partitions[name] = Partition(samples, priority, spent, spent, spent)
                self.samples += samples - spent

    def stop(self, reason: str) -> None:
        """Open nothing more."""
        self.stopped, self.complete = reason, True

    def close(self) -> None:
        """Close the data: nothing more comes."""
        self.complete = True
        self._turn()

    def totals(self) -> dict[str, int]:
        """Return the samples of each partition."""
        return self.spent | {name: part.samples for name, part in self.partitions.items()}

    @property
    def samples_total(self) -> int:
        """Samples of all epochs, as far as is known, or those that were opened before training stopped."""
        return self.opened if self.stopped else self.samples * self.epochs

    @property
    def samples_left(self) -> int:
        """Samples that are never opened, since training stopped."""
        return self.samples * self.epochs - self.samples_total

    def next_window(self) -> Range | None:
        """Return the window to admit next. None: an admitted one is not opened yet, or nothing is left."""
        if not self.window_samples or self._admitted_left():
            return None
        left = [name for name, part in self.partitions.items() if part.opened < part.samples]
        if not left or self.epoch >= self.epochs:
            return None
        name = max(left, key=lambda each: self.partitions[each].priority)  # the first of equal ones
        part = self.partitions[name]
        return Range(self.epoch, part.opened, part.samples - part.opened, name)

    def admit(self, window: Range) -> None:
        """Let the samples of this window be opened."""
        self.admitted, self.admitted_end = window.partition, window.start + window.length

    def _admitted_left(self) -> int:
        part = self.partitions.get(self.admitted)
        return self.admitted_end - part.opened if part is not None else 0

    def open_block(self, orders: Orders) -> Range | None:
        """Open the next block. None: nothing is left, or nothing has arrived yet."""
        name = self._choose() if self.epoch < self.epochs and not self.stopped else None
        if name is None:
            return None
        spec, part = self.spec, self.partitions[name]
        size = spec.block_samples
        if part.opened == part.end:
            known = self.admitted_end if self.window_samples else part.samples
            part.begin, part.end, part.position = part.end, self._extent(part, known, size), 0
        start = part.begin + orders.of(spec, self.epoch, name, part).block_at(part.position) * size
        piece = Range(self.epoch, start, min(size, part.end - start), name)
        part.position += 1
        part.opened += piece.length
        self.opened += piece.length
        if part.opened == part.samples:
            if spec.growing:
                self.spent[name] = part.samples
                del self.partitions[name]
            self._turn()
        return piece

    def _choose(self) -> str | None:
        """Choose the partition of the next block: of the highest priority, in proportion to what is left of each."""
        if self.window_samples:
            return self.admitted if self._admitted_left() > 0 else None
        found: list[tuple[str, int]] = []
        first, total = 0, 0
        for name, part in self.partitions.items():
            left = part.samples - part.opened
            if left > 0 and (not found or part.priority >= first):
                if found and part.priority > first:
                    found, total = [], 0
                first = part.priority
                found.append((name, left))
                total += left
        if len(found) > 1 and self.spec.shuffle:
            drawn = mixed(self.spec.seed, self.opened) % total
            for name, left in found:
                drawn -= left
                if drawn < 0:
                    return name
        return found[0][0] if found else None

    def _extent(self, part: Partition, known: int, size: int) -> int:
        """Where the next extent ends: while more may come, after the last known whole block if there is any."""
        whole = (known - part.end) // size * size
        return known if self.complete or not whole else part.end + whole

    def _turn(self) -> None:
        """To the next epoch, when every sample of this one was opened."""
        if not self.complete or self.epoch >= self.epochs or self.opened < self.samples * (self.epoch + 1):
            return
        self.epoch += 1
        for part in self.partitions.values():
            part.opened = part.begin = part.end = part.position = 0

    def copy(self) -> Source:
        """Return a copy of this moment."""
        return replace(self, partitions={n: replace(p) for n, p in self.partitions.items()}, spent=dict(self.spent))

    def same_data(self, other: Source) -> bool:
        """Return True if both are the same data: the same name, cut and ordered alike."""
        return self.spec == other.spec and (self.spec.growing or self.totals() == other.totals())

    def resumed(self, mark: Source) -> Source:
        """Return the position of ``mark`` in the same data, with the samples that have arrived since."""
        back = mark.copy()
        back.epochs, back.complete, back.window_samples = self.epochs, self.complete, self.window_samples
        back.stopped = mark.stopped if self.stopped else ""  # of this job: another one goes on from a stopped job
        if self.spec.growing:
            back.epoch = 0
            known = mark.partitions | self.partitions
            back.arrive(
                DataPartition(name=name, samples=samples, priority=known[name].priority if name in known else 0)
                for name, samples in self.totals().items()
            )
            back._turn()
        return back
