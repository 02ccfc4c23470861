"""The sum of several batches' gradients, against one made key by key."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from stretto.engine import Layout, Table
from stretto.engine.layout import DEFAULT_OPTIMIZER
from stretto.model.program import Gradients
from stretto.optimizers import SGD
from stretto.worker.gradient_sum import GradientSum

LAYOUT = Layout((Table(2, DEFAULT_OPTIMIZER), Table(1, SGD(0.1))), 3, 64, 12, 1, DEFAULT_OPTIMIZER)
"""Adagrad takes squares, plain SGD does not."""
IDS = st.lists(st.lists(st.integers(0, 9), max_size=8), min_size=2, max_size=2)


def batch_of(ids, number, has_squares):
    """Return keys and gradients, whole numbers that tell every batch, table and key from the others."""
    keys = LAYOUT.index(*map(np.array, ids))
    rows = tuple(
        (of.stored % 97 + 100 * (number + 1))[:, None].astype(np.float32) * np.ones(table.dimension, np.float32)
        for of, table in zip(keys.tables, LAYOUT.tables, strict=True)
    )
    squares = (2 * rows[0], None) if has_squares else ()
    dense, state = np.full(3, 10.0**number, np.float32), np.full(1, number, np.float32)
    return keys, Gradients(float(number), rows, dense, state, squares, 3 * dense if has_squares else None)


@given(st.lists(IDS, min_size=1, max_size=4), st.booleans())
def test_a_sum_has_each_key_once_with_all_that_batches_have_for_it(given_ids, has_squares):
    batches = [batch_of(ids, number, has_squares) for number, ids in enumerate(given_ids)]
    total = GradientSum(LAYOUT)
    for keys, gradients in batches:
        total.add(keys, gradients)
    keys, found = total.total()
    assert len(total) == len(batches)
    for table, of in enumerate(keys.tables):
        wanted = {}
        for its, gradients in batches:
            for key, row in zip(its.tables[table].stored.tolist(), gradients.rows[table], strict=True):
                wanted[key] = wanted.get(key, 0) + row
        assert of.stored.tolist() == sorted(wanted)
        assert of.counts.tolist() == np.bincount((of.stored >> np.uint64(58)).astype(int), minlength=64).tolist()
        assert found.rows[table].tolist() == [wanted[key].tolist() for key in sorted(wanted)]
    assert found.dense.tolist() == [sum(10.0**number for number in range(len(batches)))] * 3
    assert found.state_delta.tolist() == [sum(range(len(batches)))]
    assert found.loss == len(batches) - 1
    if len(batches) == 1:
        assert found is batches[0][1]
    else:
        squares = {key: 0 for key in keys.tables[0].stored.tolist()}
        for its, gradients in batches:
            for key, row in zip(its.tables[0].stored.tolist(), gradients.rows[0], strict=True):
                squares[key] += 2 * row if has_squares else row * row
        assert found.row_squares[0].tolist() == [squares[key].tolist() for key in sorted(squares)]
        assert found.row_squares[1] is None
        of_dense = sum(3 * each.dense if has_squares else each.dense * each.dense for _, each in batches)
        assert found.dense_squares.tolist() == of_dense.tolist()
    for number, (_, gradients) in enumerate(batches):
        assert (gradients.dense == 10.0**number).all(), "what was added is not changed"
