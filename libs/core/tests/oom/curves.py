"""Generated growth of categories, as the forecast has to meet it, and the memory that the parameter store makes of it.

Growth over the samples is a power law (Heaps), a saturation, or the distinct values of a Zipf stream over a finite
vocabulary, with a linear part; then bursts, a late surge, buckets of uneven size, plateaus, or an end of all growth.
Memory is a base, the rows with their entries, and an index that doubles at another load in each bucket
(libs/parameters; ``python -m tests.bench --only memory_law`` measures the real one).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

FAMILIES = ("steady", "bursty", "late-surge", "skewed")
KINDS = (*FAMILIES, "surge-seen")
"""the last: a surge within the first third, which a forecast from there can know"""

BUCKETS = 64
FIRST_SLOTS, SLOT_BYTES = 1024, 4
LOADS = 0.60 + 0.15 * np.arange(BUCKETS) / BUCKETS
"""load at which the index of each bucket doubles"""
INDEX_BYTES = 8.6
"""a row's share of the index in the mean"""
BASE_SD_BYTES = 2e6
"""error of reading the base"""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """One job at T moments: ``samples`` trained [T], ``rows`` of every bucket [T, BUCKETS].

    ``payload_bytes`` of a row are its weights, slots and entry. ``stops`` tells that growth ended before the job;
    ``changes``, that after the first third it follows another law than before: what it comes to cannot be known there.
    """

    family: str
    samples: NDArray[np.int64]
    rows: Floats
    base_bytes: float
    payload_bytes: float
    noise: Floats
    split: tuple[range, ...]
    stops: bool = False
    changes: bool = False

    @property
    def servers(self) -> int:
        return len(self.split)

    @property
    def row_bytes(self) -> float:
        """Bytes of a row, as a server tells them."""
        return self.payload_bytes + INDEX_BYTES

    @cached_property
    def _bytes(self) -> Floats:
        """Bytes of every bucket [T, BUCKETS]."""
        return bytes_of(self.rows, np.arange(BUCKETS), self.payload_bytes)

    def table_bytes(self, buckets: range) -> Floats:
        """Exact bytes of a server with these buckets, as it tells them [T]."""
        return self._bytes[:, buckets].sum(1)

    def used_bytes(self, buckets: range, pod: int) -> Floats:
        """Resident memory of a server with these buckets, as it is measured [T]."""
        return self.base_bytes + self.table_bytes(buckets) + BASE_SD_BYTES * self.noise[:, pod % BUCKETS]


def bytes_of(rows: Floats, buckets: NDArray[np.int64], payload_bytes: float) -> Floats:
    """Bytes of buckets that hold ``rows`` [..., buckets]."""
    doublings = np.ceil(np.log2(np.maximum(rows, 1) / (LOADS[buckets] * FIRST_SLOTS)))
    return rows * payload_bytes + SLOT_BYTES * FIRST_SLOTS * 2.0 ** np.maximum(doublings, 0)


def split(buckets: int, servers: int) -> list[range]:
    """Neighbouring buckets for each server, as evenly as can be."""
    edges = [buckets * index // servers for index in range(servers + 1)]
    return [range(low, high) for low, high in pairwise(edges)]


def generate(family: str, seed: int, moments: int = 120) -> Curve:
    """The same curve for the same ``family`` and ``seed``."""
    rng = np.random.default_rng([seed, KINDS.index(family)])
    samples = np.cumsum(rng.uniform(0.7, 1.3, moments))
    samples *= 10 ** rng.uniform(5, 8) / samples[-1]
    x = samples / samples[-1]
    steps = np.diff(_law(rng, x), prepend=0)
    if family == "bursty":
        period = int(rng.integers(3, 10))
        phase = (np.arange(moments) + rng.integers(0, period)) % period < max(1, period // 3)
        steps *= np.where(phase, rng.uniform(2, 4), rng.uniform(0.2, 0.6))
    if family == "late-surge":
        steps[x > rng.uniform(0.55, 0.8)] *= rng.uniform(2, 4)
    if family == "surge-seen":
        steps[x > rng.uniform(0.1, 0.26)] *= rng.uniform(2, 4)
    stops, changes = family != "late-surge" and rng.random() < 0.15, family == "late-surge"
    if stops:
        steps[x > rng.uniform(0.45, 0.75)] *= rng.uniform(0, 0.03)
    elif rng.random() < 0.3:
        begin = rng.uniform(0.15, 0.75)
        end = begin + rng.uniform(0.08, 0.2)
        steps[(x > begin) & (x < end)] *= rng.uniform(0, 0.1)
        changes |= end > 1 / 3
    steps *= rng.gamma(50, 1 / 50, moments)
    categories = np.cumsum(steps) / steps.sum() * 10 ** rng.uniform(5.5, 7.3)
    servers = int(rng.integers(1, 7))
    held = _split_unevenly(rng, servers) if family == "skewed" else split(BUCKETS, servers)
    rows = np.cumsum(np.diff(categories, prepend=0)[:, None] * _shares(rng, family, held, moments), axis=0)
    return Curve(
        family,
        samples.astype(np.int64),
        rows,
        base_bytes=float(rng.uniform(40e6, 120e6)),
        payload_bytes=float(rng.choice([84, 144, 212, 788])),
        noise=rng.standard_normal((moments, BUCKETS)),
        split=tuple(held),
        stops=stops,
        changes=changes or stops,
    )


def with_surge(curve: Curve, seed: int) -> Curve:
    """The same, but from one window to the next it grows ten times as fast, for a minute."""
    moment = int(np.random.default_rng([seed, 10]).uniform(0.3, 0.8) * len(curve.samples))
    steps = np.diff(curve.rows, axis=0, prepend=0)
    steps[moment : moment + 12] *= 10
    return replace(curve, rows=np.cumsum(steps, axis=0), changes=True)


def _law(rng: np.random.Generator, x: Floats) -> Floats:
    """Categories after the share ``x`` of the samples, 1 at the end."""
    kind = rng.choice(["power", "saturation", "zipf"], p=[0.6, 0.2, 0.2])
    drift = rng.uniform(0, 0.6)
    if kind == "power":
        grown = (1 - drift) * x ** rng.uniform(0.4, 0.9) + drift * x
    elif kind == "saturation":
        grown = -np.expm1(-x / rng.uniform(0.3, 1.5))
    else:  # expected distinct values: the sum over ranks of 1 - exp(-n p), ranks in logarithmic groups
        edges = np.unique(np.geomspace(1, 10 ** rng.uniform(5, 7), 300).astype(int)).astype(float)
        rank, width = np.sqrt(edges[:-1] * edges[1:]), np.diff(edges)
        chance = rank ** -rng.uniform(0.8, 1.4)
        drawn = edges[-1] * 10 ** rng.uniform(-0.5, 1.5) * x
        grown = (width * -np.expm1(-drawn[:, None] * chance / (width @ chance))).sum(1)
    return grown / grown[-1]


def _split_unevenly(rng: np.random.Generator, servers: int) -> list[range]:
    """Neighbouring buckets: one server may hold several times as many as another."""
    counts = 1 + rng.multinomial(BUCKETS - servers, rng.dirichlet(np.full(servers, 4.0)))
    edges = [0, *np.cumsum(counts).tolist()]
    return [range(low, high) for low, high in pairwise(edges)]


def _shares(rng: np.random.Generator, family: str, held: list[range], moments: int) -> Floats:
    """Share of every bucket in the new categories [T, BUCKETS]; a good hash is nearly even. Skew drifts with time."""
    even = np.tile(rng.dirichlet(np.full(BUCKETS, 1e5)), (moments, 1))
    if family != "skewed":
        return even
    drift = 1 + np.linspace(0, 1, moments)[:, None] * rng.normal(0, 0.1, len(held))
    shares = even * np.repeat(np.clip(drift, 0.2, None), [len(buckets) for buckets in held], axis=1)
    return shares / shares.sum(1, keepdims=True)
