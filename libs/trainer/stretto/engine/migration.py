"""Live migration: columns change their parameter server while workers go on pushing.

The move runs in the destination's process. A group of large buckets is copied while it is trained, then the rows that
changed meanwhile, until these are few. Then it is frozen, the last changes are copied, and it is taken over and
released. The dense slices of a source go first, as one group. The `own` vectors on the servers are the journal. If the
destination dies, the columns that it had taken over die with it, and come back from the last checkpoint. If the move
breaks off because a source did not answer, the next move completes it. That move is planned anew from the vectors:
columns that were taken over are released at their source, and a frozen column is thawed by its owner.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np
from stretto_messages.values import BUCKETS
from stretto_parameters import EVERY_KEY, InputRefused, Own, Store, StoreFull
from stretto_parameters.layout import RowFormat
from stretto_parameters.policy.expiry import WRAPPED

from ..errors import MigrationError, StrettoError
from .codec import Frozen
from .control import Control
from .layout import I64, Layout
from .link import Access
from .locked_store import LockedStore
from .server import ParameterServer

_POLL_S = 0.004
_OTHERS_FREEZE_S = 10.0
"""How long a column may stay frozen by another mover before this move is given up."""
_SLOW_ASKED = 4
_SLOW_ANSWER_S = 0.05
_SLOW_FREEZE_BYTES = 16 << 20
"""A source that takes longer than _SLOW_ANSWER_S for _SLOW_ASKED small requests, or took longer for the group before,
has hardly any CPU, and training creeps as long as it owns anything. It is frozen as early as possible and gives columns
of up to _SLOW_FREEZE_BYTES in one freeze. Meanwhile it has no pushes to apply, which would take most of its CPU, and
nothing is copied before. A source with rows on the disk is not judged so: it would read them all in the freeze."""
_RANGE_BYTES = 2 << 20
"""Rows and slices that are copied in one message, and under one hold of a server's lock: pushes wait for it."""
_AHEAD_BYTES = 1 << 20
"""Columns of more bytes are copied before they are frozen, too. Less is copied within some ms (measured)."""
FREEZE_BYTES = 128 << 20
"""Columns share a freeze up to this size: each freeze costs every worker the repetition of a step, and only few of many
steps may be late."""
_AHEAD_COPIES = 4
_PACE = 1.0
"""Pause after a range that is copied while it is trained, in terms of the time that it took: workers need the cores."""


@dataclass(frozen=True, slots=True)
class MoveStep:
    """A group of columns that has changed its owner.

    frozen_seconds: how long pushes to the group were rejected. moved_bytes: rows with their keys, and slices. done,
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
    freeze_bytes: int = FREEZE_BYTES,
) -> Iterator[MoveStep]:
    """Take the columns `sources` (column -> server that has it now) over into `server`.

    Workers must already know the destination, or learn about it from their `refresh_servers`. Between two groups the
    mover waits until every worker that pushed in the last `active_s` has finished a step, at most `step_wait_s`:
    freezes in a row would starve them. freeze_bytes: columns of one source share a freeze up to this size; 0: each has
    its own. Columns that are here already are skipped, so a broken move may be started
    again. A column whose source is `server` itself was left frozen by a mover that died: it is thawed.
    Dropping the iterator between two steps leaves nothing frozen.

    Raises MigrationError or ServerLost; the current group is then returned to its source, if that still answers.
    """
    here = server.store
    here.set_own([c for c, s in sources.items() if s == server.index], Own.MINE, Own.FROZEN)
    here_before = here.own()
    todo = {c: s for c, s in sources.items() if s != server.index and here_before[c] != Own.MINE}
    unknown = {s for s in todo.values() if s not in addresses}
    if unknown:
        raise MigrationError(f"no address for source servers {sorted(unknown)}; pass those of all parameter servers")
    access = Access(server.key, server.encrypted)
    known = here.layout if here.knows_layout else None
    with ExitStack() as stack:
        there = {
            s: stack.enter_context(Control(known, addresses[s], s, access=access))
            for s in sorted({*sources.values()} - {server.index})
        }
        _join(here, there)
        known_finished: dict[int, int] = {}  # source -> marks that are here before the first freeze
        for source in there.values():
            # columns that a broken move took over and did not release
            taken = np.flatnonzero((here_before == Own.MINE) & (source.own() == Own.FROZEN)).tolist()
            if taken:
                source.set_own(taken, Own.NOT_MINE, Own.FROZEN)
            _empty_leftovers(source)
            marks = source.finished()
            here.finish(marks)
            known_finished[source.server] = len(marks)
        _empty_leftovers(here)
        groups = _groups(todo)
        done = 0
        bytes_of = {s: control.raw_sizes() * _row_bytes(here.layout) for s, control in there.items()}
        frozen_s: dict[int, float] = {}  # source -> how long its last group was frozen
        while groups:
            source = there[groups[0][0]]
            slow = not source.cold_rows() and (frozen_s.get(source.server, 0.0) > _SLOW_ANSWER_S or _is_slow(source))
            columns = _take(groups, bytes_of[source.server], _SLOW_FREEZE_BYTES if slow else freeze_bytes)
            if not here.knows_layout and (layout := source.layout) is not None:
                server.adopt(layout)
            ahead = not slow and bytes_of[source.server][[c for c in columns if c < BUCKETS]].sum() > _AHEAD_BYTES
            known = known_finished[source.server]
            moved_bytes, frozen_seconds = _move_group(here, source, columns, known, ahead=ahead)
            frozen_s[source.server] = frozen_seconds
            done += len(columns)
            yield MoveStep(columns, source.server, moved_bytes, frozen_seconds, done, len(todo))
            if groups:
                _await_steps(here, source, step_wait_s, active_s)
        for source in there.values():
            _empty_leftovers(source)
            here.finish(source.finished())


def _join(here: LockedStore, there: Mapping[int, Control]) -> None:
    """Take the lineage of the sources, before the first of their columns is owned here. Raises MigrationError."""
    lineages = {control.lineage() for control in there.values()}
    if not lineages or lineages == {here.lineage()}:
        return
    if len(lineages) > 1 or here.columns():
        raise MigrationError(
            f"columns of several returns to a checkpoint, {sorted({*lineages, here.lineage()})}, do not mix; the "
            "parameters go back meanwhile: plan anew"
        )
    here.set_lineage(*lineages)


def _row_bytes(layout: Layout) -> int:
    """Return the bytes of the widest table's row, for an estimate of what a bucket takes."""
    return max((layout.row_bytes(number) for number in range(len(layout.tables))), default=0)


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


def _groups(sources: Mapping[int, int]) -> list[tuple[int, tuple[int, ...]]]:
    """Group the columns: dense slices first, one group per source; then single buckets, the sources taking turns."""
    groups: list[tuple[int, tuple[int, ...]]] = []
    for source in sorted(set(sources.values())):
        slices = tuple(sorted(c for c, s in sources.items() if s == source and c >= BUCKETS))
        if slices:
            groups.append((source, slices))
    turn: dict[int, int] = {}
    buckets: list[tuple[int, int, int]] = []
    for column, source in sorted(sources.items()):
        if column < BUCKETS:
            turn[source] = turn.get(source, 0) + 1
            buckets.append((turn[source], source, column))
    return groups + [(source, (column,)) for _, source, column in sorted(buckets)]


def _move_group(
    here: LockedStore,
    source: Control,
    columns: tuple[int, ...],
    known_finished: int = 0,
    *,
    ahead: bool = False,
) -> tuple[int, float]:
    """Move columns; return (bytes moved, seconds frozen).

    known_finished: marks of the source that are here already. ahead: copy buckets before they are frozen, too.
    """
    epoch = moved_bytes = 0
    life = here.layout.rows.expire_samples if ahead else 0
    begun_at = source.applied().samples if life else None
    for _ in range(_AHEAD_COPIES if ahead else 0):
        before, epoch = epoch, source.next_epoch()
        try:
            copied_bytes = _copy_buckets(here, source, columns, before, pace=_PACE)
        except (InputRefused, StoreFull, OSError) as error:  # nothing is frozen yet
            raise _unfit(source, columns, error) from error
        moved_bytes += copied_bytes
        if copied_bytes <= _AHEAD_BYTES:
            break
    begun = time.perf_counter()
    frozen = _freeze(source, columns, epoch, known_finished)
    try:
        if begun_at is not None and (frozen.progress.samples - begun_at)[[*columns]].max() > WRAPPED * life:
            # rows that expired at the source since they were copied would not be known here
            epoch, frozen = 0, replace(frozen, rows=None)
        moved_bytes += _copy(here, source, columns, frozen, epoch)
        states = source.own()[list(columns)]
        if not (states == Own.FROZEN).all():
            raise MigrationError(
                f"columns {columns[:8]} of ps-{source.server} were thawed by another mover while they were copied "
                f"(states {states.tolist()[:8]}); the copy is dropped: plan the move anew"
            )
        here.set_own(columns, Own.MINE, Own.NOT_MINE)
    except (StrettoError, InputRefused, StoreFull, OSError) as error:
        # the copy has no owner and does no harm; the source continues
        source.set_own(columns, Own.MINE, Own.FROZEN)
        if isinstance(error, StrettoError):
            raise
        raise _unfit(source, columns, error) from error
    frozen_seconds = time.perf_counter() - begun
    source.set_own(columns, Own.NOT_MINE, Own.FROZEN)  # its rows are dropped when all have moved
    return moved_bytes, frozen_seconds


def _unfit(source: Control, columns: tuple[int, ...], error: Exception) -> MigrationError:
    return MigrationError(f"columns {columns[:8]} of ps-{source.server} do not fit here: {error}")


def _freeze(source: Control, columns: tuple[int, ...], since_epoch: int, known_finished: int) -> Frozen:
    """Freeze columns that are MINE at the source, all or none; return what changed after an epoch, if it has room.

    A column that another mover froze is not taken: it is waited for without holding any other of the group. Raises
    MigrationError.
    """
    deadline = time.monotonic() + _OTHERS_FREEZE_S
    while (frozen := source.freeze_and_export(columns, since_epoch, _RANGE_BYTES, known_finished)) is None:
        states = source.own()[list(columns)]
        if (states == Own.NOT_MINE).any() or time.monotonic() > deadline:
            raise MigrationError(
                f"columns {columns[:8]} cannot be taken from ps-{source.server} (states {states.tolist()[:8]}: "
                "0 not owned there, 2 frozen by another mover); read ownership again and plan the move anew: "
                "the plan lets the owner thaw a column that a dead mover froze"
            )
        time.sleep(_POLL_S)
    return frozen


def _copy_buckets(
    here: LockedStore,
    source: Control,
    columns: tuple[int, ...],
    since_epoch: int = 0,
    *,
    pace: float = 0.0,
) -> int:
    """Copy rows with their slots from source to here: all, or only rows changed after an epoch; return the bytes.

    They are copied by ranges, of one bucket or of several, so that neither a message nor a pause of the source grows
    with them. While buckets are trained, rows change and are appended between two ranges. All of these rows have a
    later epoch than the epoch that ended before the copy, so the difference that follows under the freeze has them. A
    frozen bucket does not change. The first range of a whole copy replaces what a move that broke off may have left.
    """
    moved_bytes = table = first = 0
    buckets = [column for column in columns if column < BUCKETS]
    while buckets:
        begun, is_begun = time.perf_counter(), bool(table or first)
        found, table, first = source.export_ranges(buckets, since_epoch, table, first, _RANGE_BYTES)
        here.import_ranges(
            [
                (bucket, raw, not since_epoch and not (is_begun and number == 0))
                for number, (bucket, raw) in enumerate(zip(buckets, found, strict=False))
            ]
        )
        moved_bytes += sum(each.nbytes for raw in found for each in raw)
        buckets = buckets[len(found) - bool(table or first) :]
        if pace:
            time.sleep(pace * (time.perf_counter() - begun))
    return moved_bytes


def _copy(
    here: LockedStore,
    source: Control,
    columns: tuple[int, ...],
    frozen: Frozen,
    since_epoch: int = 0,
) -> int:
    """Copy values, slots, progress and counters of frozen columns from source to here; return the bytes.

    frozen: what came as they were frozen. Rows are copied if they changed after `since_epoch` (0: all rows): the other
    rows are here already. So are the marks that progress lacks. Marks of shards that finished since must come with the
    records, which have lost these shards: without a mark, a late push for such a shard would find offset 0 here.
    """
    buckets = [column for column in columns if column < BUCKETS]
    moved_bytes = frozen.nbytes
    if frozen.rows is None:
        moved_bytes = _copy_slices(here, source, columns, frozen) + _copy_buckets(here, source, columns, since_epoch)
    has_policy = here.layout.rows != EVERY_KEY
    policies = {bucket: source.export_policy(bucket) for bucket in buckets if has_policy}
    with here.turn.alone():
        store = here.unlocked
        if frozen.rows is not None:
            _take_rows(store, buckets, frozen, replaces=not since_epoch)
        for bucket, policy in policies.items():
            store.import_policy(bucket, policy)
        store.merge_columns(columns, frozen.progress)
    return moved_bytes + sum(policy.nbytes for policy in policies.values())


def _copy_slices(here: LockedStore, source: Control, columns: tuple[int, ...], frozen: Frozen) -> int:
    """Copy frozen dense slices from source to here, those that came first; return the bytes."""
    moved_bytes = done = 0
    slices: I64 = np.array([c - BUCKETS for c in columns if c >= BUCKETS], np.int64)
    raw, count = frozen.slices, max(1, _RANGE_BYTES // RowFormat.of_slices(here.layout).row_bytes)
    while done < len(slices):
        raw = raw or source.export_slices(slices[done : done + count])
        here.import_slices(raw)
        moved_bytes += raw.nbytes
        done, raw = done + len(raw.ids), None
    return moved_bytes


def _take_rows(store: Store, buckets: list[int], frozen: Frozen, *, replaces: bool) -> None:
    """Write slices and rows that all came as they were frozen: instead of those that are here, or as a difference."""
    if frozen.slices is not None:
        store.import_slices(frozen.slices)
    for bucket in buckets if replaces else ():
        store.drop_bucket(bucket)
    store.import_changes(buckets, frozen.rows or ())


def _empty_leftovers(control: LockedStore | Control) -> None:
    """Empty the buckets that are not owned but hold rows, left by a move that broke off."""
    sizes = control.raw_sizes()
    own = control.own()
    for bucket in np.flatnonzero((own[:BUCKETS] == Own.NOT_MINE) & (sizes > 0)):
        control.drop_bucket(int(bucket))


def _await_steps(here: LockedStore, source: Control, wait_s: float, active_s: float) -> None:
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
