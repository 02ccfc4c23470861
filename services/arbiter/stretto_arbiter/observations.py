"""What only the edge of the arbiter sees; journalled, so that decisions replay from it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from stretto_wire import Message
from stretto_wire.base import Count, JobId, Seconds, Text
from stretto_wire.values import Plan


class StudyDone(Message):
    """The answer to the study of that number; ``job``, which every message has, is one of those that it is about."""

    number: Count
    plans: Annotated[dict[JobId, Plan], Field(max_length=1000)]
    gap: Annotated[float | None, Field(ge=0)]
    took_s: Seconds
    fault: Text


OBSERVATIONS = (StudyDone,)
