"""When a partition saves its machines, and which of them. Pure."""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

from stretto_runtime.settings import Settings

MIN_SNAPSHOT_S = 0.2
QUIET = 30
"""Inputs without outputs (ticks, most telemetry) are cheap to replay: their snapshot waits this many times longer."""
BYTES_AN_INPUT = 2048
"""Saving this many bytes costs a third of handling one input: large documents wait for more inputs."""
INPUTS_A_DOCUMENT = 4
"""Inputs for each changed document that a snapshot takes to come before its time. Saving a small document costs as much
as handling an input (profiler, 1,000 jobs), and a partition of thousands of jobs would save one with every input."""
INPUTS_AWAITED_MOST = 5000
"""Inputs after which a snapshot comes however many documents they changed: a takeover replays what is in none."""
ALONE = 2
"""Changed documents for each one that is saved alone: of fewer, all are saved, and the place in the log moves on."""


class Unsaved(NamedTuple):
    """The number of inputs since the last snapshot, and the keys of the documents that they changed.

    ``news`` has the keys about which something was published since they were saved.
    """

    inputs: int
    dirty: Set[str]
    news: Set[str]


class LastSaves(NamedTuple):
    """Times, in seconds, at which everything was saved last, and at which anything was.

    ``everything_bytes``: the size of everything then.
    """

    everything_s: float
    news_s: float
    everything_bytes: int = 0


class NextSave(NamedTuple):
    """The next snapshot, at the time ``at_s``: whole, or of what was published about, alone.

    ``is_quiet``: it comes so late because nothing was published, or because it is large.
    """

    at_s: float
    is_whole: bool
    is_quiet: bool


def next_save(last: LastSaves, unsaved: Unsaved, settings: Settings) -> NextSave:
    """Return when the next snapshot is due, and whether it is whole.

    What was published about is saved alone beside many other changed documents: its decisions are dear to make again,
    while the other inputs are cheap to replay, and saving each of their documents costs as much as handling one.
    """
    size_bytes = last.everything_bytes
    whole_wait_s = wait_s(unsaved._replace(news=frozenset()), size_bytes, settings)
    whole = NextSave(last.everything_s + whole_wait_s, True, whole_wait_s > settings.snapshot_s)
    if not unsaved.news:
        return whole
    alone = ALONE * len(unsaved.news) <= len(unsaved.dirty) and unsaved.news <= unsaved.dirty
    if alone:
        size_bytes = size_bytes * len(unsaved.news) // len(unsaved.dirty)
    news_wait_s = wait_s(unsaved, size_bytes, settings)
    begun_s = last.news_s if alone else last.everything_s
    return min(whole, NextSave(begun_s + news_wait_s, not alone, news_wait_s > settings.snapshot_s))


def wait_s(unsaved: Unsaved, saved_bytes: int, settings: Settings) -> float:
    """Return the seconds from the last snapshot, of ``saved_bytes``, to the next one."""
    if unsaved.inputs * BYTES_AN_INPUT < saved_bytes:
        return settings.snapshot_s * QUIET
    worth_it = min(INPUTS_A_DOCUMENT * len(unsaved.dirty), INPUTS_AWAITED_MOST)
    if unsaved.inputs >= max(settings.snapshot_inputs, worth_it):
        return min(MIN_SNAPSHOT_S, settings.snapshot_s)
    return settings.snapshot_s * (1 if unsaved.news else QUIET)
