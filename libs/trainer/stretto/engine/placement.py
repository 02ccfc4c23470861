"""Which parameter server owns which column: pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum

import numpy as np

from ..errors import LayoutError
from .layout import I64, Layout


class Own(IntEnum):
    """State of one column at one server."""

    NOT_MINE = 0
    MINE = 1
    FROZEN = 2  # mine and readable, but every push to it is rejected: it is being moved or copied


def assign(layout: Layout, servers: Sequence[int]) -> dict[int, list[int]]:
    """First placement of a job: server id -> columns. Buckets and slices are each spread evenly."""
    if not servers:
        raise LayoutError("servers is empty: a job needs at least one parameter server")
    buckets = np.array_split(np.arange(layout.buckets), len(servers))
    slices = np.array_split(np.arange(layout.buckets, layout.columns), len(servers))
    # slices go the other way round, so that with few slices the first server does not get both remainders
    return {server: [int(c) for c in (*buckets[i], *slices[len(servers) - 1 - i])] for i, server in enumerate(servers)}


def owners(own: Mapping[int, I64], columns: int) -> I64:
    """[columns] server id that serves reads of each column, -1 where nobody does.

    MINE goes before FROZEN: between the two last steps of a move both are seen, and the new owner is ahead.
    """
    route = np.full(columns, -1, np.int64)
    for state in (Own.FROZEN, Own.MINE):
        for server, vector in own.items():
            route[vector == state] = server
    return route


def plan_moves(
    layout: Layout, current: Mapping[int, Iterable[int]], target: Sequence[int]
) -> dict[int, dict[int, int]]:
    """Fewest moves that leave the columns evenly on `target`: destination -> {column: source}.

    current: server -> its columns (servers that leave included). A server keeps what it has up to its share;
    buckets and slices are balanced separately. Deterministic.
    """
    if not target:
        raise LayoutError("target is empty: a job needs at least one parameter server")
    owner = {int(column): server for server, held in current.items() for column in held}
    missing = set(range(layout.columns)) - set(owner)
    if missing:
        raise LayoutError(
            f"columns {sorted(missing)[:8]} have no owner: read ownership again, or restore them from a checkpoint"
        )
    moves: dict[int, dict[int, int]] = {}
    for group in (range(layout.buckets), range(layout.buckets, layout.columns)):
        held = {server: [c for c in group if owner[c] == server] for server in target}
        # the larger shares go to those that hold most already: fewest moves
        ranked = sorted(target, key=lambda server: (-len(held[server]), server))
        base, extra = divmod(len(group), len(target))
        share = {server: base + (rank < extra) for rank, server in enumerate(ranked)}
        spare = [c for c in group if owner[c] not in share]
        for server in ranked:
            spare += held[server][share[server] :]
        for server in sorted(target):
            for _ in range(share[server] - min(len(held[server]), share[server])):
                column = spare.pop(0)
                moves.setdefault(server, {})[column] = owner[column]
    return moves
