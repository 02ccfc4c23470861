"""The file of cold rows' pages: the same bytes past the system's cache as by it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from stretto_parameters import kernels
from stretto_parameters.layout import PAGE_BYTES
from stretto_parameters.reference import Reference
from stretto_parameters.tiers.pages import PageFile, ReadQueues, aligned

RECORD_BYTES = 148
PAGES = 2 * kernels.QUEUED + 7
"""More than a queue reads at once."""


@pytest.fixture(params=[PAGE_BYTES, 2 * PAGE_BYTES])
def page_bytes(request: pytest.FixtureRequest) -> int:
    return request.param


def opened(folder: Path, page_bytes: int, library: kernels.Kernels) -> PageFile:
    file = PageFile(folder, page_bytes, library, ReadQueues(library))
    file.resize(PAGES * page_bytes)
    return file


def past_the_cache(folder: Path, page_bytes: int) -> PageFile:
    file = opened(folder, page_bytes, kernels.load())
    if file._direct < 0:
        pytest.skip("the file system or the kernels know no reads past the cache")
    return file


def by_the_cache(folder: Path, page_bytes: int, library: kernels.Kernels | None = None) -> PageFile:
    file = opened(folder, page_bytes, library or Reference())
    assert file._direct < 0
    return file


@pytest.fixture(params=[past_the_cache, by_the_cache])
def file(request: pytest.FixtureRequest, tmp_path: Path, page_bytes: int):
    open_it: Callable[[Path, int], PageFile] = request.param
    file = open_it(tmp_path, page_bytes)
    yield file
    file.close()
    file._queues.close()


def filled(file: PageFile, page_bytes: int) -> np.ndarray:
    pages = aligned(PAGES * page_bytes)
    pages[:] = np.random.default_rng(1).integers(0, 256, len(pages), np.uint8)
    file.write(pages, 0)
    return pages


def test_records_come_as_they_were_written_many_of_a_page_or_one(file: PageFile, page_bytes: int) -> None:
    pages = filled(file, page_bytes)
    within = np.arange(0, page_bytes - RECORD_BYTES, RECORD_BYTES)
    every = (np.arange(PAGES)[:, None] * page_bytes + within).reshape(-1)
    few = every[:: len(within) - 1].copy()
    for offsets in (every, few, every[:1], every[:0]):
        out = np.zeros((len(offsets), RECORD_BYTES), np.uint8)
        assert file.read(offsets, RECORD_BYTES, out.reshape(-1)) == len(offsets)
        assert np.array_equal(out, pages[offsets[:, None] + np.arange(RECORD_BYTES)])
    assert np.array_equal(file.read_range(page_bytes, 3 * page_bytes), pages[page_bytes : 4 * page_bytes])


def test_what_does_not_come_is_counted_from_the_first_one(file: PageFile, page_bytes: int) -> None:
    pages = filled(file, page_bytes)
    file.resize((PAGES - 3) * page_bytes)
    offsets = np.arange(PAGES) * page_bytes
    out = np.zeros((PAGES, RECORD_BYTES), np.uint8)
    assert file.read(offsets, RECORD_BYTES, out.reshape(-1)) == PAGES - 3
    assert np.array_equal(out[: PAGES - 3, 0], pages[offsets[: PAGES - 3]])
    assert len(file.read_range((PAGES - 4) * page_bytes, 2 * page_bytes)) == page_bytes


def test_a_queue_fetches_up_to_the_first_record_that_does_not_come(tmp_path: Path) -> None:
    file, library = past_the_cache(tmp_path, PAGE_BYTES), kernels.load()
    pages, memory = filled(file, PAGE_BYTES), aligned(kernels.QUEUED * PAGE_BYTES)
    file.resize(5 * PAGE_BYTES)
    queues = library.queues
    assert queues is not None
    queue = queues.open()
    for count, wanted in ((PAGES, 5), (5, 5), (PAGES, 5)):  # the queue serves on after a read that failed
        out = np.zeros((count, RECORD_BYTES), np.uint8)
        offsets = np.arange(count) * PAGE_BYTES
        assert queues.fetch(queue, file._direct, offsets, RECORD_BYTES, memory, out.reshape(-1)) == wanted
        assert np.array_equal(out[:5, 0], pages[offsets[:5]])
    assert queues.fetch(queue, -1, offsets, RECORD_BYTES, memory, out.reshape(-1)) == 0
    queues.close(queue)
    assert queues.fetch(queue, file._direct, offsets, RECORD_BYTES, memory, out.reshape(-1)) == 0
    file.close()


def test_a_file_is_read_by_the_cache_where_no_queue_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, library = past_the_cache(tmp_path, PAGE_BYTES), kernels.load()
    pages, out, offsets = filled(file, PAGE_BYTES), np.zeros(RECORD_BYTES, np.uint8), np.array([PAGE_BYTES])
    with ExitStack() as stack:
        taken = [stack.enter_context(file._queues.taken()) for _ in range(9)]
        assert taken[8] == 0 not in taken[:8]
        assert file._read_past(offsets, RECORD_BYTES, out) == 0
        assert file.read(offsets, RECORD_BYTES, out) == 1
    assert np.array_equal(out, pages[PAGE_BYTES : PAGE_BYTES + RECORD_BYTES])
    assert file._read_past(offsets, RECORD_BYTES, out) == 1
    file.close()
    file._queues.close()
    monkeypatch.setattr(library.queues, "open", lambda: 0)
    by_the_cache(tmp_path, PAGE_BYTES, library).close()
