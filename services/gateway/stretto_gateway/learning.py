"""The data of a job and its learning curve: arrived partitions, and evaluations while it trains."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import singledispatchmethod

from stretto_messages.base import Message
from stretto_messages.dispatcher import EvaluationMeasured, ShardAbandoned
from stretto_messages.gateway import DataArrived
from stretto_messages.values import PARTITIONS_MAX, DataPartition
from stretto_wire.rest.views import OVER, DataView, JobView, LearningPoint, PartitionView

from .folding import Fold, record
from .problems import Problem

CURVE_POINTS = 500


class LearningFold(Fold):
    """Data and evaluations."""

    @singledispatchmethod
    def fold(self, message: Message) -> None:
        """Ignore messages of other kinds."""

    @fold.register
    def _(self, message: DataArrived) -> None:
        data = self.view.data
        data.last_seq = self.seq
        if not data.growing:
            return
        take(data, message.partitions)
        data.growing = not message.closed
        self.view.progress.samples_total = data.samples

    @fold.register
    def _(self, message: ShardAbandoned) -> None:
        self.view.data.given_up += message.shard.length - message.shard.offset

    @fold.register
    def _(self, message: EvaluationMeasured) -> None:
        found = message.evaluation
        point = LearningPoint(
            self.time_s,
            message.samples_done,
            message.samples_done_after,
            found.samples,
            found.loss,
            found.auc,
            found.metrics,
        )
        record(self.view.learning, point, CURVE_POINTS)


def take(data: DataView, partitions: tuple[DataPartition, ...]) -> None:
    """Set the totals of partitions; none of them shrinks."""
    for part in partitions:
        known = data.partitions.get(part.name)
        samples = max(part.samples, known.samples if known else 0)
        data.samples += samples - (known.samples if known else 0)
        data.partitions[part.name] = PartitionView(samples, part.priority)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A user's statement about a job's data: totals of partitions, and whether more will come."""

    partitions: tuple[DataPartition, ...] = field(default=())
    closed: bool = False


def arrival(view: JobView, wanted: Wanted) -> DataArrived | None:
    """Return the event for a statement, or None if it says nothing new. Raises Problem for an impossible one."""
    job, data = view.name, view.data
    names = [part.name for part in wanted.partitions]
    if (twice := next((name for name in names if names.count(name) > 1), None)) is not None:
        raise Problem(
            422,
            "twice",
            f"{twice} is listed {names.count(twice)} times",
            field="partitions",
            value=twice,
            remedy="each partition once, with its total",
        )
    news = tuple(part for part in wanted.partitions if data.partitions.get(part.name) != _shown(part))
    for part in news:
        known = data.partitions.get(part.name)
        if known is not None and part.samples < known.samples:
            raise Problem(
                409,
                "shrinks",
                f"{part.name} of {job} has {known.samples:,} samples already",
                field="samples",
                value=part.samples,
                remedy=f"its total, at least {known.samples}: a partition only grows",
            )
        if part.name == view.spec.dataset.held_out:
            raise Problem(
                409,
                "held-out",
                f"{part.name} is the partition on which {job} is evaluated",
                field="partition",
                value=part.name,
                remedy="another name; held-out samples are never trained",
            )
    if not view.spec.dataset.growing and (news or wanted.closed):
        raise Problem(
            409,
            "not-growing",
            f"the dataset of {job} does not grow",
            field="job",
            value=job,
            remedy="it completes by itself when all it has is trained; data can be added to, and closed for, "
            "a job with `growing: true` in its dataset",
        )
    if not news and (not wanted.closed or not data.growing):
        return None
    if not data.growing or view.status in OVER:
        was = "was closed" if not data.growing else f"is that of a job that has {view.status}"
        raise Problem(
            409,
            "closed",
            f"the dataset of {job} {was}",
            field="job",
            value=job,
            remedy="nothing can be added any more; submit another job",
        )
    count = len(data.partitions.keys() | {part.name for part in news})
    if count > PARTITIONS_MAX:
        raise Problem(
            409,
            "too-many",
            f"{job} would have {count} partitions",
            field="partition",
            value=news[-1].name,
            remedy=f"at most {PARTITIONS_MAX}; add to an existing one",
        )
    return DataArrived(job=job, partitions=news, closed=wanted.closed)


def _shown(part: DataPartition) -> PartitionView:
    return PartitionView(part.samples, part.priority)
