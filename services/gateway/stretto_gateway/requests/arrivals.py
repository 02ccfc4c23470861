"""Statements of users about the data of a growing job, and the events that they become."""

from __future__ import annotations

from dataclasses import dataclass, field

from stretto_messages.gateway import DataArrived
from stretto_messages.values import PARTITIONS_MAX, DataPartition
from stretto_wire.rest.views import OVER, JobView, PartitionView

from ..problems import Problem


@dataclass(frozen=True, slots=True)
class DataStatement:
    """A user's statement about a job's data: totals of partitions, and whether the data is complete."""

    partitions: tuple[DataPartition, ...] = field(default=())
    closed: bool = False


def arrival(view: JobView, statement: DataStatement) -> DataArrived | None:
    """Return the event for a statement; None if the statement says nothing new. Raises Problem for an impossible
    one."""
    job, data = view.name, view.data
    names = [part.name for part in statement.partitions]
    if (twice := next((name for name in names if names.count(name) > 1), None)) is not None:
        raise Problem(
            422,
            "twice",
            f"{twice} is listed {names.count(twice)} times",
            field="partitions",
            value=twice,
            remedy="each partition once, with its total",
        )
    news = tuple(part for part in statement.partitions if data.partitions.get(part.name) != _shown(part))
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
    if not view.spec.dataset.growing and (news or statement.closed):
        raise Problem(
            409,
            "not-growing",
            f"the dataset of {job} does not grow",
            field="job",
            value=job,
            remedy="it completes by itself when all it has is trained; data can be added to, and closed for, "
            "a job with `growing: true` in its dataset",
        )
    if not news and (not statement.closed or not data.growing):
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
    return DataArrived(job=job, partitions=news, closed=statement.closed)


def _shown(part: DataPartition) -> PartitionView:
    return PartitionView(part.samples, part.priority)
