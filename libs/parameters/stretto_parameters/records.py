"""Exactly-once accounting: ownership, progress records per column, the judgement of a push, fingerprints.

A record holds, for one shard, the offset that each column has reached. Offsets count from the shard's beginning.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .errors import InputRefused

I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]

_WORD = 2**64
_MARKS = 1024
_WORD_BYTES = _MARKS // 8
_RECENT = 1024
"""Marks that are remembered in their order: more than the shards that finish during a move."""


class Own(IntEnum):
    """The state of one column at one server."""

    NOT_MINE = 0
    MINE = 1
    FROZEN = 2  # mine and readable, but every push to it is rejected: it is being moved or copied


class Code(IntEnum):
    """The answer to a push. Nothing is applied unless it is APPLIED."""

    APPLIED = 0
    NOT_OWNED = 1
    GAP = 2
    STALE = 3
    MISALIGNED = 4


class Claim(NamedTuple):
    """Samples start..stop of a shard, under the attempt that trained them."""

    shard: int
    attempt: int
    start: int
    stop: int


def judge(claim: Bools, own: I64, offsets: I64, start: int, stop: int, stale: bool) -> Code:
    """Return the answer to a push of samples start..stop to the claimed columns; the first that fits counts."""
    if (own[claim] != Own.MINE).any():
        return Code.NOT_OWNED
    if stale:
        return Code.STALE
    claimed = offsets[claim]
    if (claimed < start).any():
        return Code.GAP
    if ((claimed > start) & (claimed < stop)).any():
        return Code.MISALIGNED
    return Code.APPLIED


def fingerprint(shard: int, start: int, stop: int) -> int:
    """Return the fingerprint of samples [start, stop) of a shard: w(shard) (stop^2 - start^2) mod 2^64, as int64.

    Over a shard's batches it adds up to w length^2. The ledger computes the same sum for itself, so a wrong sample
    shows even when the number of samples is right.
    """
    word = shard * 0x9E3779B97F4A7C15 % _WORD
    word = (word ^ word >> 32) * 0xD6E8FEB86659FD93 % _WORD
    weight = (word ^ word >> 32) | 1
    value = weight * (stop * stop - start * start) % _WORD
    return value - _WORD if value >= _WORD // 2 else value


def check_word(name: str, value: int) -> None:
    """Raise InputRefused unless a number fits into 64 bits."""
    if not -(_WORD // 2) <= value < _WORD // 2:
        raise InputRefused(f"{name} = {value} must be a 64-bit integer")


class Marks:
    """A set of shard numbers in which neighbours cost a bit each: finished shards stay marked for ever."""

    def __init__(self) -> None:
        self._words: dict[int, int] = {}
        self._count = 0
        self._recent: deque[int] = deque(maxlen=_RECENT)

    def __len__(self) -> int:
        return self._count

    def __contains__(self, shard: int) -> bool:
        return bool(self._words.get(shard // _MARKS, 0) >> shard % _MARKS & 1)

    def update(self, shards: I64) -> None:
        """Mark shards: [n], in any order."""
        ordered = np.sort(shards)
        numbers, bits = ordered // _MARKS, ordered % _MARKS
        begins = _firsts(numbers)
        words, counts = numbers[begins], np.diff(begins, append=len(numbers))
        at = np.repeat(np.arange(len(words)) * _WORD_BYTES, counts) + bits // 8
        begins = _firsts(at)
        raw = np.zeros(len(words) * _WORD_BYTES, np.uint8)
        raw[at[begins]] = np.bitwise_or.reduceat(np.left_shift(1, bits % 8), begins) if len(bits) else 0
        new: dict[int, int] = {}
        for word, octets in zip(words.tolist(), raw.reshape(-1, _WORD_BYTES), strict=True):
            before = self._words.get(word, 0)
            if more := int.from_bytes(octets.tobytes(), "little") & ~before:
                new[word] = more
                self._words[word] = before | more
                self._count += more.bit_count()
        latest = list(new.items())[-_RECENT:]
        self._recent.extend(_marked(latest).tolist())

    def array(self) -> I64:
        """Return the marked shards in order: [n]."""
        return _marked(sorted(self._words.items()))

    def since(self, count: int) -> I64:
        """Return, in order, the shards that were marked after the first `count` of them: [n].

        All marked shards are returned if so many are new that they are not remembered one by one.
        """
        new = self._count - count
        if not 0 <= new <= len(self._recent):
            return self.array()
        return np.array(sorted(islice(reversed(self._recent), new)), np.int64)

    @property
    def used_bytes(self) -> int:
        """Approximate bytes of memory."""
        return len(self._words) * (_WORD_BYTES + 100) + len(self._recent) * 40


def _firsts(ordered: I64) -> I64:
    """Return where each value of an ascending array begins. np.unique would import numpy.ma at its first use."""
    return np.flatnonzero(np.concatenate([np.ones(min(1, len(ordered)), np.bool_), ordered[1:] != ordered[:-1]]))


def _marked(words: list[tuple[int, int]]) -> I64:
    """Return the shards that are marked in some words (number, bits), in their order."""
    raw = np.frombuffer(b"".join(bits.to_bytes(_WORD_BYTES, "little") for _, bits in words), np.uint8)
    some = np.flatnonzero(raw)
    octets, bit = np.nonzero(np.unpackbits(raw[some][:, None], axis=1, bitorder="little"))
    at = 8 * some[octets] + bit
    return np.array([number for number, _ in words], np.int64)[at // _MARKS] * _MARKS + at % _MARKS


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of all columns at one instant.

    shards [n], records [n, columns + 2]: offsets, attempt, samples that the first dense slice applied. finished: the
    marks; empty if there were no more than the caller knew, or those alone that it lacks. samples and fingerprints
    [columns].
    """

    shards: I64
    records: I64
    finished: I64
    samples: I64
    fingerprints: I64


class Records:
    """The progress of a server's columns."""

    def __init__(self, columns: int, first_slice: int) -> None:
        self._columns = columns
        self._first_slice = first_slice
        self.reset()

    def reset(self) -> None:
        """Forget everything, as before the first push."""
        self._of_shard: dict[int, I64] = {}
        self.finished = Marks()
        self.samples: I64 = np.zeros(self._columns, np.int64)
        self.fingerprints: I64 = np.zeros(self._columns, np.int64)

    def offsets(self, shard: int) -> I64:
        """Return the offset of each column: [columns]. The caller changes nothing."""
        return self.of(shard)[: self._columns]

    def of(self, shard: int) -> I64:
        """Return the record of a shard, zeros if it has none: [columns + 2]. The caller changes nothing."""
        found = self._of_shard.get(shard)
        return np.zeros(self._columns + 2, np.int64) if found is None else found

    def is_stale(self, shard: int, attempt: int) -> bool:
        """Return whether a push of this attempt comes too late."""
        return shard in self.finished or attempt < int(self.of(shard)[self._columns])

    def raise_attempt(self, shard: int, attempt: int) -> None:
        """Refuse pushes of lower attempts from now on."""
        if shard not in self.finished and attempt > int(self.of(shard)[self._columns]):
            self._writable(shard)[self._columns] = attempt

    def account(self, shard: int, attempt: int, start: int, stop: int, applied: Bools) -> None:
        """Move the offsets of applied columns to `stop`, and count their samples."""
        record = self._writable(shard)
        record[: self._columns][applied] = stop
        record[self._columns] = max(attempt, int(record[self._columns]))
        record[self._columns + 1] += (stop - start) * int(applied[self._first_slice])
        self.samples[applied] += stop - start
        self.fingerprints[applied] += np.int64(fingerprint(shard, start, stop))

    def progress(self, known_finished: int = 0, *, only_new: bool = False) -> Progress:
        """Copy everything. known_finished: marks that the caller has (none is ever removed).

        only_new: of the marks, only those that the caller lacks, unless they are very many.
        """
        shards = sorted(self._of_shard)
        records = np.array([self._of_shard[shard] for shard in shards], np.int64)
        is_known = only_new or len(self.finished) == known_finished
        return Progress(
            np.array(shards, np.int64),
            records.reshape(len(shards), self._columns + 2),
            self.finished.since(known_finished) if is_known else self.finished.array(),
            self.samples.copy(),
            self.fingerprints.copy(),
        )

    def merge(self, mask: Bools, given: Progress) -> None:
        """Take over the progress of the columns of `mask` [columns], and the marks.

        It replaces what was here: a column that comes back from an older image has offsets of its earlier stay, and
        samples up to these would be taken for trained.
        """
        self._check(given)
        self.drop(mask)
        for shard, theirs in zip(given.shards.tolist(), given.records, strict=True):
            if shard in self.finished:
                continue
            mine = self._writable(shard)
            mine[: self._columns][mask] = theirs[: self._columns][mask]
            mine[self._columns] = max(int(mine[self._columns]), int(theirs[self._columns]))
            if mask[self._first_slice]:
                mine[self._columns + 1] = theirs[self._columns + 1]
        self.samples[mask] = given.samples[mask]
        self.fingerprints[mask] = given.fingerprints[mask]
        self.finish(given.finished)

    def drop(self, mask: Bools) -> None:
        """Forget the progress of the columns of `mask`; attempts and marks stay."""
        for record in self._of_shard.values():
            record[: self._columns][mask] = 0
            if mask[self._first_slice]:
                record[self._columns + 1] = 0
        self.samples[mask] = 0
        self.fingerprints[mask] = 0

    def finish(self, shards: Iterable[int] | I64) -> None:
        """Delete the records of finished shards; a mark stays, so that a late push for them is refused."""
        self.finished.update(shards if isinstance(shards, np.ndarray) else np.array([*shards], np.int64))
        for shard in [shard for shard in self._of_shard if shard in self.finished]:
            del self._of_shard[shard]

    @property
    def used_bytes(self) -> int:
        """Approximate bytes of records and marks."""
        return len(self._of_shard) * (8 * (self._columns + 2) + 200) + self.finished.used_bytes

    def _writable(self, shard: int) -> I64:
        if shard not in self._of_shard:
            self._of_shard[shard] = np.zeros(self._columns + 2, np.int64)
        return self._of_shard[shard]

    def _check(self, given: Progress) -> None:
        shapes = {
            "shards": (given.shards.shape, (len(given.shards),)),
            "records": (given.records.shape, (len(given.shards), self._columns + 2)),
            "samples": (given.samples.shape, (self._columns,)),
            "fingerprints": (given.fingerprints.shape, (self._columns,)),
        }
        for name, array in (("shards", given.shards), ("records", given.records), ("finished", given.finished)):
            if array.dtype != np.int64:
                raise InputRefused(f"{name} of progress are {array.dtype}, wanted int64")
        for name, (found, wanted) in shapes.items():
            if found != wanted:
                raise InputRefused(f"{name} of progress have shape {found}, wanted {wanted}: of another layout?")
