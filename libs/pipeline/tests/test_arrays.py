"""Arrays in messages: they come back as they were, and damaged bytes are refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from stretto_pipeline.arrays import ALIGNMENT_BYTES, KINDS, SMALL_BYTES_MAX, Reader, Writer, difference
from stretto_pipeline.errors import ArraysRefused

dtypes = st.one_of(
    hnp.integer_dtypes(),
    hnp.unsigned_integer_dtypes(),
    hnp.floating_dtypes(),
    hnp.boolean_dtypes(),
    hnp.byte_string_dtypes(),
    hnp.unicode_string_dtypes(),
)


def array_of(dtype: np.dtype[Any], shape: tuple[int, ...], seed: int) -> NDArray[Any]:
    """Return an array of any bits."""
    count = math.prod(shape)
    bits = np.random.default_rng(seed).integers(0, 2 if dtype.kind == "b" else 256, count * dtype.itemsize, np.uint8)
    if dtype.kind == "U":
        bits = (bits.reshape(-1, 4) * np.array([1, 1, 0, 0], np.uint8)).reshape(-1)  # else not every number is a letter
    return np.frombuffer(bits.tobytes(), dtype).reshape(shape) if dtype.itemsize else np.zeros(shape, dtype)


one_array = st.builds(array_of, dtypes, hnp.array_shapes(min_dims=0, min_side=0, max_side=4), st.integers(0, 2**32))
arrays = st.dictionaries(st.text(max_size=5), one_array, max_size=5)


def sent(parts: list[Any]) -> list[memoryview]:
    return [memoryview(part).cast("B") if memoryview(part).nbytes else memoryview(b"") for part in parts]


@given(st.lists(arrays, min_size=1, max_size=4))
def test_arrays_come_back_as_they_were(messages: list[dict[str, NDArray[Any]]]) -> None:
    writer, reader = Writer(), Reader()
    for message in messages:
        assert difference(reader.arrays(sent(writer.parts(message))), message) == ""


def test_the_schema_travels_once_until_it_changes() -> None:
    writer = Writer()
    told = [len(writer.parts({name: np.zeros(3, np.float32)})[0]) > 0 for name in "aaba"]
    assert told == [True, False, True, True]


@given(st.data(), arrays)
def test_damaged_messages_are_refused_or_are_other_arrays(data: st.DataObject, message: dict[str, Any]) -> None:
    parts = sent(Writer().parts(message))
    kind = data.draw(st.sampled_from(["flip", "cut", "less", "more"]))
    which = data.draw(st.integers(0, len(parts) - 1))
    if kind == "flip" and len(parts[which]):
        part = bytearray(parts[which])
        part[data.draw(st.integers(0, len(part) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        parts[which] = memoryview(bytes(part))
    elif kind == "cut":
        parts[which] = parts[which][: data.draw(st.integers(0, len(parts[which])))]
    elif kind == "less":
        del parts[which]
    elif kind == "more":
        parts.append(memoryview(b"12345678"))
    try:
        found = Reader().arrays(parts)
    except ArraysRefused:
        return
    assert all(array.dtype.kind in KINDS for array in found.values())


@pytest.mark.parametrize(
    ("schema", "sizes", "array"),
    [
        (b'[["a", "|O", 1]]', [1], bytes(8)),
        (b'[["a", "<f4", 1]]', [-1], b""),
        (b'[["a", "<f4", 2]]', [2**62, 4], bytes(4)),
        (b'[["a", "<f4", 2]]', [0, 2**62], b""),
        (b'[["a", "|S0", 1]]', [2**40], b""),
        (b'[["a", "<f4"]]', [1], bytes(4)),
        (b"[" * 5000, [1], bytes(4)),
        (b"{}", [], bytes(4)),
    ],
)
def test_hostile_schemas_are_refused(schema: bytes, sizes: list[int], array: bytes) -> None:
    with pytest.raises(ArraysRefused):
        Reader().arrays([memoryview(schema), memoryview(np.array(sizes, np.int64).tobytes()), memoryview(array)])


@given(arrays)
def test_small_arrays_share_a_part_at_aligned_places(message: dict[str, NDArray[Any]]) -> None:
    large = np.arange(SMALL_BYTES_MAX // 4 + 1, dtype=np.float32)
    parts = sent(Writer().parts({"large": large, **message}))
    assert len(parts) == 4
    assert parts[3] == large.tobytes()
    got = Reader().arrays(parts)
    begin = np.frombuffer(parts[2] or b"\0", np.uint8).ctypes.data
    assert all(
        (array.ctypes.data - begin) % ALIGNMENT_BYTES == 0
        for name, array in got.items()
        if name != "large" and array.size
    )


def test_objects_do_not_travel() -> None:
    with pytest.raises(ArraysRefused, match="'a' has type"):
        Writer().parts({"a": np.array([{}])})


def test_a_difference_names_array_place_and_values() -> None:
    one = {"a": np.arange(6).reshape(2, 3)}
    other = {"a": np.where(one["a"] == 4, 9, one["a"])}
    assert difference(one, other) == "a[1, 1]: 4 and 9"
    assert difference(one, {"a": one["a"].astype(np.float32)}).startswith("a: int64 (2, 3) and float32")
    assert difference(one, {}) == "arrays ['a'] and []"
    nan = {"a": np.array([np.nan])}
    assert difference(nan, nan) == ""
