"""Values of tensors as arrays that travel."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from stretto_pipeline.errors import ArraysRefused
from stretto_programs.splitting.values import packed, unpacked

SHAPES = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
NUMBERS = arrays.arrays(st.sampled_from([np.int64, np.float32, np.bool_, np.uint8]), SHAPES)
TEXTS = arrays.arrays(object, SHAPES, elements=st.binary(max_size=6))


@given(st.lists(NUMBERS | TEXTS, max_size=4))
def test_values_come_back_with_every_bit_type_and_shape(values: list[np.ndarray]) -> None:
    found = unpacked(packed(values))
    assert [(each.dtype, each.shape) for each in found] == [(each.dtype, each.shape) for each in values]
    for one, other in zip(found, values, strict=True):
        assert one.tolist() == other.tolist() if one.dtype == object else one.tobytes() == other.tobytes()


@pytest.mark.parametrize("lengths", [[1, 1], [4], [-1, 4]])
def test_lengths_that_do_not_fit_the_bytes_are_refused(lengths: list[int]) -> None:
    with pytest.raises(ArraysRefused, match="do not fit"):
        unpacked({"0 lengths": np.array(lengths), "0 bytes": np.zeros(3, np.uint8)})
