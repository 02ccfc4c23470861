"""The kernels in NumPy: they say what kernels.c computes, bit by bit, and serve where nothing can be built."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from . import checksums
from .layout import RowFormat
from .optimizers import Optimizer
from .parts import (
    ABSENT,
    ASLEEP,
    COLD,
    HEAT_MAX,
    HEAT_SHIFT,
    NUMBER,
    STAMPS,
    U32,
    U64,
    WARM,
    TableParts,
)

F32 = NDArray[np.float32]
U16 = NDArray[np.uint16]
Bytes = NDArray[np.uint8]
I64 = NDArray[np.int64]
Indices = NDArray[np.intp]

_HIGH = np.uint64(32)
_LOW = np.uint64(2**32 - 1)


@dataclass(frozen=True, slots=True)
class Due:
    """Steps that rows make later. rates, clocks [parts]: learning rate and steps of each part."""

    optimizer: Optimizer
    rates: F32
    clocks: F32

    def weights(self, form: RowFormat, rows: F32, part: int) -> F32:
        """Return the weights of rows [n, words] of a part as if they had made them: [n, width]."""
        weights, slots = read_weights(form, rows), rows[:, form.weight_words :].copy()
        rate, clock = (np.full((len(rows), 1), each[part], np.float32) for each in (self.rates, self.clocks))
        self.optimizer.catch_up(weights, slots, rate, clock, self.optimizer.hyperparameters())
        return weights


@dataclass(frozen=True, slots=True)
class RowGradients:
    """The gradients of rows [n, width], and their squares; None: those of the gradients."""

    gradients: F32
    squares: F32 | None = None


class Reference:
    """Every kernel, in NumPy. Callers have checked sizes: keys are unique, and `grow` has made room."""

    name = "numpy"
    queues: None = None

    def locate(self, parts: TableParts, keys: U64, places: U64) -> int:
        """Write the place of each key, or ABSENT; return how many are absent."""
        places[:] = ABSENT
        for part, chosen in _by_part(keys >> np.uint64(parts.shift)):
            index, entries = parts.index(part), parts.keys(part)
            wanted = keys[chosen]
            mask = np.uint64(len(index) - 1)
            slots = parts.first_slots(part, wanted)
            left = np.arange(len(chosen))
            while len(left):
                rows = index[slots[left]].astype(np.int64)
                left, rows = left[rows > 0], rows[rows > 0]
                same = entries[rows - 1] == wanted[left]
                asleep = (parts.entries(part)["mark"][rows[same] - 1] >= COLD) * ASLEEP
                places[chosen[left[same]]] = (np.uint64(part) << _HIGH) | (rows[same] - 1).astype(np.uint64) | asleep
                left = left[~same]
                slots[left] = (slots[left] + np.uint64(1)) & mask
        return int((places == ABSENT).sum())

    def insert(self, parts: TableParts, keys: U64, places: U64, epoch: int) -> None:
        """Append a row with its initial values for each key that is ABSENT, and write its place."""
        absent = np.flatnonzero(places == ABSENT)
        form = parts.form
        for part, of_absent in _by_part(keys[absent] >> np.uint64(parts.shift)):
            chosen = absent[of_absent]
            rows = parts.append(part, keys[chosen], epoch)
            places[chosen] = (np.uint64(part) << _HIGH) | np.arange(rows.start, rows.stop, dtype=np.uint64)
            added = np.empty((len(chosen), form.words), np.float32)
            write_weights(form, added, initial_weights(form, keys[chosen]))
            added[:, form.weight_words :] = form.slots
            parts.rows(part)[-len(chosen) :] = added
            _enter(parts, part, rows.start)

    def rebuild(self, parts: TableParts, part: int) -> None:
        """Build the index of a part anew."""
        parts.index(part)[:] = 0
        _enter(parts, part, 0)

    def adopt(self, parts: TableParts, part: int, keys: U64, epoch: int) -> None:
        """Give an empty part, once there is room, rows with these keys; the caller writes their words."""
        parts.append(part, keys, epoch)
        self.rebuild(parts, part)

    def gather(self, parts: TableParts, keys: U64, places: U64, out: F32, due: Due | None = None) -> None:
        """Write the weights of each key: the row's, after the steps that it is due, else the initial ones.

        A warm row is read where it is.
        """
        form = parts.form
        absent = np.flatnonzero(places == ABSENT)
        initial = initial_weights(form, keys[absent])
        out[absent] = widened(narrowed(initial)) if form.half else initial
        present = np.flatnonzero(places != ABSENT)
        words = np.empty((len(present), form.words), np.float32)
        self.collect(parts, places[present], words)
        for part, of_present in _by_part((places[present] & ~ASLEEP) >> _HIGH):
            chosen, rows = present[of_present], words[of_present]
            out[chosen] = read_weights(form, rows) if due is None else due.weights(form, rows, part)

    def update(
        self,
        parts: TableParts,
        places: U64,
        by: RowGradients,
        rates: F32,
        clocks: F32,
        optimizer: Optimizer,
        epoch: int,
    ) -> None:
        """Make one step of the optimizer on each row. rates, clocks [parts]: learning rate and steps of each part."""
        form, h = parts.form, optimizer.hyperparameters()
        for part, chosen in _by_part(places >> _HIGH):
            at = _rows(places[chosen])
            slots_of = parts.slots(part, at)
            rows = parts.rows(part)[slots_of]
            weights = read_weights(form, rows)
            slots = rows[:, form.weight_words :]
            rate, clock = (np.full((len(at), 1), each[part], np.float32) for each in (rates, clocks))
            optimizer.catch_up(weights, slots, rate, clock, h)
            gradients = by.gradients[chosen]
            squares = gradients * gradients if by.squares is None else by.squares[chosen]
            optimizer.step(weights, slots, gradients, squares, rate, h)
            write_weights(form, rows, weights)
            parts.rows(part)[slots_of] = rows
            parts.entries(part)["epoch"][at] = epoch
            if parts.is_tiered(part):
                marks = parts.entries(part)["mark"]
                marks[at] += ((marks[at] >> HEAT_SHIFT) < HEAT_MAX).astype(np.uint32) << np.uint32(HEAT_SHIFT)

    def marks(self, parts: TableParts, places: U64, out: U32) -> None:
        """Write the marks of rows: [n]."""
        for part, chosen in _by_part((places & ~ASLEEP) >> _HIGH):
            out[chosen] = parts.entries(part)["mark"][_rows(places[chosen])]

    def heat(self, parts: TableParts, places: U64) -> None:
        """Make hot rows as hot as can be: the hand passes them some times before it chooses them."""
        for part, chosen in _by_part(places >> _HIGH):
            if parts.is_tiered(part):
                parts.entries(part)["mark"][_rows(places[chosen])] |= np.uint32(HEAT_MAX << HEAT_SHIFT)

    def keep(self, parts: TableParts, places: U64) -> None:
        """Heat the hot rows among these that have no heat: the hand passes them once before they are taken."""
        for part, chosen in _by_part(places >> _HIGH):
            if part < len(parts.heads) and parts.is_tiered(part):
                marks, rows = parts.entries(part)["mark"], _rows(places[chosen])
                marks[rows[marks[rows] >> HEAT_SHIFT == 0]] |= np.uint32(1 << HEAT_SHIFT)

    def collect(self, parts: TableParts, places: U64, out: F32) -> None:
        """Copy the words of hot and warm rows: [n, words]; the rows of absent ones are left as they are."""
        present = np.flatnonzero(places != ABSENT)
        for part, of_present in _by_part((places[present] & ~ASLEEP) >> _HIGH):
            chosen = present[of_present]
            is_warm = places[chosen] >= ASLEEP
            warm, hot = chosen[is_warm], chosen[~is_warm]
            out[hot] = parts.rows(part)[parts.slots(part, _rows(places[hot]))]
            out[warm] = unpacked(parts.form, parts.warm_rows(part)[parts.slots(part, _rows(places[warm]))])

    def install(self, parts: TableParts, places: U64, words: F32) -> None:
        """Write the words of hot and cold rows [n, words]; cold ones become hot (there is room); all are heated."""
        for part, chosen in _by_part((places & ~ASLEEP) >> _HIGH):
            rows = _rows(places[chosen])
            asleep = parts.entries(part)["mark"][rows] >= COLD
            parts.settle(part, rows[asleep])
            if parts.is_tiered(part):
                parts.entries(part)["mark"][rows] |= np.uint32(1 << HEAT_SHIFT)
            parts.rows(part)[parts.slots(part, rows)] = words[chosen]

    def choose(
        self, parts: TableParts, part: int, steps: int, hand: int, places: U64, *, deeper: bool = False
    ) -> tuple[int, int]:
        """Write the places of rows that nobody has changed lately, as many as fit; return (how many, the hand).

        The hand goes down through the entries, round and round, `steps` of them at most, and cools each by one. deeper:
        the warm rows that it passes are chosen, too: they were passed hot.
        """
        marks, found, size = parts.entries(part)["mark"], 0, parts.size(part)
        for _ in range(steps):
            if found == len(places):
                break
            hand = hand - 1 if 0 < hand <= size else size - 1
            if marks[hand] >= COLD and not (deeper and marks[hand] >= WARM):
                continue
            if marks[hand] >= WARM:
                places[found] = int(ASLEEP) | (part << 32) | hand
                found += 1
            elif marks[hand] >> HEAT_SHIFT:
                marks[hand] -= 1 << HEAT_SHIFT
            else:
                places[found] = (part << 32) | hand
                found += 1
        return found, hand

    def release(self, parts: TableParts, places: U64, records: U64) -> None:
        """Make rows cold whose `records` are written, but for hot ones that changed, which have heat.

        The record of a row that stays becomes ABSENT. The last row of the part's tier comes into each slot.
        """
        for number, place in enumerate((places & ~ASLEEP).tolist()):
            part, row = place >> 32, place & 0xFFFFFFFF
            marks = parts.entries(part)["mark"]
            if marks[row] >= WARM:
                _leave(parts, part, int(marks[row] & NUMBER), warm=True)
            elif marks[row] >> HEAT_SHIFT:
                records[number] = ABSENT
                continue
            else:
                _leave(parts, part, int(marks[row]))
            marks[row] = COLD | np.uint32(records[number])

    def doze(self, parts: TableParts, places: U64, epoch: int) -> int:
        """Make hot rows without heat warm, where there is room; return how many.

        A row that rounding changes has changed in `epoch`.
        """
        for place in places.tolist():
            part, row = place >> 32, place & 0xFFFFFFFF
            slot, to = int(parts.entries(part)["mark"][row]), parts.warm(part)
            words = parts.rows(part)[[slot]]
            packed = pack(parts.form, words)
            if unpacked(parts.form, packed).tobytes() != words.tobytes():
                stamp = parts.entries(part)["epoch"][row] % STAMPS
                parts.entries(part)["epoch"][row] = epoch + stamp
            _leave(parts, part, slot)
            parts.count_slots(part, warm=1)
            parts.warm_rows(part)[to], parts.warm_owners(part)[to] = packed, row
            parts.entries(part)["mark"][row] = WARM | np.uint32(to)
        return len(places)

    def rouse(self, parts: TableParts, places: U64) -> None:
        """Make warm rows hot, where there is room, and name them so in their places."""
        for number in np.flatnonzero((places >= ASLEEP) & (places != ABSENT)).tolist():
            place = int(places[number] & ~ASLEEP)
            part, row = place >> 32, place & 0xFFFFFFFF
            slot = int(parts.entries(part)["mark"][row] & NUMBER)
            words = unpacked(parts.form, parts.warm_rows(part)[[slot]])
            _leave(parts, part, slot, warm=True)
            parts.settle(part, np.array([row]))
            parts.rows(part)[-1] = words
            places[number] = place

    def seal(self, form: RowFormat, keys: U64, words: F32, out: Bytes) -> None:
        """Write records (key, words, checksum) into whole pages."""
        of_words = np.ascontiguousarray(words).view(np.uint8).reshape(-1, form.row_bytes)
        sums = checksums.of_records(keys, words)
        records = np.concatenate([keys[:, None].view(np.uint8), of_words, sums[:, None].view(np.uint8)], axis=1)
        for number, offset in enumerate(form.record_offsets(np.arange(len(keys), dtype=np.int64)).tolist()):
            out[offset : offset + form.record_bytes] = records[number]

    def unseal(self, form: RowFormat, keys: U64, records: Bytes, words: F32) -> int:
        """Copy the words out of records; return how many are those of the keys, up to the first that is damaged."""
        raw = records.reshape(len(keys), form.record_bytes)
        words[:] = np.ascontiguousarray(raw[:, 8:-4]).view(np.float32)
        sums = np.ascontiguousarray(raw[:, -4:]).view(np.uint32)[:, 0]
        fits = (np.ascontiguousarray(raw[:, :8]).view(np.uint64)[:, 0] == keys) & (
            sums == checksums.of_records(keys, words)
        )
        return len(keys) if fits.all() else int(np.argmin(fits))

    def fetch(self, file: int, offsets: I64, record_bytes: int, out: Bytes) -> int:
        """Read records from a file, all asked for at once; return how many came."""
        for offset in offsets.tolist():
            os.posix_fadvise(file, offset, record_bytes, os.POSIX_FADV_WILLNEED)
        for number, offset in enumerate(offsets.tolist()):
            to = out.data[number * record_bytes : (number + 1) * record_bytes]
            if os.preadv(file, [to], offset) < record_bytes:
                return number
        return len(offsets)

    def copy(self, to: NDArray[np.uint8], source: NDArray[np.uint8]) -> int:
        """Copy bytes; return their checksum."""
        to[:] = source
        return checksums.of_block(source)

    def widen(self, halves: U16) -> F32:
        """Return bfloat16 as float32, in the same shape."""
        return widened(halves)

    def narrow(self, values: F32) -> U16:
        """Return float32 as bfloat16, in the same shape: to nearest, ties to even; NaN stays NaN."""
        return narrowed(values)


def initial_weights(form: RowFormat, keys: U64) -> F32:
    """Return the weights of keys before their first update, [n, width]: a function of key and seed only."""
    steps = np.arange(1, form.width + 1, dtype=np.uint64) + np.uint64(form.seed)
    z = checksums.split_mix(keys[:, None] + (steps * np.uint64(checksums.MULTIPLIER))[None, :])
    factor = np.float32(form.initial_factor)
    if not form.is_normal:
        return (z >> np.uint64(40)).astype(np.float32) * factor - np.float32(form.initial_scale)
    z ^= z >> np.uint64(31)
    more = checksums.split_mix(z + np.uint64(checksums.MULTIPLIER))
    sums = _sum_of_quarters(z) + _sum_of_quarters(more ^ more >> np.uint64(31))
    return (sums - 4 * 0xFFFF).astype(np.float32) * factor


def _sum_of_quarters(z: U64) -> NDArray[np.int64]:
    return sum(((z >> np.uint64(shift)) & np.uint64(0xFFFF) for shift in (0, 16, 32, 48)), np.zeros_like(z)).astype(
        np.int64
    )


def read_weights(form: RowFormat, rows: F32) -> F32:
    """Return the weights of rows, [n, words] -> [n, width]: a copy."""
    if not form.half:
        return rows[:, : form.width].copy()
    halves = np.ascontiguousarray(rows[:, : form.weight_words]).view(np.uint16)
    return widened(halves[:, : form.width])


def write_weights(form: RowFormat, rows: F32, weights: F32) -> None:
    """Write weights [n, width] into rows [n, words]."""
    if not form.half:
        rows[:, : form.width] = weights
        return
    halves = np.zeros((len(rows), 2 * form.weight_words), np.uint16)
    halves[:, : form.width] = narrowed(weights)
    rows.view(np.uint32)[:, : form.weight_words] = halves.view(np.uint32)


def pack(form: RowFormat, rows: F32) -> Bytes:
    """Return rows [n, words] as warm ones: [n, warm_bytes]."""
    first, last = form.rounded.start, form.rounded.stop
    halves = narrowed(rows[:, form.rounded])
    whole = (np.ascontiguousarray(each).view(np.uint8) for each in (rows[:, :first], rows[:, last:]))
    before, after = (each.reshape(len(rows), -1) for each in whole)
    return np.concatenate([before, halves.view(np.uint8).reshape(len(rows), -1), after], axis=1)


def is_rounded(form: RowFormat, rows: F32) -> NDArray[np.bool_]:
    """Return which rows [n, words] a warm row has bit by bit: [n]."""
    return (rows[:, form.rounded].view(np.uint32) & np.uint32(0xFFFF)).max(axis=1, initial=0) == 0


def unpacked(form: RowFormat, warm: Bytes) -> F32:
    """Return warm rows [n, warm_bytes] as hot ones: [n, words]."""
    first, last = form.rounded.start, form.rounded.stop
    end = form.warm_bytes - 4 * form.counters
    rows = np.empty((len(warm), form.words), np.float32)
    rows[:, :first] = np.ascontiguousarray(warm[:, : 4 * first]).view(np.float32)
    rows[:, first:last] = widened(np.ascontiguousarray(warm[:, 4 * first : end]).view(np.uint16))
    rows[:, last:] = np.ascontiguousarray(warm[:, end:]).view(np.float32)
    return rows


def _leave(parts: TableParts, part: int, slot: int, *, warm: bool = False) -> None:
    """Take the slot of a hot or warm row; the last row of that tier of the part comes into it."""
    marks = parts.entries(part)["mark"]
    rows = parts.warm_rows(part) if warm else parts.rows(part)
    owners = parts.warm_owners(part) if warm else parts.owners(part)
    moved = owners[-1]
    rows[slot], owners[slot] = rows[-1], moved
    marks[moved] = (marks[moved] & ~NUMBER) | np.uint32(slot)
    parts.count_slots(part, hot=-int(not warm), warm=-int(warm))


def widened(halves: U16) -> F32:
    """Return bfloat16 as float32."""
    return (halves.astype(np.uint32) << np.uint32(16)).view(np.float32)


def narrowed(values: F32) -> U16:
    """Return float32 rounded to bfloat16, to nearest, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    is_nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.where(is_nan, quiet, rounded >> np.uint32(16)).astype(np.uint16)


def _rows(places: U64) -> NDArray[np.int64]:
    return (places & _LOW).astype(np.int64)


def _by_part(parts: U64) -> Iterator[tuple[int, Indices]]:
    """Yield each part with the positions that are in it, in their order."""
    order = np.argsort(parts, kind="stable")
    numbers, begins = np.unique(parts[order], return_index=True)
    yield from zip(numbers.tolist(), np.split(order, begins[1:]), strict=False)


def _enter(parts: TableParts, part: int, first_row: int) -> None:
    """Enter the rows first_row, …, whose keys are not in the index.

    Keys probe in parallel. If several reach one empty slot, the first in row order takes it. Rows may stand in other
    slots than kernels.c chooses, in the same set of slots, and every key is found.
    """
    index = parts.index(part)
    mask = np.uint64(len(index) - 1)
    slots = parts.first_slots(part, parts.keys(part)[first_row:])
    left = np.arange(len(slots))
    while len(left):
        empty = left[index[slots[left]] == 0]
        taken, winners = np.unique(slots[empty], return_index=True)
        index[taken] = (empty[winners] + (first_row + 1)).astype(np.uint32)
        left = np.setdiff1d(left, empty[winners], assume_unique=True)
        slots[left] = (slots[left] + np.uint64(1)) & mask
