"""What only the edge of the arbiter sees; journalled, so that decisions replay from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, MaxLen
from stretto_messages.base import Count, JobId, Message, Seconds, Text
from stretto_messages.values import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyDone(Message):
    """The answer to the study of that number; ``job``, which every message has, is one of those that it is about."""

    number: Count
    plans: Annotated[dict[JobId, Plan], MaxLen(1000)]
    gap: Annotated[float | None, Ge(0)]
    took_s: Seconds
    fault: Text


OBSERVATIONS = (StudyDone,)
