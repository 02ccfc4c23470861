"""Placement of buckets and dense slices on parameter servers, and the fewest moves to get there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stretto_messages.values import BUCKETS, SLICES

from stretto_core.machine import CoreError

NOT_MINE = 0
MINE = 1
FROZEN = 2


class UnownedColumns(CoreError):
    """Columns without an owner; the text names them."""


def claim(
    servers: Sequence[int], buckets: int = BUCKETS, slices: int = SLICES
) -> dict[int, tuple[list[int], list[int]]]:
    """First placement: server -> (its buckets, its slices), each spread evenly and consecutively.

    Slices are dealt from the other end, so that the first server does not get both remainders.
    """
    count = len(servers)
    return {
        server: (_part(buckets, count, position), _part(slices, count, count - 1 - position))
        for position, server in enumerate(servers)
    }


def _part(columns: int, count: int, position: int) -> list[int]:
    base, extra = divmod(columns, count)
    start = position * base + min(position, extra)
    return list(range(start, start + base + (position < extra)))


def owner_of(vectors: Mapping[int, Sequence[int]]) -> list[int]:
    """Return the owner of each column from every server's own vector.

    MINE goes before FROZEN: between two steps of a move both are observed, and the new owner is ahead.

    Raises:
        UnownedColumns: a column has no owner.
    """
    width = len(next(iter(vectors.values()), ()))
    owner: list[int | None] = [None] * width
    for state in (FROZEN, MINE):
        for server, vector in vectors.items():
            for column, value in enumerate(vector):
                if value == state:
                    owner[column] = server
    missing = [column for column, server in enumerate(owner) if server is None]
    if missing:
        raise UnownedColumns(
            f"columns {missing[:8]} of {width} have no owner among servers {sorted(vectors)}; "
            "their parameters are only in a checkpoint"
        )
    return [server for server in owner if server is not None]


def shares(columns: int, weights: Mapping[int, float], held: Mapping[int, int]) -> dict[int, int]:
    """Return the number of ``columns`` of each server by its weight, by largest remainders (Hamilton).

    Among equal remainders, servers that hold most already go first, so that least has to move.
    """
    total = sum(weights.values())
    exact = {server: columns * weight / total for server, weight in weights.items()}
    result = {server: int(value + 1e-9) for server, value in exact.items()}
    ranked = sorted(weights, key=lambda s: (-round(exact[s] - result[s], 9), -held.get(s, 0), s))
    for server in ranked[: columns - sum(result.values())]:
        result[server] += 1
    return result


def plan_moves(
    buckets: Mapping[int, Sequence[int]],
    slices: Mapping[int, Sequence[int]],
    rows: Sequence[int],
    weights: Mapping[int, float],
) -> dict[int, list[tuple[int, int]]]:
    """Fewest moves that leave every server of ``weights`` with its share: destination -> [(column, source)].

    A column is a bucket, or the number of buckets plus a dense slice; both kinds are balanced by themselves.
    ``buckets`` and ``slices`` are the own vectors of all servers, those that leave included; ``rows`` per bucket.
    Servers without a weight are emptied. A column that a broken migration left frozen at its owner stays there for
    now: the owner takes it from itself, which thaws it, and a later plan may move it. A column left frozen at another
    server than its owner is taken by the owner once more. Raises UnownedColumns.
    """
    targets = {server: weight for server, weight in weights.items() if weight > 0}
    width = len(next(iter(buckets.values()), ()))
    sizes = [*rows[:width], *([0] * (width - len(rows)))]
    moves: dict[int, list[tuple[int, int]]] = {}
    for vectors, first, weight_of in ((slices, width, None), (buckets, 0, sizes)):
        for column, source, destination in _even_out(vectors, weight_of, targets):
            moves.setdefault(destination, []).append((first + column, source))
    return moves


def _even_out(
    vectors: Mapping[int, Sequence[int]], rows: Sequence[int] | None, targets: Mapping[int, float]
) -> list[tuple[int, int, int]]:
    """Return the moves of one kind of columns as (column, source, destination).

    A server gives away the columns whose rows are nearest to the mean, so that counts and rows stay balanced together.
    """
    owner = owner_of(vectors)
    sizes = rows or [0] * len(owner)
    held = {server: [c for c, s in enumerate(owner) if s == server] for server in {*owner, *targets}}
    share = shares(len(owner), targets, {server: len(columns) for server, columns in held.items()})
    mean = sum(sizes) / max(len(sizes), 1)
    spare: list[int] = []
    for server in sorted(held):
        surplus = len(held[server]) - share.get(server, 0)
        # no server can take a frozen column, since it would have to freeze it first
        free = [c for c in held[server] if vectors[server][c] == MINE]
        if surplus > 0:
            spare += sorted(free, key=lambda c: (abs(sizes[c] - mean), c))[:surplus]
    moves: list[tuple[int, int, int]] = []
    # the largest go first, each to the server with the fewest rows that still has room
    room = {server: share[server] - len(held[server]) for server in targets}
    load = {server: sum(sizes[c] for c in held[server]) for server in targets}
    for column in sorted(spare, key=lambda c: (-sizes[c], c)):
        destination = min((s for s in targets if room[s] > 0), key=lambda s: (load[s], s))
        room[destination] -= 1
        load[destination] += sizes[column]
        moves.append((column, owner[column], destination))
    going = set(spare)
    for column, server in enumerate(owner):
        if column not in going:
            moves += [(column, other, server) for other, vector in vectors.items() if vector[column] == FROZEN]
    return moves
