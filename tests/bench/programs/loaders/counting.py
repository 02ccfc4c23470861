"""Lost and repeated samples, pauses and speed, counted in the journals of workers.

A worker writes a journal: its first line says from which checkpoint it began, and each further one is a batch, written
at once when it is computed. Two counts:

- by *effects*: each line of any worker counts, whatever became of that worker.
- by *surviving parameters*: a worker that begins from a checkpoint forgets what was trained after it. What counts is
  what the last group trained, what its checkpoint's group had trained up to there, and so on back to the beginning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Trained:
    """A batch: the step of its group, when the batch was done, and the numbers of its samples."""

    step: int
    at_s: float
    samples: tuple[int, ...]


@dataclass(slots=True)
class Group:
    """Workers that began together, or one that began alone.

    origin: group and step of the checkpoint that they began from; None: the start of the data.
    """

    origin: tuple[int, int] | None = None
    batches: list[Trained] = field(default_factory=list[Trained])


@dataclass(frozen=True, slots=True)
class Count:
    """lost: samples that count nowhere. repeated: samples beyond the first time, each time."""

    lost: int
    repeated: int


def first_line(origin: tuple[int, int] | None) -> bytes:
    """Return the first line of a journal."""
    return ("from " + " ".join(map(str, origin)) if origin else "from-the-start").encode() + b"\n"


def line(step: int, at_s: float, samples: Iterable[int]) -> bytes:
    """Return a batch's line of a journal."""
    return f"{step} {at_s:.6f} {','.join(map(str, samples))}\n".encode()


def samples_in(journal: bytes) -> int:
    """Return how many samples a journal tells; a line that is not whole may be counted in part."""
    return journal.count(b",") + journal.count(b"\n") - 1 if journal else 0


def read(journals: Iterable[tuple[int, bytes]]) -> dict[int, Group]:
    """Return the groups of journals, of which each is given with its group's number. A torn last line is left out."""
    groups: dict[int, Group] = {}
    for number, journal in journals:
        begin, *rest = journal.decode().split("\n")[:-1] or ["from-the-start"]
        group = groups.setdefault(number, Group())
        if begin.startswith("from "):
            origin, step = map(int, begin.split()[1:])
            group.origin = (origin, step)
        for each in rest:
            step_text, at_s, samples = each.split(" ")
            group.batches.append(Trained(int(step_text), float(at_s), tuple(map(int, samples.split(",")))))
    return groups


def surviving(groups: Mapping[int, Group]) -> Iterator[Trained]:
    """Yield the batches that are in the parameters of the group that began last."""
    number: int | None = max(groups, default=None)
    until: int | None = None
    while number is not None:
        group = groups[number]
        yield from (each for each in group.batches if until is None or each.step <= until)
        number, until = group.origin or (None, None)


def counted(batches: Iterable[Trained], samples: int) -> Count:
    """Count what is lost of so many samples, and what is repeated."""
    times = Counter(sample for each in batches for sample in each.samples)
    return Count(lost=samples - len(times), repeated=times.total() - len(times))


def longest_gap_s(batches: Sequence[Trained]) -> float:
    """Return the longest time without a batch of any worker, between the first and the last one."""
    moments = sorted(each.at_s for each in batches)
    return max((later - earlier for earlier, later in pairwise(moments)), default=0.0)


def samples_per_s(batches: Sequence[Trained], samples: int) -> float:
    """Return the samples of the data set a second, from the first to the last batch: repeats are no progress."""
    moments = [each.at_s for each in batches]
    return samples / (max(moments) - min(moments))
