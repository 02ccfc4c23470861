"""Folds of events about a job's data and its learning curve: arrived partitions, and evaluations while it trains."""

from __future__ import annotations

from functools import singledispatchmethod

from stretto_messages.base import Message
from stretto_messages.books import GivenUp
from stretto_messages.dispatcher import EvaluationMeasured, ShardAbandoned
from stretto_messages.gateway import DataArrived
from stretto_messages.values import DataPartition
from stretto_wire.rest.views import DataView, LearningPoint, PartitionView, quality_of

from .fold import GIVEN_UP_SHOWN, Fold, push, record

CURVE_POINTS = 500


class LearningFold(Fold):
    """Fold of events about data and evaluations."""

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
        shard, data = message.shard, self.view.data
        data.given_up += shard.length - shard.offset
        lost = GivenUp(
            shard=shard.id,
            offset=shard.offset,
            epoch=shard.epoch,
            start=shard.start + shard.offset,
            length=shard.length - shard.offset,
            reason=message.reason,
            partition=shard.partition,
        )
        push(data.given_up_last, lost, GIVEN_UP_SHOWN)

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
            found.loss_name,
            message.partition,
            message.trained_next,
            message.best,
        )
        record(self.view.learning, point, CURVE_POINTS)
        self.view.quality = quality_of(found)


def take(data: DataView, partitions: tuple[DataPartition, ...]) -> None:
    """Set the totals of partitions. A smaller total than before changes nothing."""
    for part in partitions:
        known = data.partitions.get(part.name)
        samples = max(part.samples, known.samples if known else 0)
        data.samples += samples - (known.samples if known else 0)
        data.partitions[part.name] = PartitionView(samples, part.priority)
