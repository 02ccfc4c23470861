"""Memory that grows: reserved, and where the system refuses the reservation."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest
from stretto_parameters import StoreFull
from stretto_parameters.arena import Arena

MIB = 2**20


def test_a_part_grows_where_it_is_and_takes_what_is_used() -> None:
    arena = Arena(8, 2**34)  # 128 GiB of addresses
    assert arena.is_reserved
    arena.ensure(3, 100)
    address = arena.address(3)
    arena.bytes_of(3)[:100] = 7
    assert not arena.ensure(3, 64 * MIB)
    assert arena.address(3) == address
    assert arena.bytes_of(3)[:101].tolist() == [7] * 100 + [0]
    assert 64 * MIB <= arena.used_bytes <= 64 * MIB + 2**17


def test_what_is_given_back_leaves_the_process_and_reads_as_zero() -> None:
    arena = Arena(2, 2**30)
    process = psutil.Process()
    arena.ensure(0, 64 * MIB)
    arena.bytes_of(0)[:] = 1
    full = process.memory_info().rss
    arena.give_back(0)
    assert process.memory_info().rss < full - 60 * MIB
    assert arena.size_bytes(0) == arena.used_bytes == 0
    arena.ensure(0, MIB)
    assert not arena.bytes_of(0).any()


def test_a_part_does_not_grow_into_the_next_one() -> None:
    arena = Arena(2, MIB)
    arena.ensure(0, MIB)
    with pytest.raises(StoreFull, match="part_bytes_max = 1048576: give the store more"):
        arena.ensure(0, MIB + 1)
    assert arena.size_bytes(0) == MIB
    assert arena.size_bytes(1) == 0


def test_a_part_that_gets_much_at_once_has_huge_pages_and_takes_no_more_for_them() -> None:
    process = psutil.Process()
    arena = Arena(2, 2**30)
    before = process.memory_info().rss
    arena.ensure(0, 64 * MIB)
    assert abs(process.memory_info().rss - before - arena.used_bytes) < MIB
    if Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text().split("[")[1].startswith(("madvise", "always")):
        assert _huge_bytes(arena.address(0)) >= 60 * MIB
    arena.give_back(0)
    before = process.memory_info().rss
    for size in range(2**16, MIB, 2**16):
        arena.ensure(0, size)
    assert abs(process.memory_info().rss - before - arena.used_bytes) < MIB
    assert _huge_bytes(arena.address(0)) == 0


def _huge_bytes(address: int) -> int:
    """Return the bytes of huge pages in the GiB of memory from an address on."""
    found, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0] and not words[0].endswith(":"):
            inside = address - 2**21 < int(words[0].split("-")[0], 16) < address + 2**30
        elif inside and words[0] == "AnonHugePages:":
            found += 1024 * int(words[1])
    return found


LIMITED = """
import resource
import numpy as np
import psutil
from stretto_parameters import Layout, Own, Push, Store, Table
from stretto_parameters.arena import Arena

limit_bytes = psutil.Process().memory_info().vms + 2**29
resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))
arena = Arena(2, 2**36)
assert not arena.is_reserved
arena.ensure(0, 10)
arena.bytes_of(0)[:10] = 5
assert arena.ensure(0, 2**20)
assert arena.bytes_of(0)[:11].tolist() == [5] * 10 + [0]
arena.give_back(0)
arena.ensure(0, 2**20)
assert not arena.bytes_of(0).any()

store = Store(Layout((Table(4),), 3, buckets=4, slices=1), 2**36)
store.set_own(range(5), Own.MINE)
keys = np.unique(np.random.default_rng(1).integers(0, 2**64, 30_000, dtype=np.uint64))
for shard in range(3):
    answer = store.push(
        Push(shard, 0, 0, 8, 0, np.ones(5, np.bool_), [keys], [np.ones((len(keys), 4), np.float32)],
             np.ones((1, 3), np.float32), np.zeros(0, np.float32))
    )
    assert answer.applied == 5
assert store.categories() == len(keys)
before = store.pull([keys], np.arange(1)).rows[0]
raw = store.export_bucket(2)
store.clear([2])
store.import_bucket(2, raw)
assert np.array_equal(store.pull([keys], np.arange(1)).rows[0], before)
print("done")
"""


def test_a_store_works_where_addresses_are_limited() -> None:
    """A process with half a GiB more addresses than it has: every reservation is refused, and parts grow by copying."""
    command = [sys.executable, "-c", textwrap.dedent(LIMITED)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"
