"""Live migration: columns change their parameter server while workers go on pushing.

The move runs in the destination's process. One column at a time is frozen, copied raw, taken over and released; the
dense slices of a source go first, as one group. The `own` vectors on the servers are the journal. If the destination
dies, the columns that it had taken over die with it, and the job goes back to its last checkpoint. If the move breaks
off because a source did not answer, the next move completes it. That move is planned anew from the vectors: columns
that were taken over are released at their source, and a frozen column is thawed by its owner.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from ..errors import MigrationError, StrettoError
from .control import Control, RawBucket
from .layout import I64, Layout
from .ownership import Own
from .server import ParameterServer

_POLL_S = 0.004
_OTHERS_FREEZE_S = 10.0
"""How long a column may stay frozen by another mover before this move is given up."""
_SLOW_ASKED = 4
_SLOW_ANSWER_S = 0.1
_GROUP_BYTES = 16 << 20
"""A source that takes longer than _SLOW_ANSWER_S for _SLOW_ASKED small requests has hardly any CPU, and training creeps
as long as it owns anything. It is frozen as early as possible and gives columns of up to _GROUP_BYTES in one freeze.
Meanwhile it has no pushes to apply, which would take most of its CPU."""


@dataclass(frozen=True, slots=True)
class MoveStep:
    """A group of columns that has changed its owner.

    frozen_seconds: how long pushes to the group were rejected. moved_bytes: raw slots, empty ones included. done,
    total: numbers of columns.
    """

    columns: tuple[int, ...]
    source: int
    moved_bytes: int
    frozen_seconds: float
    done: int
    total: int


def move(
    server: ParameterServer,
    sources: Mapping[int, int],
    addresses: Mapping[int, str],
    *,
    step_wait_s: float = 0.5,
    active_s: float = 2.0,
) -> Iterator[MoveStep]:
    """Take the columns `sources` (column -> server that has it now) over into `server`.

    Workers must already know the destination, or learn about it from their `refresh_servers`. Between two groups the
    mover waits until every worker that pushed in the last `active_s` has finished a step, at most `step_wait_s`:
    freezes in a row would starve them. Columns that are here already are skipped, so a broken move may be started
    again. A column whose source is `server` itself was left frozen by a mover that died: it is thawed.
    Dropping the iterator between two steps leaves nothing frozen.

    Raises MigrationError or ServerLost; the current group is then returned to its source, if that still answers.
    """
    layout = server.layout
    here = server.control
    here.set_own([c for c, s in sources.items() if s == server.index], Own.MINE, Own.FROZEN)
    here_before = here.own()
    todo = {c: s for c, s in sources.items() if s != server.index and here_before[c] != Own.MINE}
    unknown = {s for s in todo.values() if s not in addresses}
    if unknown:
        raise MigrationError(f"no address for source servers {sorted(unknown)}; pass those of all parameter servers")
    with ExitStack() as stack:
        there = {
            s: stack.enter_context(Control(layout, addresses[s], s))
            for s in sorted({*sources.values()} - {server.index})
        }
        for source in there.values():
            # columns that a broken move took over and did not release
            taken = np.flatnonzero((here_before == Own.MINE) & (source.own() == Own.FROZEN)).tolist()
            if taken:
                source.set_own(taken, Own.NOT_MINE, Own.FROZEN)
            _empty_leftovers(source)
            if not _is_slow(source):
                _warm_source(source)
            here.finish(source.finished())
        _empty_leftovers(here)
        _warm(here)
        groups = _groups(layout, todo)
        done = 0
        bytes_of = {s: control.raw_sizes() * layout.row_bytes for s, control in there.items()}
        while groups:
            source = there[groups[0][0]]
            columns = _take(groups, bytes_of[source.server], _GROUP_BYTES if _is_slow(source) else 0)
            moved_bytes, frozen_seconds = _move_group(here, source, columns)
            done += len(columns)
            yield MoveStep(columns, source.server, moved_bytes, frozen_seconds, done, len(todo))
            if groups:
                _await_steps(here, source, step_wait_s, active_s)
        for source in there.values():
            _empty_leftovers(source)
            here.finish(source.finished())


def _is_slow(source: Control) -> bool:
    begun = time.perf_counter()
    for _ in range(_SLOW_ASKED):
        source.own()
    return time.perf_counter() - begun > _SLOW_ANSWER_S


def _take(groups: list[tuple[int, tuple[int, ...]]], bytes_of: I64, most_bytes: int) -> tuple[int, ...]:
    """Remove the first group from the list, with more groups of its source up to most_bytes; return their columns.

    bytes_of: bucket -> bytes. Slices are small and not counted.
    """
    source, first = groups.pop(0)
    columns = list(first)
    size = sum(int(bytes_of[c]) for c in first if c < len(bytes_of))
    for group in [group for group in groups if group[0] == source]:
        size += sum(int(bytes_of[c]) for c in group[1] if c < len(bytes_of))
        if size > most_bytes:
            break
        groups.remove(group)
        columns += group[1]
    return tuple(columns)


def _groups(layout: Layout, sources: Mapping[int, int]) -> list[tuple[int, tuple[int, ...]]]:
    """Group the columns: dense slices first, one group per source; then single buckets, the sources taking turns."""
    groups: list[tuple[int, tuple[int, ...]]] = []
    for source in sorted(set(sources.values())):
        slices = tuple(sorted(c for c, s in sources.items() if s == source and c >= layout.buckets))
        if slices:
            groups.append((source, slices))
    turn: dict[int, int] = {}
    buckets: list[tuple[int, int, int]] = []
    for column, source in sorted(sources.items()):
        if column < layout.buckets:
            turn[source] = turn.get(source, 0) + 1
            buckets.append((turn[source], source, column))
    return groups + [(source, (column,)) for _, source, column in sorted(buckets)]


def _warm(here: Control) -> None:
    """Run each operation once: a first run costs tens of milliseconds, too long while a column is frozen."""
    layout = here.layout
    none = np.zeros(0, np.int64)
    no_shards = np.zeros((0, layout.columns + 2), np.int64)
    zeros = np.zeros(layout.columns, np.int64)
    here.set_own((), Own.MINE, Own.NOT_MINE)
    here.workers()
    here.import_slices(here.export_slices(none))
    here.merge_columns((), none, no_shards, zeros, zeros)
    spare = np.flatnonzero(here.own()[: layout.buckets] == Own.NOT_MINE)
    if len(spare):
        here.import_bucket(int(spare[0]), RawBucket.empty(layout))


def _warm_source(source: Control) -> None:
    """Run the source's operations once, for the same reason."""
    source.set_own((), Own.MINE, Own.NOT_MINE)
    source.workers()
    source.export_bucket(0, 0)
    source.records()
    source.applied()
    source.export_slices(np.zeros(0, np.int64))


def _move_group(here: Control, source: Control, columns: tuple[int, ...]) -> tuple[int, float]:
    begun = time.perf_counter()
    _freeze(source, columns)
    try:
        moved_bytes = _copy(here, source, columns)
        states = source.own()[list(columns)]
        if not (states == Own.FROZEN).all():
            raise MigrationError(
                f"columns {columns[:8]} of ps-{source.server} were thawed by another mover while they were copied "
                f"(states {states.tolist()[:8]}); the copy is dropped: plan the move anew"
            )
        here.set_own(columns, Own.MINE, Own.NOT_MINE)
    except StrettoError:
        # the copy has no owner and does no harm; the source continues
        source.set_own(columns, Own.MINE, Own.FROZEN)
        raise
    frozen_seconds = time.perf_counter() - begun
    source.set_own(columns, Own.NOT_MINE, Own.FROZEN)  # its rows are dropped when all have moved
    return moved_bytes, frozen_seconds


def _freeze(source: Control, columns: tuple[int, ...]) -> None:
    """Freeze columns that are MINE at the source, all or none: a column that another mover froze is not taken.

    It waits for such a column without holding any other of the group. Raises MigrationError.
    """
    deadline = time.monotonic() + _OTHERS_FREEZE_S
    while source.set_own(columns, Own.FROZEN, Own.MINE, whole=True) != len(columns):
        states = source.own()[list(columns)]
        if (states == Own.NOT_MINE).any() or time.monotonic() > deadline:
            raise MigrationError(
                f"columns {columns[:8]} cannot be taken from ps-{source.server} (states {states.tolist()[:8]}: "
                "0 not owned there, 2 frozen by another mover); read ownership again and plan the move anew: "
                "the plan lets the owner thaw a column that a dead mover froze"
            )
        time.sleep(_POLL_S)


def _copy(here: Control, source: Control, columns: tuple[int, ...]) -> int:
    """Copy values, slots, progress and counters of frozen columns from source to here; return the bytes."""
    layout = here.layout
    moved_bytes = 0
    slices: I64 = np.array([c - layout.buckets for c in columns if c >= layout.buckets], np.int64)
    if len(slices):
        raw_slices = source.export_slices(slices)
        here.import_slices(raw_slices)
        moved_bytes += raw_slices.nbytes
    for column in columns:
        if column < layout.buckets:
            raw = source.export_bucket(column)
            here.import_bucket(column, raw)
            moved_bytes += raw.nbytes
    shards, records = source.records()
    applied = source.applied()
    here.merge_columns(columns, shards, records, applied.samples, applied.fingerprints)
    return moved_bytes


def _empty_leftovers(control: Control) -> None:
    """Empty the buckets that are not owned but hold rows, left by a move that broke off."""
    sizes = control.raw_sizes()
    own = control.own()
    for bucket in np.flatnonzero((own[: control.layout.buckets] == Own.NOT_MINE) & (sizes > 0)):
        control.import_bucket(int(bucket), RawBucket.empty(control.layout))


def _await_steps(here: Control, source: Control, wait_s: float, active_s: float) -> None:
    """Wait until every active worker had a push accepted here, at most wait_s.

    The source is asked only once, because it may be overloaded.
    """

    def pushes() -> dict[int, int]:
        return {worker: seen.pushes for worker, seen in here.workers().items()}

    deadline = time.monotonic() + wait_s
    before = pushes()
    seen = [*here.workers().items(), *source.workers().items()]
    active = {worker for worker, at in seen if at.idle_seconds < active_s}
    while time.monotonic() < deadline:
        time.sleep(_POLL_S)
        now = pushes()
        if all(now.get(worker, 0) > before.get(worker, 0) for worker in active):
            return
