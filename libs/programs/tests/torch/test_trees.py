"""Batches of PyTorch as arrays: whatever comes back is the same, and damage is refused."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stretto_pipeline.arrays import Arrays, difference
from stretto_pipeline.errors import ArraysRefused
from stretto_programs.torch.trees import NAMES, TREE, named_tuples, packed, unpacked

torch = pytest.importorskip("torch", reason="PyTorch is not installed here: pip install stretto-programs[torch]")

Pair = namedtuple("Pair", "one two")

plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()


@st.composite
def tensors(draw: st.DrawFn) -> Any:
    """Tensors of all types, some of them views with gaps, turned, or with elements that lie upon each other."""
    content = draw(st.binary(min_size=512, max_size=512))
    dtype = getattr(torch, draw(st.sampled_from([name for name in NAMES if name != "bool"])))
    whole = torch.frombuffer(bytearray(content), dtype=dtype)[:24].reshape(2, 3, 4)
    how = draw(st.sampled_from(["whole", "turned", "gaps", "single", "empty", "upon"]))
    views = {
        "whole": whole, "turned": whole.transpose(0, 2), "gaps": whole[:, ::2, 1:3], "single": whole[1, 2, 3],
        "empty": whole[:, :0], "upon": whole[:1, :1, :1].expand(3, 2, 4),
    }  # fmt: skip
    return views[how]


arrays = st.builds(lambda values: np.array(values, np.int16), st.lists(st.integers(-9, 9), max_size=5))
scalars = st.builds(np.float32, st.floats(width=32))
batches = st.recursive(
    plain | tensors() | arrays | scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.builds(Pair, inner, inner)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=4)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3).map(OrderedDict)
    ),
    max_leaves=12,
)


def seen(batch: Any) -> Any:
    """Everything that a program can see of a batch, bit for bit."""
    if isinstance(batch, torch.Tensor):
        flat = batch.contiguous().reshape(-1)
        content = flat.view(torch.uint8).tolist() if batch.numel() else []
        return [str(batch.dtype), tuple(batch.shape), batch.stride(), content]
    if isinstance(batch, np.ndarray | np.generic):
        return [type(batch), batch.dtype, batch.shape, batch.tobytes()]
    if isinstance(batch, dict):
        return [type(batch), *((key, seen(each)) for key, each in batch.items())]
    if isinstance(batch, list | tuple):
        return [type(batch), *map(seen, batch)]
    return [type(batch), batch.hex() if isinstance(batch, float) else batch]


def copied(given: Arrays) -> Arrays:
    """Return arrays in memory of their own, as they come from a lane."""
    return {name: array.copy() for name, array in given.items()}


@given(batches)
def test_a_batch_comes_back_as_it_was(batch: Any) -> None:
    found = unpacked(copied(packed(batch)), named_tuples(batch))
    assert seen(found) == seen(batch)
    assert difference(packed(found), packed(batch)) == ""


def test_tensors_that_share_memory_do_so_on_the_other_side() -> None:
    table = torch.arange(12).reshape(3, 4)
    columns, turned = unpacked(copied(packed([[table[:, n] for n in range(4)], table.T])), {})
    columns[2][1] = 99
    assert turned[2, 1] == 99


def test_bytes_that_no_tensor_uses_do_not_travel() -> None:
    """Memory that was never written would differ between home and a lane."""
    table = torch.full((4, 6), 7, dtype=torch.int8)
    assert packed(table[:, 1:3])["storage 0"].tolist() == [7, 7, 0, 0, 0, 0] * 3 + [7, 7]


refused = {
    "a sparse tensor": lambda: torch.sparse_coo_tensor([[0]], [1.0], (3,), check_invariants=True),
    "a parameter": lambda: torch.nn.Parameter(torch.ones(2)),
    "a gradient": lambda: torch.ones(2, requires_grad=True),
    "conjugated": lambda: torch.ones(2, dtype=torch.complex64).conj(),
    "an object": object,
    "objects": lambda: np.array([object()]),
    "a set": lambda: {1},
    "not contiguous": lambda: np.ones((2, 3)).T,
    "a list twice": lambda: [[1]] * 2,
    "shared memory": lambda: (whole := np.ones(9), torch.from_numpy(whole[2:])),
}


@pytest.mark.parametrize("name", refused)
def test_what_does_not_travel_is_refused(name: str) -> None:
    with pytest.raises(ArraysRefused, match="a batch does not travel"):
        packed([refused[name]()])


@given(st.binary(max_size=80))
def test_a_damaged_tree_is_refused(content: bytes) -> None:
    try:
        unpacked({TREE: np.frombuffer(content, np.uint8)}, {})
    except ArraysRefused:
        return
    assert content.strip().startswith(b'["')


@pytest.mark.parametrize(
    "node",
    [
        '["tensor",0,"int64",0,[3],[1]]', '["tensor",0,"int64",2,[1],[1]]', '["tensor",0,"int64",-1,[1],[1]]',
        '["tensor",0,"int64",0,[1],[-1]]', '["tensor",0,"Tensor",0,[1],[1]]', '["tensor",1,"int64",0,[1],[1]]',
        '["named","os.system",[["value","x"]]]', '["array",0]', '["list",3]', '["value",[]]', "7", "{}",
        '["list",' * 5000 + '["list",[]]' + "]" * 5000,
    ],
)  # fmt: skip
def test_a_tree_that_does_not_fit_its_arrays_is_refused(node: str) -> None:
    content = {TREE: np.frombuffer(node.encode(), np.uint8), "storage 0": np.zeros(16, np.uint8)}
    with pytest.raises(ArraysRefused, match="arrays are no batch"):
        unpacked(content, {})
