"""The census program on real rows: lines of text, parsed in tf.data, looked up and crossed in the model."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
from stretto_programs.capture.analysis import Explained
from stretto_programs.partition.cut import Prices

CENSUS = Path(__file__).parents[5] / "shared" / "data" / "ctr" / "adult" / "adult.csv.gz"
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not CENSUS.exists(), reason=f"{CENSUS} is not on this machine")]

PROGRAM = """
import csv
import keras
import tensorflow as tf

with open(PATH) as file:
    rows = list(csv.DictReader(file))
TEXTS = ["workclass", "education", "marital-status", "occupation", "relationship", "race", "native-country"]
NUMBERS = ["age", "hours-per-week"]
names = list(rows[0])

def parsed(lines):
    columns = dict(zip(names, tf.io.decode_csv(lines, [[""]] * len(names))))
    numbers = tf.stack([tf.strings.to_number(columns[name]) for name in NUMBERS], 1)
    return (tf.stack([columns[name] for name in TEXTS], 1), numbers), tf.cast(columns["income"] == ">50K", tf.float32)

lines = tf.data.TextLineDataset(PATH).skip(1)
data = lines.CACHE.shuffle(1000, seed=1).batch(256).map(parsed).prefetch(2)
text, numbers = keras.Input((len(TEXTS),), dtype="string"), keras.Input((len(NUMBERS),))
encoded = []
for place, name in enumerate(TEXTS):
    lookup = keras.layers.StringLookup(vocabulary=sorted({row[name] for row in rows}))
    encoded.append(keras.layers.Embedding(lookup.vocabulary_size(), 8)(lookup(text[:, place])))
crossed = keras.layers.HashedCrossing(500)((text[:, 1:2], text[:, 3:4]))
encoded.append(keras.layers.Flatten()(keras.layers.Embedding(500, 8)(crossed)))
scaled = keras.layers.BatchNormalization()(numbers)
deep = keras.layers.Dense(16, "relu")(keras.layers.Concatenate()([*encoded, scaled]))
model = keras.Model([text, numbers], keras.layers.Dense(1, "sigmoid")(keras.layers.Dropout(0.1)(deep)))
model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
model.fit(data, epochs=1, verbose=0)
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "adult.csv"
    path.write_bytes(gzip.decompress(CENSUS.read_bytes()))
    return PROGRAM.replace("PATH", repr(str(path)))


def test_parsing_lookups_and_crosses_of_the_census_move(explain: Callable[..., Explained], program: str) -> None:
    found = explain(program.replace("CACHE", "take(-1)"), prices=Prices())
    graph, partition = found.partition.graph, found.partition
    moved = [graph.by_name[name].op for name in partition.moved]
    assert moved.count("LookupTableFindV2") == 7
    assert {"Map", "SparseCross"} <= set(moved)
    assert partition.is_worth_it
    assert "measured" in found.costs
    assert "measured" in found.sizes
    [raw] = partition.crossings.sent
    assert 256 * 60 < graph.tensors[raw].size_bytes < 256 * 200  # a line of the census has about a hundred characters


def test_behind_a_cache_of_lines_the_parsing_still_moves(explain: Callable[..., Explained], program: str) -> None:
    """Only the maps before a cache stay, and there are none."""
    found = explain(program.replace("CACHE", "cache()"), prices=Prices())
    [(_, opened)] = found.opened
    assert [op.kind for op in opened.maps] == ["Map"]
    assert opened.ended_by.startswith("Cache")
