"""Live migration: columns change their parameter server while workers go on pushing.

Runs in the destination's process. One column at a time (the dense slices of a source as one group first) is
frozen, copied raw, taken over and released; the `own` vectors on the servers are the journal. A mover that dies takes
with it what it had taken over: the job goes back to its last checkpoint. One that broke off and lives (a source did not
answer) leaves what the next move, planned anew from the vectors, completes: what was taken over is released, and a
server told to take what it has from itself thaws it.
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
"""How long a column may be frozen by somebody else, a checkpoint, before the move is given up."""
_SLOW_ASKED, _SLOW_ANSWER_S = 4, 0.1
_GROUP_BYTES = 16 << 20
"""A source that takes longer for so many of the least questions has hardly any CPU, and training creeps as long as it
owns anything: it is frozen as soon as can be, gives as many columns for one freeze as make so many bytes, and has
nothing else to do meanwhile: no pushes, which would take most of what CPU it has."""


@dataclass(frozen=True, slots=True)
class MoveStep:
    """One group of columns has changed its owner.

    frozen_seconds: how long pushes to it were rejected. moved_bytes: raw slots, empty ones included. done, total:
    columns.
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
    layout, here = server.layout, server.control
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
            # what a move that broke off had taken over but not yet released
            taken = np.flatnonzero((here_before == Own.MINE) & (source.own() == Own.FROZEN)).tolist()
            if taken:
                source.set_own(taken, Own.NOT_MINE, Own.FROZEN)
            _empty_leftovers(source)
            if not _is_slow(source):
                _warm_source(source)
            here.finish(source.finished())
        _empty_leftovers(here)
        _warm(here)
        groups, done = _groups(layout, todo), 0
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
    """The columns of the first group, and of further ones of its source while they make no more than most_bytes;
    these groups leave the list. bytes_of: bucket -> bytes; slices are small."""
    source, first = groups.pop(0)
    columns, size = list(first), sum(int(bytes_of[c]) for c in first if c < len(bytes_of))
    for group in [group for group in groups if group[0] == source]:
        size += sum(int(bytes_of[c]) for c in group[1] if c < len(bytes_of))
        if size > most_bytes:
            break
        groups.remove(group)
        columns += group[1]
    return tuple(columns)


def _groups(layout: Layout, sources: Mapping[int, int]) -> list[tuple[int, tuple[int, ...]]]:
    """Dense slices first, one group per source; then the buckets, the sources taking turns."""
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
    """The first run of an operation costs tens of milliseconds: not while something is frozen."""
    layout = here.layout
    none, no_shards = np.zeros(0, np.int64), np.zeros((0, layout.columns + 2), np.int64)
    zeros = np.zeros(layout.columns, np.int64)
    here.set_own((), Own.MINE, Own.NOT_MINE)
    here.workers()
    here.import_slices(here.export_slices(none))
    here.merge_columns((), none, no_shards, zeros, zeros)
    spare = np.flatnonzero(here.own()[: layout.buckets] == Own.NOT_MINE)
    if len(spare):
        here.import_bucket(int(spare[0]), RawBucket.empty(layout))


def _warm_source(source: Control) -> None:
    """So it is for what it gives."""
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
                f"columns {columns[:8]} of ps-{source.server} were thawed by somebody else while they were copied "
                f"(states {states.tolist()[:8]}); the copy is dropped: plan the move anew"
            )
        here.set_own(columns, Own.MINE, Own.NOT_MINE)
    except StrettoError:
        # the copy is unowned and harmless; the source goes on where it was
        source.set_own(columns, Own.MINE, Own.FROZEN)
        raise
    frozen_seconds = time.perf_counter() - begun
    source.set_own(columns, Own.NOT_MINE, Own.FROZEN)  # its rows are dropped when all have moved
    return moved_bytes, frozen_seconds


def _freeze(source: Control, columns: tuple[int, ...]) -> None:
    """Freeze columns that are MINE there, all or none, by this mover: what a checkpoint has frozen it also thaws.

    A column that is frozen already is waited for while nothing of the group is held. Raises MigrationError.
    """
    deadline = time.monotonic() + _OTHERS_FREEZE_S
    while source.set_own(columns, Own.FROZEN, Own.MINE, whole=True) != len(columns):
        states = source.own()[list(columns)]
        if (states == Own.NOT_MINE).any() or time.monotonic() > deadline:
            raise MigrationError(
                f"columns {columns[:8]} cannot be taken from ps-{source.server} (states {states.tolist()[:8]}: "
                "0 not owned there, 2 frozen by somebody else); read ownership again and plan the move anew; "
                "a column that a dead mover froze is thawed by the server that has it, asked to take it from itself"
            )
        time.sleep(_POLL_S)


def _copy(here: Control, source: Control, columns: tuple[int, ...]) -> int:
    """Values, slots, progress and counters of frozen columns, source -> here."""
    layout, moved_bytes = here.layout, 0
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
    """Rows of buckets that are not owned: a copy whose move was given up, or an empty import that did not happen."""
    sizes, own = control.raw_sizes(), control.own()
    for bucket in np.flatnonzero((own[: control.layout.buckets] == Own.NOT_MINE) & (sizes > 0)):
        control.import_bucket(int(bucket), RawBucket.empty(control.layout))


def _await_steps(here: Control, source: Control, wait_s: float, active_s: float) -> None:
    """Until every active worker had a push accepted here, at most wait_s. The source, which may be slow because it is
    overloaded, is asked once."""

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
