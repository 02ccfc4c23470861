"""Opened pipelines on real tf.data: the source and its stage give what the program's pipeline gives, to the element."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings
from stretto_programs.partition.effects import Effect, Summary
from stretto_programs.partition.graph import ANY
from stretto_programs.partition.pipelines import BATCHES, ENDS, MAPS, PASSED, DatasetOp, opened

PURE = Summary(frozenset({Effect.PURE}))
Step = tuple[str, int]
"""An operation and a number that it uses in its own way."""


@st.composite
def pipelines(draw: st.DrawFn) -> list[Step]:
    """Draw operations behind a range: maps, and everything that they may pass."""
    kinds = ["Map", "ParallelMap", "Shuffle", "Repeat", "Take", "Skip", "Shard", "Prefetch", "Batch", "Options"]
    return [(draw(st.sampled_from(kinds)), draw(st.integers(1, 5))) for _ in range(draw(st.integers(1, 7)))]


def applied(dataset: Any, step: Step, is_last_batch: bool) -> Any:
    """Return the data set with one operation more."""
    import tensorflow as tf

    kind, number = step
    if kind in MAPS:
        return dataset.map(function(number), num_parallel_calls=2 if kind == "ParallelMap" else None)
    if kind == "Shuffle":
        return dataset.shuffle(number + 1, seed=number)
    if kind == "Options":
        options = tf.data.Options()
        options.autotune.enabled = False
        return dataset.with_options(options)
    return {
        "Repeat": lambda: dataset.repeat(2),
        "Take": lambda: dataset.take(number * 7),
        "Skip": lambda: dataset.skip(number),
        "Shard": lambda: dataset.shard(2, number % 2),
        "Prefetch": lambda: dataset.prefetch(number),
        "Batch": lambda: dataset.batch(number, drop_remainder=not is_last_batch),
    }[kind]()


def function(number: int) -> Any:
    """Return a map that no vector of elements can replace: it depends on the whole element, and adds a dimension."""
    import tensorflow as tf

    def mapped(element: Any) -> Any:
        flat = tf.reshape(element, [-1])
        return tf.stack([element * number + tf.reduce_max(flat), element - tf.size(flat, tf.int64)], -1)

    return mapped


def built(steps: list[Step]) -> Any:
    import tensorflow as tf

    dataset = tf.data.Dataset.range(23)
    last_batch = max((place for place, each in enumerate(steps) if each[0] == "Batch"), default=-1)
    for place, step in enumerate(steps):
        dataset = applied(dataset, step, place == last_batch)
    return dataset


def staged(raw: Any, stage: list[Step]) -> Any:
    """Run the stage on one raw element of the source, which holds the elements of its batches, not yet mapped."""
    import tensorflow as tf

    batches = sum(kind in BATCHES for kind, _ in stage)

    def each(value: Any, depth: int, mapped: Any) -> Any:
        return mapped(value) if depth == 0 else tf.stack([each(one, depth - 1, mapped) for one in tf.unstack(value)])

    for kind, number in stage:
        if kind in BATCHES:
            batches -= 1
        else:
            raw = each(raw, batches, function(number))
    return raw


@pytest.mark.slow
@settings(max_examples=40)
@example([("Shuffle", 1), ("Map", 1), ("Repeat", 1), ("Repeat", 1)])
@example([("Shuffle", 3), ("Map", 1), ("Map", 2), ("Take", 5), ("Repeat", 1), ("Batch", 3), ("Repeat", 1)])
@example([("Map", 2), ("Shuffle", 1), ("Repeat", 1), ("Repeat", 1), ("Map", 1), ("Batch", 4)])
@given(pipelines())
def test_a_source_and_its_stage_give_the_same_elements_in_the_same_order(steps: list[Step]) -> None:
    ops = [DatasetOp("Range"), *(DatasetOp(kind, PURE, (str(place),)) for place, (kind, _) in enumerate(steps))]
    found = opened(ops)
    kept = [steps[int(op.body[0])] for op in found.source[1:]]
    stage = [steps[int(op.body[0])] for op in found.stage]
    expected = list(built(steps))
    actual = [staged(raw, stage) for raw in _source(steps, kept)]
    assert [each.numpy().tolist() for each in actual] == [each.numpy().tolist() for each in expected]


def _source(steps: list[Step], kept: list[Step]) -> Any:
    import tensorflow as tf

    dataset = tf.data.Dataset.range(23)
    count = sum(kind == "Batch" for kind, _ in steps)
    for step in kept:
        count -= step[0] == "Batch"
        dataset = applied(dataset, step, count == 0)
    return dataset


@pytest.mark.slow
def test_a_map_between_shuffle_and_repeat_stays_since_tf_data_would_join_the_two() -> None:
    """TensorFlow's own rewrite makes the commutation inexact: the case for which the walk ends there."""
    between = [("Shuffle", 1), ("Map", 1), ("Repeat", 1), ("Repeat", 1)]
    behind = [("Shuffle", 1), ("Repeat", 1), ("Repeat", 1), ("Map", 1)]
    assert [each.numpy().tolist() for each in built(between)] != [each.numpy().tolist() for each in built(behind)]
    found = opened([DatasetOp("Range"), *(DatasetOp(kind, PURE) for kind, _ in between)])
    assert found.maps == ()
    assert "tf.data would join it with the repeat" in found.ended_by
    assert found.stays[0][1] == f"it does not lie behind {found.ended_by}"


def named(ops: Sequence[DatasetOp]) -> list[str]:
    """Return the names that tests give operations by their bodies."""
    return ["".join(each.body) for each in ops]


def test_maps_that_leave_one_between_shuffle_and_repeat_move() -> None:
    ops = [
        DatasetOp(kind, PURE, (name,)) for kind, name in (("Range", ""), ("Map", "e"), ("Shuffle", ""), ("Map", "f"))
    ]
    ops += [DatasetOp(kind, PURE, (name,)) for kind, name in (("Map", "g"), ("Take", ""), ("Repeat", ""), ("Map", "h"))]
    assert named(opened(ops).maps) == ["g", "h"]
    assert named(opened([*ops[:3], ops[5], ops[3], *ops[6:]]).maps) == ["h"]  # a take may be none
    batched = [*ops[:5], DatasetOp("Batch"), *ops[5:]]
    assert named(opened(batched).maps) == ["e", "f", "g", "h"]


@pytest.mark.slow
def test_another_seed_is_another_order() -> None:
    """The comparison above can fail: with another seed of the shuffle it would."""
    one, other = [("Map", 3), ("Shuffle", 4)], [("Map", 3), ("Shuffle", 5)]
    assert [each.numpy().tolist() for each in built(one)] != [each.numpy().tolist() for each in built(other)]


def test_what_ends_the_walk_keeps_the_maps_before_it_with_the_reason() -> None:
    for kind in ENDS:
        found = opened(
            [
                DatasetOp("Range"),
                DatasetOp("Map", PURE, ("f",)),
                DatasetOp(kind, body=("x",)),
                DatasetOp("Map", PURE, ("g",)),
            ]
        )
        assert named(found.maps) == ["g"]
        assert named(found.source) == ["", "f", "x"]
        assert found.ended_by == f"{kind}: {ENDS[kind]}"
        assert found.stays == ((found.source[1], f"it does not lie behind {kind}: {ENDS[kind]}"),)


def test_no_operation_is_both_passed_and_an_end() -> None:
    assert not PASSED.keys() & ENDS.keys()
    assert not MAPS & ENDS.keys()


@pytest.mark.parametrize(
    ("effects", "reason"),
    [
        ({Effect.RANDOM}, "draws random numbers"),
        ({Effect.PYTHON}, "runs Python code"),
        ({Effect.OUTSIDE}, "prints"),
        ({Effect.WRITES}, "writes a resource"),
        ({Effect.UNKNOWN}, "does not call stateless"),
    ],
)
def test_a_map_with_an_effect_ends_the_walk(effects: set[Effect], reason: str) -> None:
    found = opened(
        [DatasetOp("Range"), DatasetOp("Map", Summary(frozenset(effects)), ("f",)), DatasetOp("Map", PURE, ("g",))]
    )
    assert named(found.maps) == ["g"]
    assert reason in found.ended_by


def test_a_map_that_reads_a_written_table_ends_the_walk() -> None:
    lookup = DatasetOp("Map", Summary(frozenset({Effect.READS}), reads=frozenset({"words"})), ("f",))
    assert opened([DatasetOp("Range"), lookup]).maps == (lookup,)
    assert (
        "reads words, which the training writes" in opened([DatasetOp("Range"), lookup], frozenset({"words"})).ended_by
    )
    assert not opened([DatasetOp("Range"), lookup], frozenset({ANY})).maps


def test_an_order_that_is_not_kept_ends_the_walk() -> None:
    found = opened(
        [DatasetOp("Range"), DatasetOp("Map", PURE, ("f",)), DatasetOp("ParallelMap", PURE, is_deterministic=False)]
    )
    assert found.maps == ()
    assert "does not keep the order" in found.ended_by


def test_the_stage_begins_at_the_first_map_and_takes_the_batches_after_it() -> None:
    ops = [DatasetOp(kind, PURE) for kind in ("Range", "Batch", "Shuffle", "Map", "Batch", "Repeat", "Prefetch")]
    found = opened(ops)
    assert [op.kind for op in found.source] == ["Range", "Batch", "Shuffle", "Batch", "Repeat", "Prefetch"]
    assert [op.kind for op in found.stage] == ["Map", "Batch"]
