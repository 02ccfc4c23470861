"""Observations of the arbiter's edge: journalled, so that decisions replay from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, MaxLen
from stretto_messages.base import Count, JobId, Message, Seconds, Text
from stretto_messages.values import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyDone(Message):
    """The background algorithm has answered the study of this number; ``job`` is one of those that it is about.

    ``plans``: the plans that it gives to jobs; it gives none to its other jobs. ``gap``: proven, as a share of the
    bound; None: nothing is. ``fault``: why there is no answer.
    """

    number: Count
    plans: Annotated[dict[JobId, Plan], MaxLen(1000)]
    gap: Annotated[float | None, Ge(0)]
    took_s: Seconds
    fault: Text = ""
