"""Observation of the arbiter: a journalled input, from which its decisions replay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, MaxLen
from stretto_messages.base import Count, JobId, Message, Seconds, Text
from stretto_messages.values import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundSolved(Message):
    """The background solve of this number has ended; ``job`` is one of its jobs.

    ``plans``: the plans that it chose, by job; its other jobs keep theirs. ``gap``: the proven one, as a share of the
    bound; None: none is proven. ``fault``: the reason if there is no answer.
    """

    number: Count
    plans: Annotated[dict[JobId, Plan], MaxLen(1000)]
    gap: Annotated[float | None, Ge(0)]
    took_s: Seconds
    fault: Text = ""
