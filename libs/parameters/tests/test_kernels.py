"""The kernels in C against their NumPy reference, bit by bit; and the same under the sanitizers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stretto_parameters import Table, checksums, compiling
from stretto_parameters.kernels import Kernels, Library, LibraryRefused, grow
from stretto_parameters.layout import RowFormat
from stretto_parameters.optimizers import (
    OPTIMIZERS,
    SGD,
    Adagrad,
    Adam,
    AdamW,
    Ftrl,
    Optimizer,
    RMSprop,
    RowWiseAdagrad,
)
from stretto_parameters.parts import ABSENT, ASLEEP, HEAT_MAX, HEAT_SHIFT, NUMBER, STAMPS, TableParts
from stretto_parameters.reference import Due, Reference, RowGradients, narrowed, pack, read_weights, unpacked, widened

BUCKETS = 4
MULTIPLIER = 0xD1342543DE82EF95
SANITIZERS = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
OPTIONS: dict[str, Optimizer] = {
    **{name: kind() for name, kind in OPTIMIZERS.items()},
    "sgd-momentum": SGD(momentum=0.9),
    "sgd-nesterov": SGD(momentum=0.9, nesterov=True),
    "adagrad-torch": Adagrad(0.1, 0.0, 0.0, epsilon_outside=1e-2),
    "rowwise-adagrad-torch": RowWiseAdagrad(0.1, 0.0, 0.0, epsilon_outside=1e-2),
    "adam-torch": Adam(0.1, epsilon=1e-2, is_epsilon_corrected=True),
    "adamw-fast": AdamW(0.1, beta_1=0.5, beta_2=0.6),
    "adam-shared": Adam(0.1, step_samples=1),
    "adamw-shared": AdamW(0.1, step_samples=1),
    "adam-torch-shared": Adam(0.1, beta_2=0.95, epsilon=1e-2, is_epsilon_corrected=True, step_samples=1),
    "rmsprop-momentum": RMSprop(momentum=0.8),
    "rmsprop-torch": RMSprop(epsilon=0.0, epsilon_outside=1e-2),
    "sgd-shared": SGD(momentum=0.9, step_samples=1),
    "sgd-nesterov-shared": SGD(momentum=0.9, nesterov=True, step_samples=1),
    "rmsprop-shared": RMSprop(step_samples=1),
    "rmsprop-momentum-shared": RMSprop(momentum=0.99, epsilon_outside=1e-2, step_samples=1),
    "ftrl-all": Ftrl(0.1, l1=0.01, l2=0.02, l2_shrinkage=0.03, beta=0.04),
}
GAPS = np.array([0, 1, 2, 7, 300, 20_000, 2**24 - 3, 2**40])
"""Steps since the batch before, in some bucket."""
ODD_VALUES = np.array([0.0, -0.0, -5.0, 1e-38, 3e38, np.inf, -np.inf, np.nan], np.float32)


@pytest.fixture(scope="module")
def library() -> Library:
    if not compiling.LIBRARY.is_file():
        pytest.skip("the kernels are not built here: no C compiler at `make setup`")
    return Library(compiling.LIBRARY)


class Run:
    """The same table under one implementation of the kernels."""

    def __init__(self, kernels: Kernels, table: Table) -> None:
        self.kernels = kernels
        self.parts = TableParts(RowFormat.of_table(table), BUCKETS, 2**26, multiplier=MULTIPLIER, shift=62)

    def pushed(
        self, keys: np.ndarray, by: RowGradients, rates: np.ndarray, clocks: np.ndarray, table: Table, epoch: int
    ) -> np.ndarray:
        """Make rows for keys and update them; return their places."""
        places = np.empty(len(keys), np.uint64)
        self.kernels.locate(self.parts, keys, places)
        more = np.bincount((keys[places == ABSENT] >> np.uint64(62)).astype(np.int64), minlength=BUCKETS)
        grow(self.kernels, self.parts, more, more)
        self.kernels.insert(self.parts, keys, places, epoch)
        self.kernels.update(self.parts, places, by, rates, clocks, table.optimizer, epoch)
        return places

    def weights(self, keys: np.ndarray, due: Due | None) -> tuple[np.ndarray, int]:
        places = np.empty(len(keys), np.uint64)
        absent = self.kernels.locate(self.parts, keys, places)
        out = np.empty((len(keys), self.parts.form.width), np.float32)
        self.kernels.gather(self.parts, keys, places, out, due)
        return out, absent


def compare(library: Kernels, table: Table, seed: int, *, odd: bool = False) -> None:
    """Push random keys (new and old, batches of very different sizes) to both; every byte must agree after each."""
    random = np.random.default_rng(seed)
    ours, reference = Run(library, table), Run(Reference(), table)
    pool = random.integers(0, 2**64, 6000, dtype=np.uint64)
    pool[:4] = [0, 1, 2**64 - 1, 2**63]
    ends = (pool[4:300] | np.uint64(0xFF << 56)) * np.uint64(pow(MULTIPLIER, -1, 2**64))
    pool[4:300] = ends  # one run of the index, around its end
    for epoch, size in enumerate((0, 1, 300, 2500, 40), start=1):
        keys = np.unique(random.choice(pool, size))
        gradients = random.normal(0, 1, (len(keys), table.dimension)).astype(np.float32)
        if odd and size:
            some = random.random(gradients.shape) < 0.2
            gradients[some] = random.choice(ODD_VALUES, int(some.sum()))
        rates = random.uniform(0.001, 0.5, BUCKETS).astype(np.float32)
        clocks = table.optimizer.clocks(random.choice(GAPS, BUCKETS) * epoch)
        with np.errstate(all="ignore"):
            other = gradients * gradients * random.uniform(0, 1, gradients.shape).astype(np.float32)
            by = RowGradients(gradients, other if epoch % 2 else None)
            found = [run.pushed(keys, by, rates, clocks, table, epoch) for run in (ours, reference)]
        assert np.array_equal(*found)
        for part in range(BUCKETS):
            assert ours.parts.entries(part).tobytes() == reference.parts.entries(part).tobytes()
            assert same_rows(ours.parts, reference.parts, part), (epoch, part)
        everything = np.append(pool[:600], random.integers(0, 2**64, 50, dtype=np.uint64))
        later = table.optimizer.clocks(random.choice(GAPS, BUCKETS) * (epoch + 1))
        for due in (None, Due(table.optimizer, rates, later) if table.optimizer.moves_rows_late else None):
            with np.errstate(all="ignore"):
                (mine, absent), (theirs, theirs_absent) = (run.weights(everything, due) for run in (ours, reference))
            assert same_words(mine, theirs)
            assert absent == theirs_absent
        if odd:
            damage(random, ours.parts, reference.parts)
    check_index(ours)
    check_index(reference)


def damage(random: np.random.Generator, *both: TableParts) -> None:
    """Write odd values into some slots, as a damaged image would: a number of steps may be anything."""
    form = both[0].form
    for part in range(BUCKETS):
        slots = both[0].rows(part)[:, form.weight_words :]
        some = random.random(slots.shape) < 0.1
        values = random.choice(ODD_VALUES, int(some.sum()))
        for each in both:
            each.rows(part)[:, form.weight_words :][some] = values


def same_rows(left: TableParts, right: TableParts, part: int) -> bool:
    """Compare weights and slots for themselves: in a word of two bfloat16, either may be NaN."""
    form, rows = left.form, (left.rows(part), right.rows(part))
    return same_words(*(read_weights(form, each) for each in rows)) and same_words(
        *(each[:, form.weight_words :] for each in rows)
    )


def same_words(left: np.ndarray, right: np.ndarray) -> bool:
    """Return whether every word agrees; all NaN count as one value, since a processor chooses their bits."""
    words = np.ascontiguousarray(left).view(np.uint32), np.ascontiguousarray(right).view(np.uint32)
    return bool(((words[0] == words[1]) | (np.isnan(left) & np.isnan(right))).all())


def check_index(run: Run) -> None:
    """Every row is named once in the index, and found."""
    for part in range(BUCKETS):
        index, size = run.parts.index(part), run.parts.size(part)
        assert np.array_equal(np.sort(index[index > 0]), np.arange(1, size + 1))
        assert run.kernels.name == "numpy" or filled(index) == filled(rebuilt(run.parts, part))
        places = np.empty(size, np.uint64)
        assert run.kernels.locate(run.parts, run.parts.keys(part).copy(), places) == 0
        assert np.array_equal(places, (np.uint64(part) << np.uint64(32)) | np.arange(size, dtype=np.uint64))


def filled(index: np.ndarray) -> list[int]:
    """Return the slots that name a row. Which of them names which row depends on the order of entering."""
    return np.flatnonzero(index).tolist()


def rebuilt(parts: TableParts, part: int) -> np.ndarray:
    """Return the index as the reference would build it."""
    kept = parts.index(part).copy()
    Reference().rebuild(parts, part)
    index = parts.index(part).copy()
    parts.index(part)[:] = kept
    return index


def compare_copies(library: Kernels, data: bytes, offset: int) -> None:
    source = np.frombuffer(bytes(offset) + data, np.uint8)[offset:]
    copies = [np.zeros(len(data), np.uint8) for _ in range(2)]
    assert library.copy(copies[0], source) == Reference().copy(copies[1], source)
    assert copies[0].tobytes() == copies[1].tobytes() == data


@pytest.mark.parametrize("weights", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", OPTIONS)
def test_every_kernel_has_the_bits_of_its_reference(library: Library, name: str, weights: str) -> None:
    """Odd dimensions leave half a word unused with bfloat16."""
    for seed, dimension in enumerate((1, 5, 16)):
        compare(library, Table(dimension, OPTIONS[name], seed=seed, weights=weights), seed)  # type: ignore[arg-type]


@pytest.mark.parametrize("weights", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", OPTIONS)
def test_odd_gradients_and_damaged_slots_give_the_same_bits_too(library: Library, name: str, weights: str) -> None:
    compare(library, Table(3, OPTIONS[name], weights=weights), 11, odd=True)  # type: ignore[arg-type]


def keep_once(both: tuple[Run, Run], places: np.ndarray) -> None:
    """Five rows of the second part are hot, and as hot as can be."""
    hot = (places[:5] & np.uint64(2**32 - 1)).astype(int)
    for run in both:
        marks = run.parts.entries(1)["mark"]
        marks[hot[:3]] &= NUMBER
        run.kernels.keep(run.parts, np.append(places, ABSENT))
        assert (marks[hot] >> HEAT_SHIFT).tolist() == [1, 1, 1, 3, 3], "once, if it had no heat"


@pytest.mark.parametrize(
    ("dimension", "weights"), [(1, "float32"), (5, "bfloat16"), (16, "float32"), (1500, "float32")]
)
def test_rows_become_cold_and_hot_with_the_bits_of_the_reference(
    library: Kernels, tmp_path: Path, dimension: int, weights: str
) -> None:
    """Rows of one and of several pages; each step of an eviction, updates of what stayed hot, and waking."""
    random = np.random.default_rng(dimension)
    table = Table(dimension, Adagrad(), weights=weights)  # type: ignore[arg-type]
    both = Run(library, table), Run(Reference(), table)
    form = both[0].parts.form
    keys = np.unique(random.integers(0, 2**64, 700, dtype=np.uint64))
    rates, clocks = np.full(BUCKETS, 0.1, np.float32), np.full(BUCKETS, -1, np.float32)

    def pushed(chosen: np.ndarray, epoch: int) -> None:
        chosen = np.ascontiguousarray(chosen)
        by = RowGradients(random.normal(0, 1, (len(chosen), dimension)).astype(np.float32))
        assert np.array_equal(*(run.pushed(chosen, by, rates, clocks, table, epoch) for run in both))

    def agree() -> None:
        for part in range(BUCKETS):
            for read in (TableParts.entries, TableParts.owners, TableParts.rows):
                assert read(both[0].parts, part).tobytes() == read(both[1].parts, part).tobytes()

    pushed(keys[::2], 1)
    pushed(keys[1::2], 2)
    for part in range(BUCKETS):
        for run in both:
            run.parts.tier(part)
    pushed(keys[::7], 3)
    agree()
    hands = [0, 0]
    for share in (1, 1, 3):
        chosen: list[np.ndarray] = []
        for at, run in enumerate(both):
            places = np.zeros(60, np.uint64)
            found, hands[at] = run.kernels.choose(run.parts, 1, run.parts.size(1) // share, hands[at], places)
            chosen.append(places[:found])
        assert np.array_equal(*chosen)
        assert hands[0] == hands[1]
        assert len(chosen[0]) > 10
        words = [np.empty((len(chosen[0]), form.words), np.float32) for _ in both]
        marks = [np.empty(len(chosen[0]), np.uint32) for _ in both]
        sealed = [np.zeros(len(words[0]) * form.page_bytes, np.uint8) for _ in both]
        victims = both[0].parts.keys(1)[(chosen[0] & np.uint64(2**32 - 1)).astype(int)]
        for run, of_rows, records, of_marks in zip(both, words, sealed, marks, strict=True):
            run.kernels.heat(run.parts, chosen[0][:5])
            run.kernels.collect(run.parts, chosen[0], of_rows)
            run.kernels.seal(form, victims, of_rows, records)
            numbers = np.arange(len(chosen[0]), dtype=np.uint64)
            run.kernels.release(run.parts, chosen[0], numbers)
            assert (numbers == ABSENT).tolist() == [at < 5 for at in range(len(numbers))], "a row with heat stays hot"
            run.kernels.marks(run.parts, chosen[0], of_marks)
        assert np.array_equal(*marks)
        assert sealed[0].tobytes() == sealed[1].tobytes()
        agree()
        places = np.empty(len(victims), np.uint64)
        library.locate(both[0].parts, victims, places)
        assert (places >= ASLEEP).tolist() == [at >= 5 for at in range(len(places))]
        keep_once(both, places)
        agree()
        (tmp_path / "log").write_bytes(sealed[0].tobytes())
        with (tmp_path / "log").open("rb") as file:
            offsets = form.record_offsets(np.arange(len(victims), dtype=np.int64))
            raw = [np.zeros(len(victims) * form.record_bytes, np.uint8) for _ in both]
            for run, to, of_rows in zip(both, raw, words, strict=True):
                assert run.kernels.fetch(file.fileno(), offsets, form.record_bytes, to) == len(victims)
                before = of_rows.copy()
                assert run.kernels.unseal(form, victims, to, of_rows) == len(victims)
                assert same_words(before, of_rows)
                to[form.record_bytes * 7 + 9] ^= 1
                assert run.kernels.unseal(form, victims, to, of_rows) == 7
                of_rows[:] = before
                past = offsets.copy()
                past[3] = 2**40
                assert run.kernels.fetch(file.fileno(), past, form.record_bytes, to) == 3
        woken = np.flatnonzero(places >= ASLEEP)[::2]
        for run in both:
            more = np.bincount([1] * len(woken), minlength=BUCKETS)
            grow(run.kernels, run.parts, 0 * more, more)
            run.kernels.install(run.parts, places[woken], words[0][woken])
        agree()
        pushed(np.sort(np.append(victims[woken], random.integers(0, 2**64, 30, dtype=np.uint64))), 4)
        agree()


WARM_TABLES = {
    "no slots": Table(3, SGD()),
    "slots": Table(16, Adagrad()),
    "a counter": Table(5, Adam(0.1, step_samples=1)),
    "half weights": Table(5, Adam(0.1), weights="bfloat16"),
    "wide": Table(1500, Ftrl()),
}


def test_a_warm_row_is_rounded_but_for_its_counter_of_steps() -> None:
    """Rounded, a counter would stay at 256 for ever."""
    form = RowFormat.of_table(Table(2, Adam()))
    row = np.array([[1.001, -2.002, 3.003, 4.004, 5.005, 6.006, 257]], np.float32)
    found = unpacked(form, pack(form, row))
    assert found[0, :-1].tolist() == widened(narrowed(row[0, :-1])).tolist() != row[0, :-1].tolist()
    assert found[0, -1] == 257
    assert form.warm_bytes == 2 * 6 + 4


class Both:
    """A table under both implementations, whose rows become warm and hot: every byte must agree after each step."""

    def __init__(self, library: Kernels, table: Table) -> None:
        self.table, self.random = table, np.random.default_rng(table.dimension)
        self.runs = Run(library, table), Run(Reference(), table)
        self.rates, self.clocks = np.full(BUCKETS, 0.1, np.float32), table.optimizer.clocks(np.full(BUCKETS, 40))
        self.hands = [0, 0]

    def push(self, keys: np.ndarray, epoch: int) -> None:
        """Rouse the rows of keys, and update them."""
        by = RowGradients(self.random.normal(0, 1, (len(keys), self.table.dimension)).astype(np.float32))
        for run in self.runs:
            places = np.empty(len(keys), np.uint64)
            run.kernels.locate(run.parts, keys, places)
            asleep = places[(places >= ASLEEP) & (places != ABSENT)]
            more = np.bincount((asleep & ~ASLEEP) >> np.uint64(32), minlength=BUCKETS)
            grow(run.kernels, run.parts, 0 * more, more)
            run.kernels.rouse(run.parts, places)
            with np.errstate(all="ignore"):
                run.pushed(keys, by, self.rates, self.clocks, self.table, epoch)

    def choose(self, count: int, *, deeper: bool) -> np.ndarray:
        """Return what both hands choose of the second part: they go round until they find something."""
        for _ in range(HEAT_MAX + 1):
            found: list[np.ndarray] = []
            for number, run in enumerate(self.runs):
                places, size = np.zeros(count, np.uint64), run.parts.size(1)
                chosen, hand = run.kernels.choose(run.parts, 1, size, self.hands[number], places, deeper=deeper)
                self.hands[number] = hand
                found.append(places[:chosen])
            assert np.array_equal(*found)
            assert self.hands[0] == self.hands[1]
            if len(found[0]) > 1:
                return found[0]
        raise AssertionError("the hands found nothing")

    def doze(self, places: np.ndarray, epoch: int) -> None:
        for run in self.runs:
            run.parts.grow_warm(1, run.parts.warm(1) + len(places))
            assert run.kernels.doze(run.parts, places, epoch) == len(places)

    def collect(self, places: np.ndarray) -> None:
        places = np.insert(places, 1, ABSENT)
        words = [np.full((len(places), run.parts.form.words), 7, np.float32) for run in self.runs]
        for run, of_rows in zip(self.runs, words, strict=True):
            run.kernels.collect(run.parts, places, of_rows)
        assert same_words(*words)
        assert (words[0][1] == 7).all(), "nothing is copied of an absent row"

    def release(self, places: np.ndarray) -> np.ndarray:
        records = [np.arange(len(places), dtype=np.uint64) for _ in self.runs]
        for run, of_rows in zip(self.runs, records, strict=True):
            run.kernels.release(run.parts, places, of_rows)
        assert np.array_equal(*records)
        return records[0]

    def agree(self, keys: np.ndarray) -> None:
        """Compare all memory, and what a pull of keys reads."""
        left, right = (run.parts for run in self.runs)
        for part in range(BUCKETS):
            assert same_rows(left, right, part)
            for read in (TableParts.entries, TableParts.owners, TableParts.warm_rows, TableParts.warm_owners):
                assert read(left, part).tobytes() == read(right, part).tobytes()
        moves = self.table.optimizer.moves_rows_late
        for due in (None, Due(self.table.optimizer, self.rates, self.clocks + 3) if moves else None):
            with np.errstate(all="ignore"):
                assert same_words(*(run.weights(keys, due)[0] for run in self.runs))


@pytest.mark.parametrize("name", WARM_TABLES)
def test_rows_become_warm_and_hot_with_the_bits_of_the_reference(library: Kernels, name: str) -> None:
    """Rows of all values; reads and copies of warm rows; some become cold from there, the others hot again."""
    both = Both(library, WARM_TABLES[name])
    parts = both.runs[0].parts
    keys = np.unique(both.random.integers(0, 2**64, 400, dtype=np.uint64))
    both.push(keys[::2].copy(), STAMPS)
    both.push(keys[1::2].copy(), 2 * STAMPS)
    for run in both.runs:
        run.parts.tier(1)
    damage(np.random.default_rng(1), *(run.parts for run in both.runs))
    for _ in range(3):
        before = parts.entries(1)["epoch"].copy()
        both.doze(both.choose(20, deeper=False), 7 * STAMPS)
        assert (parts.entries(1)["epoch"] != before).any(), "rounding changed them"
        both.agree(keys)
        chosen = both.choose(12, deeper=True)
        both.collect(chosen)
        leaving = chosen[chosen >= ASLEEP]
        names = parts.keys(1)[(leaving & np.uint64(2**32 - 1)).astype(int)]
        both.push(np.sort(names[::2]), 9 * STAMPS)
        stayed = both.release(leaving) == ABSENT
        assert stayed.tolist() == [at % 2 == 0 for at in range(len(leaving))], "a row that changed stays"
        keys = keys[~np.isin(keys, names[1::2])]
        both.agree(keys)
    assert parts.warm(1) > 0


def compare_halves(library: Kernels, values: np.ndarray) -> None:
    """Narrow and widen by both; then narrow what is bfloat16 already, which changes nothing."""
    halves = library.narrow(values)
    assert np.array_equal(halves, Reference().narrow(values))
    assert library.widen(halves).tobytes() == Reference().widen(halves).tobytes()
    assert np.array_equal(library.narrow(library.widen(halves)), halves | (np.isnan(values) * np.uint16(0x40)))


def test_bfloat16_is_rounded_to_nearest_and_ties_to_even(library: Library) -> None:
    """Random words, odd values, ties in both directions, any shape and alignment."""
    random = np.random.default_rng(8)
    compare_halves(library, random.integers(0, 2**32, (501, 7), dtype=np.uint32).view(np.float32))
    compare_halves(library, np.concatenate([[np.float32(1)], ODD_VALUES])[1:])
    compare_halves(library, np.zeros((0, 16), np.float32))
    compare_halves(library, random.normal(0, 1, (40, 12)).astype(np.float32)[:, ::3])
    ties = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF], np.uint32).view(np.float32)
    assert library.narrow(ties).tolist() == [0x3F80, 0x3F82, 0x3F81, 0x3F80]


@given(st.binary(max_size=40), st.integers(0, 7))
def test_a_copy_has_the_checksum_of_its_bytes(library: Library, data: bytes, offset: int) -> None:
    """Any alignment and any length; then lengths around that of a piece."""
    compare_copies(library, data, offset)


@pytest.mark.parametrize("more", [-9, -1, 0, 1, 8])
def test_a_copy_of_several_pieces_has_the_checksum_of_its_bytes(library: Library, more: int) -> None:
    data = np.random.default_rng(1).bytes(2 * checksums.PIECE_BYTES + more)
    compare_copies(library, data, 3)
    changed = bytearray(data)
    changed[checksums.PIECE_BYTES] ^= 1
    assert checksums.of_block(np.frombuffer(data, np.uint8)) != checksums.of_block(np.frombuffer(changed, np.uint8))


def test_a_part_without_room_takes_no_row(library: Library) -> None:
    """The last line of defence: a caller that forgot to grow is told, and nothing is written past the end."""
    run = Run(library, Table(2))
    keys = np.array([1, 2], np.uint64)
    places = np.full(2, ABSENT)
    with pytest.raises(AssertionError, match="2 keys found no room"):
        library.insert(run.parts, keys, places, 1)
    assert run.parts.size(0) == 0


@pytest.mark.proof
def test_a_library_of_another_source_is_refused(tmp_path: Path) -> None:
    if not shutil.which("cc"):
        pytest.skip("no C compiler on this machine")
    compiling.compile_kernels(tmp_path / "kernels.so")
    Library(tmp_path / "kernels.so")
    with patch.object(compiling, "SOURCE", tmp_path / "changed.c"):
        (tmp_path / "changed.c").write_text("/* later */")
        with pytest.raises(LibraryRefused, match="run `make setup`"):
            Library(tmp_path / "kernels.so")


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> str:
    """The library of gcc's address sanitizer, which Python has to load first."""
    monkeypatch.setenv("CC", "gcc")
    command = ["gcc", "-print-file-name=libasan.so"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout if shutil.which("gcc") else ""
    if not Path(found.strip()).is_absolute():
        pytest.skip("no gcc with its sanitizers on this machine")
    return found.strip()


@pytest.mark.slow
def test_the_sanitizers_find_nothing(tmp_path: Path, runtime: str) -> None:
    """Address and undefined-behaviour sanitizers; parts lie on the heap, so that a step past their end is seen."""
    library = tmp_path / "kernels.so"
    compiling.compile_kernels(library, SANITIZERS)
    done = sanitized(library, runtime)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == "compared\n"


@pytest.mark.slow
def test_the_sanitizers_would_find_a_row_that_is_too_short(tmp_path: Path, runtime: str) -> None:
    """The test above could fail: a library whose parts claim one row more than they have is stopped."""
    text = compiling.SOURCE.read_text()
    changed = text.replace("uint64_t row = p->size++;", "uint64_t row = p->capacity; p->size++;")
    assert changed != text
    (tmp_path / "kernels.c").write_text(changed)
    compiling.compile_kernels(tmp_path / "kernels.so", SANITIZERS, tmp_path / "kernels.c")
    done = sanitized(tmp_path / "kernels.so", runtime)
    assert done.returncode != 0
    assert "AddressSanitizer" in done.stderr


def sanitized(library: Path, runtime: str) -> subprocess.CompletedProcess[str]:
    """Run `main` of this file in a process with the sanitizers' runtime."""
    environment = {
        **os.environ,
        "LD_PRELOAD": runtime,
        "ASAN_OPTIONS": "detect_leaks=0",  # Python frees nothing at its end
        "OPENBLAS_NUM_THREADS": "1",
    }
    command = [sys.executable, __file__, str(library)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def main(library: Path) -> None:
    """Compare on the heap instead of in reserved memory: each optimizer with one of the formats of weights."""
    kernels = Library(library)
    with patch("stretto_parameters.arena.mmap.mmap", side_effect=OSError("refused")):
        for seed, optimizer in enumerate(OPTIONS.values()):
            weights: Any = ("float32", "bfloat16")[seed // 2 % 2]
            compare(kernels, Table(5, optimizer, weights=weights), seed, odd=seed % 2 == 0)
    for length in (0, 1, 7, 8, 9, checksums.PIECE_BYTES + 5):
        compare_copies(kernels, np.random.default_rng(length).bytes(length), 3)
        compare_halves(kernels, np.random.default_rng(length).normal(0, 1, length % 1000).astype(np.float32))
    for name in WARM_TABLES:
        test_rows_become_warm_and_hot_with_the_bits_of_the_reference(kernels, name)
    for dimension in (5, 1500):
        test_rows_become_cold_and_hot_with_the_bits_of_the_reference(kernels, library.parent, dimension, "bfloat16")
    sys.stdout.write("compared\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
