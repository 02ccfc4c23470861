"""Observations of the decider: journalled inputs, from which its decisions replay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, MaxLen
from stretto_messages.base import Count, Message, Name, Record, Text


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectFound(Message):
    """An object asks for a size; ``spec`` is the job that planner and arbiter shall see, as JSON."""

    spec: Annotated[str, MaxLen(20_000)]
    least: Annotated[int, Ge(1)]
    """Fewest pods that the object may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSeen(Record):
    """A workload of the object that has not finished; while the object grows, there are two."""

    name: Name
    count: Count
    state: Literal["pending", "admitted", "evicted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectObserved(Message):
    """The object as the API server shows it, with its workloads and the room in its queue."""

    decision: Count
    """Number of the last decision that was written into the object; 0: none."""
    count: Count
    """Pods that the object's specification asks for."""
    active: Count
    ready: Count
    terminating: Count
    due: Count | None = None
    """Pods that run of those asked for, as completions have work for no more; None: all of them."""
    most: Count | None = None
    """Pods that completions have work for; None: any number."""
    suspended: bool = False
    gated: bool = False
    """The object may not be admitted before Stretto has decided its size."""
    fixed: bool = False
    """The size may change only while the object waits: Kueue stops all pods at a change of an object not elastic."""
    ending: Literal["", "complete", "failed", "gone"] = ""
    ending_reason: Text = ""
    workloads: Annotated[tuple[WorkloadSeen, ...], MaxLen(10)] = ()
    """Unfinished ones, the newest last."""
    room: Count
    """Further pods for which the queue has quota, counted by pods (``quota.free_pods``)."""
    vacant: Count = 0
    """The room if what others ask for, and Kueue has not admitted, did not count: a try of theirs does not move it."""
    others_wait: bool = False
    """Workloads of others wait in the queue: what gets free is theirs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchRefused(Message):
    """The API server refuses the patch of this decision for good: repeating it would bring the same answer."""

    number: Count
    reason: Text
