"""Which parameters of a model have which update rule: whatever a task gives for tables and dense parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stretto.errors import ModelRefused
from stretto.optimizers import (
    SGD,
    Adagrad,
    Adam,
    Clipping,
    Constant,
    RowWiseAdagrad,
    Update,
    Updates,
    Warmup,
    resolve,
)

BATCH = 10
TABLES = ("users", "items", "rows", "cities")
RULES: tuple[Any, ...] = (
    "adam",
    "Adagrad",
    Adam(0.1),
    Adam(0.1, step_samples=0),
    RowWiseAdagrad(Warmup(Constant(0.1), 100)),
    Update(SGD(0.1), Clipping(norm=1.0)),
    Update(SGD(0.1), Clipping(global_norm=1.0)),
)


def resolved(given: Any, tables: Any = TABLES, clipping: Any = None) -> Updates:
    def foreign(other: Any) -> Update:
        raise ModelRefused(f"optimizer = {other!r} is of no framework here")

    options: dict[str, Any] = {"kind": "sgd", "learning_rate": 0.5, "batch_size": BATCH}
    return resolve(given, foreign, tables, clipping=clipping, **options)


def alone(rule: Any) -> Update:
    """Return what a rule is where it is the only one."""
    return resolved(rule).rules[0]


def exact(update: Update) -> tuple[str, Clipping]:
    """Return all of a rule: equal optimizers may have steps of different lengths."""
    return repr(update.optimizer), update.clipping


@given(
    st.lists(st.sampled_from(TABLES), unique=True),
    st.dictionaries(st.sampled_from((*TABLES, "rows", "dense")), st.sampled_from(RULES)),
)
def test_a_table_has_its_own_rule_or_that_of_all_rows(tables: list[str], parts: dict[str, Any]) -> None:
    parts = {name: rule for name, rule in parts.items() if name in (*tables, "rows", "dense")}
    if left := [name for name in tables if name not in parts and "rows" not in parts]:
        with pytest.raises(ModelRefused, match=f"not for the rows of '{left[0]}': add 'rows'"):
            resolved(parts, tables)
        return
    if not parts:
        return
    updates = resolved(parts, tables)
    for name in tables:
        expected = alone(parts.get(name, parts.get("rows")))
        assert exact(updates.rules[updates.rule_of(name)]) == exact(expected)
    if "dense" in parts:
        assert exact(updates.rules[updates.of_dense]) == exact(alone(parts["dense"]))
    assert (updates.dense is None) == ("dense" not in parts)
    used = {updates.rule_of(name) for name in tables} | ({updates.dense} - {None})
    assert set(range(len(updates.rules))) == (used or {0})


@given(st.sampled_from(RULES), st.lists(st.sampled_from(TABLES), unique=True))
def test_one_rule_for_everything_is_one_however_it_is_given(rule: Any, tables: list[str]) -> None:
    whole = resolved(rule, tables)
    assert whole.told() == alone(rule).told()
    assert resolved({"rows": rule, "dense": rule}, tables) == whole
    if tables:
        assert resolved({**dict.fromkeys(tables, rule), "dense": rule}, tables) == whole


def test_all_rules_are_told_with_what_they_are_for() -> None:
    rules = {"dense": Adam(Warmup(Constant(0.1), 100)), "rows": "rowwise-adagrad", "users": SGD(1.0), "items": SGD(1.0)}
    assert resolved(rules, clipping=Clipping(global_norm=2.0)).told() == (
        "rows of users, items: SGD(learning_rate=1.0, step_samples=10, momentum=0.0, nesterov=False); "
        "all other rows: RowWiseAdagrad(learning_rate=0.5, initial_accumulator=0.1, epsilon=1e-07, "
        "epsilon_outside=0.0); the rate is model.learning_rate; "
        "dense parameters: Adam(learning_rate=Warmup(then=Constant(learning_rate=0.1), over_samples=100, first=0.1), "
        "step_samples=10, beta_1=0.9, beta_2=0.999, epsilon=1e-07, is_epsilon_corrected=False); "
        "global norm of all gradients together at most 2"
    )
    two = {"dense": SGD(1.0), "rows": Update(SGD(1.0), Clipping(norm=3.0))}
    assert resolved(two).told().startswith("rows: SGD(learning_rate=1.0, step_samples=10, momentum=0.0, nesterov=False")
    assert "; norm of gradients at most 3; dense parameters: SGD(" in resolved(two).told()


@pytest.mark.parametrize(
    ("given", "clipping", "told"),
    [
        ({"dense": "adam", "rows": "sgd", "user": "sgd"}, None, "'user', which is no table.*did you mean 'users'"),
        ({"dense": "adam", "row": "sgd"}, None, "'row', which is no table .* did you mean 'rows'"),
        ({"dense": "adam", "rows": "sgd", 3: "sgd"}, None, r"give 'dense', 'rows', or a table \(users, items, rows,"),
        ({"dense": "adam", "users": "sgd"}, None, "rules for 'dense', 'users', not for the rows of 'items'"),
        ({}, None, "rules for nothing, not for the rows of 'users'"),
        ({"dense": "adam", "rows": "lamb"}, None, r"optimizer\['rows'\]: optimizer = 'lamb' is not supported: use sgd"),
        ({"dense": "adam", "rows": 3}, None, r"optimizer\['rows'\]: optimizer = 3 is of no framework here"),
        ("lamb", None, "^optimizer = 'lamb' is not supported"),
        ({"dense": "adam", "rows": RULES[-1]}, Clipping(norm=1.0), "beside .*global_norm=1.0.* give one of them"),
        ({"dense": "adam", "rows": "sgd"}, 1, r"clipping = 1: give stretto\.optimizers\.Clipping"),
    ],
)
def test_what_is_no_rule_of_anything_is_refused(given: Any, clipping: Any, told: str) -> None:
    with pytest.raises(ModelRefused, match=told):
        resolved(given, clipping=clipping)


GRADIENTS = [np.full((2, 3), 2, np.float32), np.full(4, -3, np.float32), np.full(1, 5, np.float32)]


@pytest.mark.parametrize(
    ("limits", "clipping", "scales"),
    [
        ((None, None), None, [1, 1, 1]),
        ((Clipping(norm=2.0), None), None, [2 / 24**0.5, 1, 1]),
        ((None, Clipping(norm=3.0)), None, [1, 3 / 6, 3 / 5]),
        ((None, Clipping(global_norm=3.0)), None, [1, 3 / 61**0.5, 3 / 61**0.5]),  # of its own variables
        ((Clipping(global_norm=2.0), Clipping(value=1.0)), None, [2 / 24**0.5, 1, 1]),
        ((None, None), Clipping(global_norm=3.0), [3 / 85**0.5] * 3),  # the task's: of all
        ((None, None), Clipping(norm=3.0), [3 / 24**0.5, 3 / 6, 3 / 5]),
    ],
)
def test_a_limit_of_norms_is_of_the_variables_of_its_rule(limits: Any, clipping: Any, scales: list[float]) -> None:
    rows, dense = (Update(SGD(rate), limit or Clipping()) for rate, limit in zip((0.1, 0.2), limits, strict=True))
    updates = resolved({"rows": rows, "dense": dense}, ["users"], clipping)
    found = updates.scales([updates.rule_of("users"), *[updates.of_dense] * 2], GRADIENTS, [None] * 3)
    assert found == pytest.approx(scales)
    assert updates.limits_norms == (scales != [1, 1, 1])


def test_a_limit_of_values_is_of_its_rule() -> None:
    updates = resolved({"rows": Update(SGD(0.1), Clipping(value=0.5)), "dense": Adagrad(0.1)}, ["users"])
    assert updates.within(updates.rule_of("users"), GRADIENTS[0]).tolist() == [[0.5] * 3] * 2
    assert updates.within(updates.of_dense, GRADIENTS[0]) is GRADIENTS[0]


def test_equal_rules_with_a_norm_of_their_own_stay_two() -> None:
    """The norm of Keras' `global_clipnorm` is over the variables of one optimizer, and never of two."""
    limited = [Update(SGD(0.1), Clipping(global_norm=1.0)) for _ in range(2)]
    assert len(resolved({"rows": limited[0], "dense": limited[1]}).rules) == 2
    assert len(resolved({"rows": limited[0], "dense": limited[0]}).rules) == 1
