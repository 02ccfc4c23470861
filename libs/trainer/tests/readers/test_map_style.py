"""Datasets of others as sources: PyTorch's map-style ones and tf.data's with random access; others are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from stretto import DataError
from stretto.readers.mapstyle import MapStyle


class Rows:
    """A dataset as a user of PyTorch writes it."""

    def __init__(self, size: int = 10) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, number: int) -> dict[str, Any]:
        if not 0 <= number < self.size:
            raise IndexError(number)
        return {"label": np.float32(number % 2), "categorical": np.array([number, 7])}


def test_items_are_stacked_by_name() -> None:
    reader = MapStyle(Rows())
    assert reader.size == 10
    batch = reader.read(3, 4)
    assert batch["label"].tolist() == [1, 0, 1, 0]
    assert batch["label"].dtype == np.float32
    assert batch["categorical"].tolist() == [[3, 7], [4, 7], [5, 7], [6, 7]]
    assert reader.read(2, 0)["categorical"].shape == (0, 2)
    with pytest.raises(DataError, match="10 samples"):
        reader.read(8, 3)


def test_a_collate_function_makes_the_batch_of_other_items() -> None:
    pairs = [(np.array([i, i + 1]), i % 2) for i in range(6)]
    reader = MapStyle(pairs, lambda items: {"x": np.stack([x for x, _ in items]), "label": [y for _, y in items]})
    assert reader.read(4, 2)["x"].tolist() == [[4, 5], [5, 6]]
    assert reader.read(4, 2)["label"].tolist() == [0, 1]


class Stream:
    def __iter__(self) -> Any:
        return iter(())


class Noisy(Rows):
    def __getitem__(self, number: int) -> dict[str, Any]:
        return {"label": np.random.default_rng().normal()}


@pytest.mark.parametrize(
    ("dataset", "collate", "told"),
    [
        (Stream(), None, "no length or no items by number: .* write the samples to Parquet"),
        (Noisy(), None, "item 0 of Noisy gave two different values of 'label'"),
        ([(1, 2)], None, "items are of tuple; give collate="),
        ([(1, 2)], lambda items: items, "collate gave list"),
        (Rows(), lambda items: {"label": np.zeros(3)}, r"'label' has shape \(3,\) for 1 samples"),
    ],
)
def test_sources_without_random_access_are_refused(dataset: Any, collate: Any, told: str) -> None:
    with pytest.raises(DataError, match=told):
        MapStyle(dataset, collate)


def test_pytorch_datasets_are_read() -> None:
    torch = pytest.importorskip("torch")

    class Tensors(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 5

        def __getitem__(self, number: int) -> dict[str, Any]:
            return {"label": torch.tensor(float(number % 2)), "x": torch.arange(3) + number}

        def __getitems__(self, numbers: list[int]) -> list[dict[str, Any]]:
            return [self[number] for number in numbers]

    batch = MapStyle(Tensors()).read(1, 3)
    assert batch["x"].tolist() == [[1, 2, 3], [2, 3, 4], [3, 4, 5]]
    assert batch["label"].tolist() == [1, 0, 1]


@pytest.mark.slow
def test_tf_data_is_read_where_it_has_random_access_and_refused_elsewhere(run_warm: Any) -> None:
    run_warm("""
import numpy as np, tensorflow as tf
from stretto import DataError
from stretto.readers.mapstyle import MapStyle
data = tf.data.Dataset.from_tensor_slices({"x": np.arange(20.0), "label": np.arange(20) % 2}).map(
    lambda row: {**row, "x": row["x"] * 2}
)
batch = MapStyle(data).read(5, 3)
assert batch["x"].tolist() == [10, 12, 14], batch
pairs = data.interleave(lambda row: tf.data.Dataset.range(2))
for other in (data.repeat(), data.filter(lambda row: row["x"] > 3), pairs):
    try:
        MapStyle(other)
    except DataError as error:
        assert "write the samples to Parquet" in str(error), error
    else:
        raise AssertionError(other)
""")
