"""Points of metrics made from stored events: how good a job's model is, and how fast it trains."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from stretto_bus.reading.ordered_consumer import Stored
from stretto_messages.actuator import JobFailed, JobFinished
from stretto_messages.base import Message
from stretto_messages.dispatcher import EvaluationMeasured, JobProgressed
from stretto_messages.gateway import JobCancelled
from stretto_messages.values import Evaluation, measures
from stretto_wire import channel_at, decode

OF_METRICS: tuple[type[Message], ...] = (JobProgressed, EvaluationMeasured, JobFinished, JobFailed, JobCancelled)
_ENDS: dict[type[Message], str] = {JobFinished: "FINISHED", JobFailed: "FAILED", JobCancelled: "KILLED"}


@dataclass(frozen=True, slots=True)
class Points:
    """The points of an event. step: samples done. seq, time_s: of the event. end: MLflow's word for a job's end."""

    job: str
    seq: int
    time_s: float
    step: int = 0
    values: dict[str, float] = field(default_factory=dict[str, float])
    end: str = ""


def points_of(stored: Stored) -> Points:
    """Return the points of an event of :data:`OF_METRICS`. Raises WireError."""
    kind = channel_at(stored.subject).message
    message = decode(kind, stored.data)
    step, values = 0, dict[str, float]()
    if isinstance(message, JobProgressed):
        step, values = message.samples_done, {"samples_per_s": message.samples_per_s}
    elif isinstance(message, EvaluationMeasured):
        step, values = message.samples_done, _named(message.evaluation)
    elif isinstance(message, JobFinished):
        rows = {name: float(count) for name, count in asdict(message.applied.rows).items() if count}
        step, values = message.samples_applied, rows | (_named(message.evaluation) if message.evaluation else {})
    return Points(message.job, stored.seq, stored.time_s, step, values, _ENDS.get(kind, ""))


def _named(evaluation: Evaluation) -> dict[str, float]:
    return {f"evaluation/{name}": value for name, value in measures(evaluation).items()}
