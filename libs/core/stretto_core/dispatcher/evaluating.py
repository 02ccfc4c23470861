"""Evaluation while training goes on: held-out samples in shards of their own, which never enter the books.

Workers take them between shards that train, and report sums that add up in any order: the log loss, and how many
positive and negative samples had a score in each of some bins. From these the area under the ROC curve is that of the
Mann-Whitney statistic with all scores of a bin tied. Its error is at most half the share of pairs within one bin.

Training goes on meanwhile: the result is of a model between the two published numbers of samples done. A window is
evaluated while nothing trains, and trained after: the result is of the model that all samples before it made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite

from stretto_messages.values import Evaluation, MetricValue, PartialEvaluation, measures

from stretto_core.dispatcher.book import Shard
from stretto_core.dispatcher.source import DataSpec, LedgerError, Range

SHARDS_MAX = 256


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Samples [start, start + samples) of ``partition``, evaluated whenever ``every`` more samples are done."""

    samples: int
    every: int
    start: int = 0
    partition: str = ""

    def __post_init__(self) -> None:
        for name in ("samples", "every"):
            if getattr(self, name) < 1:
                raise LedgerError(name, getattr(self, name), "at least 1")

    @property
    def range(self) -> Range:
        """The samples that are evaluated."""
        return Range(0, self.start, self.samples, self.partition)

    def after(self, samples_done: int) -> int:
        """Return the number of samples done at which the next evaluation is due."""
        return (samples_done // self.every + 1) * self.every


@dataclass(slots=True)
class Best:
    """The best evaluation so far by one metric, and how many in a row were not better since."""

    metric: str
    is_higher_better: bool
    least_gain: float = 0.0
    patience: int | None = None
    """Evaluations that are not better, after which training stops; None: never."""
    value: float | None = None
    samples_done: int = 0
    not_better: int = 0

    def judge(self, found: Evaluation, samples_done: int) -> bool:
        """Note an evaluation; return True if it is the best one. One without the metric is not."""
        value = measures(found).get(self.metric)
        if value is None:
            return False
        sign = 1.0 if self.is_higher_better else -1.0
        if self.value is not None and sign * (value - self.value) <= self.least_gain:
            self.not_better += 1
            return False
        self.value, self.samples_done, self.not_better = value, samples_done, 0
        return True

    def return_to(self, samples_done: int) -> None:
        """Forget the evaluations of models that were trained on more than ``samples_done``: a return undid them."""
        self.not_better = 0
        if self.samples_done > samples_done:
            self.value, self.samples_done = None, 0

    @property
    def verdict(self) -> str:
        """Why training stops; empty while it goes on."""
        if self.patience is None or self.value is None or self.not_better < self.patience:
            return ""
        better = "above" if self.is_higher_better else "below"
        gain = f" by more than {self.least_gain:g}" if self.least_gain else ""
        times = "the last evaluation was" if self.not_better == 1 else f"the last {self.not_better} evaluations were"
        return (
            f"{times} not {better} the best {self.metric}, {self.value:.6g} at {self.samples_done:,} samples{gain} "
            f"(best.patience = {self.patience})"
        )


def check_evaluation(found: PartialEvaluation, shard: Shard) -> None:
    """Raise LedgerError when the evaluation cannot be of this shard."""
    counted = sum(found.positives) + sum(found.negatives)
    if not found.samples == counted == shard.length:
        raise LedgerError("evaluation.samples", found.samples, f"{shard.length}, in bins ({counted} are), as in it")


@dataclass(slots=True)
class Evaluating:
    """A running evaluation: the waiting shards, the number of leased ones, and the sums so far."""

    samples_done: int
    waiting: list[Shard]
    partition: str = ""
    window: Range | None = None
    """Samples that are trained once this evaluation of them is over."""
    held: int = 0
    samples: int = 0
    loss_sum: float = 0.0
    loss_name: str = ""
    positives: list[int] = field(default_factory=list[int])
    negatives: list[int] = field(default_factory=list[int])
    metric_sums: dict[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    """By name: total and count."""

    @classmethod
    def begin(
        cls, of: Range, data: DataSpec, samples_done: int, first_id: int, window: Range | None = None
    ) -> Evaluating:
        """All shards wait; their ids count from ``first_id``."""
        batches = max(data.batches_per_shard, -(-of.length // (SHARDS_MAX * data.batch_size)))
        size = batches * data.batch_size
        end = of.start + of.length
        starts = range(of.start, end, size)
        shards = [
            Shard(first_id + i, 0, 0, start, min(size, end - start), partition=of.partition, held_out=True)
            for i, start in enumerate(starts)
        ]
        return cls(samples_done, shards, of.partition, window)

    @property
    def over(self) -> bool:
        """True if every shard has been reported, or given up."""
        return not self.waiting and not self.held

    def lease(self) -> Shard:
        """Lease the next shard, under a new attempt."""
        shard = self.waiting.pop(0)
        shard.attempt += 1
        self.held += 1
        return shard

    def take_back(self, shard: Shard) -> None:
        """Take a shard back: its holder is gone, and its result was never reported."""
        self.held -= 1
        shard.offset = 0
        self.waiting.append(shard)

    def add(self, found: PartialEvaluation) -> None:
        """Add the sums of a shard that was held."""
        self.held -= 1
        self.samples += found.samples
        self.loss_sum += found.loss_sum
        self.loss_name = found.loss_name or self.loss_name
        self.positives = _sums(self.positives, found.positives)
        self.negatives = _sums(self.negatives, found.negatives)
        for each in found.metrics:
            total, count = self.metric_sums.get(each.name, (0.0, 0.0))
            self.metric_sums[each.name] = (total + each.total, count + each.count)

    def give_up(self) -> None:
        """Give up a leased shard that cannot be read: the result covers the others."""
        self.held -= 1

    @property
    def loss(self) -> float:
        """Mean log loss, or of the model's own loss at least 0; workers report that as a metric, as it may be less."""
        total, count = self.metric_sums.get("loss", (0.0, 0.0))
        return max(0.0, total / count) if count == self.samples else self.loss_sum / self.samples

    @property
    def metrics(self) -> tuple[MetricValue, ...]:
        """The user's metrics that are means."""
        sums = self.metric_sums.items()
        means = ((name, total / count) for name, (total, count) in sums if count)
        return tuple(MetricValue(name=name, value=mean) for name, mean in means if isfinite(mean))

    @property
    def auc(self) -> float:
        """Area under the ROC curve; 0.5 when only one label occurs."""
        below = concordant = 0
        for positive, negative in zip(self.positives, self.negatives, strict=True):
            concordant += positive * (2 * below + negative)  # twice the pairs, ties by half
            below += negative
        pairs = sum(self.positives) * below
        return concordant / (2 * pairs) if pairs else 0.5


def _sums(one: Sequence[int], other: Sequence[int]) -> list[int]:
    return [a + b for a, b in zip(one, other, strict=True)] if one else list(other)
