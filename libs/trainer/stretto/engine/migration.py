"""Live migration: columns change their parameter server while workers go on pushing.

Runs in the destination's process. One column at a time (the dense slices of a source as one group first) is
frozen, copied raw, taken over and released; the `own` vectors on the servers are the journal. A mover that dies takes
with it what it had taken over: the job goes back to its last checkpoint. One that broke off and lives (a source did not
answer) leaves what the next move, planned anew from the vectors, completes: `_release` of what was taken over, and a
server told to take what it has from itself thaws it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from ..errors import MigrationError, StrettoError
from .control import Control, RawBucket
from .layout import I64, Layout
from .placement import Own
from .server import ParameterServer

_POLL_S = 0.004
_OTHERS_FREEZE_S = 10.0
"""How long a column may be frozen by somebody else, a checkpoint, before the move is given up."""


@dataclass(frozen=True, slots=True)
class MoveStep:
    """One group of columns has changed its owner.

    frozen_seconds: how long pushes to it were rejected. moved_bytes: raw slots, empty ones included.
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

    Workers must already know the destination, or learn of it from their `refresh_servers`. Between two groups the
    mover waits until every worker seen in the last `active_s` finished a step, at most `step_wait_s`: freezes in
    a row would starve them. Columns that are here already are skipped, so a broken move may be started again.
    Dropping the iterator between two steps leaves nothing frozen.

    Raises MigrationError, ServerLost; the group at work is given back to its source if that still answers.
    """
    layout, here = server.layout, server.control
    here_before = here.own()
    todo = {c: s for c, s in sources.items() if here_before[c] != Own.MINE}
    unknown = {s for s in todo.values() if s not in addresses}
    if unknown:
        raise MigrationError(f"no address for source servers {sorted(unknown)}; pass those of all parameter servers")
    with ExitStack() as stack:
        there = {
            s: stack.enter_context(Control(layout, addresses[s], s)) for s in sorted({s for s in sources.values()})
        }
        for source in there.values():
            # what a move that broke off had taken over but not yet released
            _release(layout, source, np.flatnonzero((here_before == Own.MINE) & (source.own() == Own.FROZEN)).tolist())
            _empty_leftovers(source)
            _warm(here, source)
            here.finish(source.finished())
        _empty_leftovers(here)
        groups = _groups(layout, todo)
        for done, (source_id, columns) in enumerate(groups, start=1):
            source = there[source_id]
            moved_bytes, frozen_seconds = _move_group(layout, here, source, columns)
            yield MoveStep(columns, source_id, moved_bytes, frozen_seconds, done, len(groups))
            if done < len(groups):
                _await_steps([here, source], step_wait_s, active_s)
        for source in there.values():
            here.finish(source.finished())


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


def _warm(here: Control, source: Control) -> None:
    """The first run of an operation costs tens of milliseconds: not while something is frozen."""
    layout = here.layout
    none, no_shards = np.zeros(0, np.int64), np.zeros((0, layout.columns + 2), np.int64)
    zeros = np.zeros(layout.columns, np.int64)
    for control in (here, source):
        control.own()
        control.set_own((), Own.MINE, Own.NOT_MINE)
        control.workers()
    source.export_bucket(0, 0)
    source.records()
    source.applied()
    source.export_slices(none)
    here.import_slices(here.export_slices(none))
    here.merge_columns((), none, no_shards, zeros, zeros)
    spare = np.flatnonzero(here.own()[: layout.buckets] == Own.NOT_MINE)
    if len(spare):
        here.import_bucket(int(spare[0]), RawBucket.empty(layout))


def _move_group(layout: Layout, here: Control, source: Control, columns: tuple[int, ...]) -> tuple[int, float]:
    begun = time.perf_counter()
    frozen = _freeze(source, columns)
    try:
        moved_bytes = _copy(layout, here, source, columns)
        states = source.own()[list(columns)]
        if not (states == Own.FROZEN).all():
            raise MigrationError(
                f"columns {columns[:8]} of ps-{source.server} were thawed by somebody else while they were copied "
                f"(states {states.tolist()[:8]}); the copy is dropped: plan the move anew"
            )
        here.set_own(columns, Own.MINE, Own.NOT_MINE)
    except StrettoError:
        # the copy is unowned and harmless; the source goes on where it was
        source.set_own(frozen, Own.MINE, Own.FROZEN)
        raise
    frozen_seconds = time.perf_counter() - begun
    _release(layout, source, columns)
    return moved_bytes, frozen_seconds


def _freeze(source: Control, columns: tuple[int, ...]) -> list[int]:
    """Freeze columns that are MINE there, every one by this mover: what a checkpoint has frozen it also thaws.

    A column that is frozen already is waited for while nothing of the group is held. Raises MigrationError.
    """
    deadline = time.monotonic() + _OTHERS_FREEZE_S
    while True:
        frozen = [c for c in columns if source.set_own((c,), Own.FROZEN, Own.MINE)]
        if len(frozen) == len(columns):
            return frozen
        source.set_own(frozen, Own.MINE, Own.FROZEN)
        states = source.own()[list(columns)]
        if (states == Own.NOT_MINE).any() or time.monotonic() > deadline:
            raise MigrationError(
                f"columns {columns[:8]} cannot be taken from ps-{source.server} (states {states.tolist()[:8]}: "
                "0 not owned there, 2 frozen by somebody else); read ownership again and plan the move anew; "
                "a column that a dead mover froze is thawed by the server that has it, asked to take it from itself"
            )
        time.sleep(_POLL_S)


def _copy(layout: Layout, here: Control, source: Control, columns: tuple[int, ...]) -> int:
    """Values, slots, progress and counters of frozen columns, source -> here."""
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


def _release(layout: Layout, source: Control, columns: Sequence[int]) -> None:
    """The source forgets columns that have a new owner, and frees their memory."""
    source.set_own(columns, Own.NOT_MINE, Own.FROZEN)
    for column in columns:
        if column < layout.buckets:
            source.import_bucket(column, RawBucket.empty(layout))


def _empty_leftovers(control: Control) -> None:
    """Rows of buckets that are not owned: a copy whose move was given up, or an empty import that did not happen."""
    sizes, own = control.raw_sizes(), control.own()
    for bucket in np.flatnonzero((own[: control.layout.buckets] == Own.NOT_MINE) & (sizes > 0)):
        control.import_bucket(int(bucket), RawBucket.empty(control.layout))


def _await_steps(controls: list[Control], wait_s: float, active_s: float) -> None:
    """Until every active worker had a push accepted on one of the servers, at most wait_s."""

    def counts() -> dict[int, int]:
        total: dict[int, int] = {}
        for control in controls:
            for worker, seen in control.workers().items():
                if seen.idle_seconds < active_s:
                    total[worker] = total.get(worker, 0) + seen.pushes
        return total

    before, deadline = counts(), time.monotonic() + wait_s
    while time.monotonic() < deadline:
        time.sleep(_POLL_S)
        now = counts()
        if all(now.get(worker, pushes + 1) > pushes for worker, pushes in before.items()):
            return
