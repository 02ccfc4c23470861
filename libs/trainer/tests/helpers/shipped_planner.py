"""Placement and moves for tests and benches, planned by the actuator's planner: the one that the product runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from stretto_core.actuator.placement import claim, plan_moves

if TYPE_CHECKING:  # the import at run time would load TensorFlow
    from stretto.engine import Control, Layout


def first_columns(layout: Layout, servers: Iterable[int]) -> dict[int, list[int]]:
    """The columns of each server of a new job: server -> columns."""
    parts = claim(list(servers), layout.buckets, layout.slices)
    return {server: [*buckets, *(layout.buckets + s for s in slices)] for server, (buckets, slices) in parts.items()}


def planned_moves(
    layout: Layout, own: Mapping[int, Sequence[int]], weights: Mapping[int, float], rows: Sequence[int] = ()
) -> dict[int, dict[int, int]]:
    """The moves to ``weights``: destination -> {column: source}.

    ``own`` holds the own vector of every server, ``rows`` the categories of each bucket.
    """
    vectors = {server: [int(state) for state in vector] for server, vector in own.items()}
    moves = plan_moves(
        {server: vector[: layout.buckets] for server, vector in vectors.items()},
        {server: vector[layout.buckets :] for server, vector in vectors.items()},
        [int(count) for count in rows],
        weights,
    )
    return {destination: dict(part) for destination, part in moves.items()}


def planned_from(layout: Layout, controls: Iterable[Control], target: Iterable[int]) -> dict[int, dict[int, int]]:
    """The moves to equal shares on ``target``, planned from what the servers answer (their control sessions)."""
    own, rows = {}, [0] * layout.buckets
    for control in controls:
        own[control.server] = control.own()
        rows = [before + int(count) for before, count in zip(rows, control.sizes(), strict=True)]
    return planned_moves(layout, own, dict.fromkeys(target, 1.0), rows)
