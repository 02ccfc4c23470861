"""Any number of Criteo-like samples from a seed: planted signal, Zipf categories, new categories over time.

A sample depends on the seed and its index only. The counter-based generator Philox (Salmon et al. 2011) advances to
any sample in constant time, so random access costs the same as sequential access.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from . import Batch, check_range, log_counts

INTEGERS = 13
CATEGORIES = 26

_DRAWS = 40
"""64-bit numbers per sample: 13 integers, 26 categories, 1 label; a multiple of Philox's 4 per counter."""

_MISSING = 0.05
_RECENT_DRAWS = 3.0
"""How often a new category is drawn, on average, in the time when it is the newest of its field."""
_RECENT_MEAN = 20.0
"""Mean age, in categories, of the recent ones drawn: a new item is popular for a while."""


@dataclass(frozen=True, slots=True)
class RawSamples:
    """Samples as in a Criteo file: counts and 32-bit category codes, each with a mask of missing values."""

    label: NDArray[np.int8]
    integers: NDArray[np.int64]
    integers_missing: NDArray[np.bool_]
    codes: NDArray[np.uint32]
    codes_missing: NDArray[np.bool_]


class Synthetic:
    """A generator of Criteo-like data.

    seed: another seed gives other categories, weights and samples. categories: the number known at the first sample,
    over all 26 fields (sizes from a handful to a third of them, Zipf-distributed). new_categories: the number that
    appears, evenly, over the first ``samples`` samples (and later at the same rate). signal: standard deviation of the
    planted logit; with 2 the best possible model reaches an AUC of about 0.85.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        categories: int = 50_000,
        new_categories: int = 0,
        samples: int = 1_000_000,
        signal: float = 2.0,
    ) -> None:
        if categories < 1000:
            raise DataError(f"categories = {categories}: at least 1000, spread over {CATEGORIES} fields")
        if new_categories < 0 or samples < 1:
            raise DataError(f"new_categories = {new_categories}, samples = {samples}: not negative, at least 1")
        if new_categories / samples > CATEGORIES / 2 / _RECENT_DRAWS:
            raise DataError(
                f"new_categories = {new_categories} in {samples} samples are more than a sample can name: "
                f"at most {CATEGORIES / 2 / _RECENT_DRAWS:.1f} a sample"
            )
        self.seed = seed
        self._key = (seed & (2**64 - 1), 0x5374726574746F)
        # half of the fields are small and constant, as in Criteo; the other half share the categories and grow
        small = np.round(np.geomspace(4, 100, CATEGORIES // 2)).astype(np.int64)
        large = np.geomspace(1, 200, CATEGORIES - len(small))
        large = np.maximum(10, large / large.sum() * (categories - small.sum())).astype(np.int64)
        self._sizes = np.stack([small, large], axis=1).reshape(-1)
        growth = np.zeros(CATEGORIES)
        growth[1::2] = new_categories / samples / len(large)
        self._growth = growth
        rng = np.random.Generator(np.random.Philox(key=[seed & (2**64 - 1), 1]))
        self._strength = rng.normal(size=CATEGORIES) * np.where(np.arange(CATEGORIES) % 2, 0.6, 1.0)
        self._strength *= signal * 0.8 / np.linalg.norm(self._strength)
        self._slopes = rng.normal(size=INTEGERS)
        self._slopes *= signal * 0.5 / np.linalg.norm(self._slopes)
        self._crossed = signal * 0.35
        self._salts = rng.integers(1, 2**63, size=CATEGORIES, dtype=np.uint64)
        self._offset = 0.0
        # whatever the seed, about 3 of 10 labels are positive
        self._offset = float(np.quantile(self._samples(0, 4096)[1], 0.5)) + 1.0

    def read(self, start: int, length: int) -> Batch:
        """Return samples [start, start + length): ``label``, ``numeric``, ``categorical``."""
        raw = self.raw(start, length)
        return {
            "label": raw.label.astype(np.float32),
            "numeric": log_counts(raw.integers, raw.integers_missing),
            "categorical": np.where(raw.codes_missing, 0, raw.codes.astype(np.int64) + 1),
        }

    def raw(self, start: int, length: int) -> RawSamples:
        """Return the same samples as a Criteo file would hold them."""
        check_range(start, length, None, "the generator")
        return self._samples(start, length)[0]

    def _samples(self, start: int, length: int) -> tuple[RawSamples, NDArray[np.float64]]:
        """Return the samples and the logits [n] from which their labels were drawn."""
        generator = np.random.Philox(key=self._key)
        generator.advance(start * (_DRAWS // 4))
        draws = generator.random_raw(length * _DRAWS).reshape(length, _DRAWS)
        # two independent numbers of 32 bits each: the value, and the chance of an exception (missing, recent)
        value = (draws >> np.uint64(32)).astype(np.float64) * 2.0**-32
        special = (draws & np.uint64(0xFFFFFFFF)).astype(np.float64) * 2.0**-32

        normal = _normal(value[:, :INTEGERS])
        integers = np.floor(np.exp(1.5 + normal)).astype(np.int64)
        integers_missing = special[:, :INTEGERS] < _MISSING

        ids = self._ids(start, value[:, INTEGERS:-1], special[:, INTEGERS:-1])
        taste = _normal_of(ids.view(np.uint64) ^ self._salts)
        logit = taste @ self._strength + np.where(integers_missing, 0.0, normal) @ self._slopes
        logit += self._crossed * (taste[:, 0] * taste[:, 2] + taste[:, 4] * taste[:, 6]) - self._offset
        label = (value[:, -1] < 1.0 / (1.0 + np.exp(-logit))).astype(np.int8)

        # a bijection of 32 bits per field: no two categories of a field share a code
        codes = (ids.astype(np.uint32) + self._salts.astype(np.uint32)) * np.uint32(0x9E3779B1)
        codes_missing = (special[:, INTEGERS:-1] > 1.0 - _MISSING) & (np.arange(CATEGORIES) % 4 == 3)
        return RawSamples(label, integers, integers_missing, codes, codes_missing), logit

    def _ids(self, start: int, value: NDArray[np.float64], special: NDArray[np.float64]) -> NDArray[np.int64]:
        """Draw category numbers [n, 26]: Zipf with exponent 1 over the old ones, sometimes a recent one."""
        ids = np.minimum(np.exp(value * np.log(self._sizes + 1.0)).astype(np.int64) - 1, self._sizes - 1)
        if not self._growth.any():
            return ids
        newest = self._growth * (start + np.arange(len(value), dtype=np.float64))[:, None]
        share = np.minimum(0.5, _RECENT_DRAWS * self._growth)
        # special < share: a recent one; within that, special is uniform again and gives its age
        recent = special < share
        with np.errstate(divide="ignore", invalid="ignore"):
            age = -_RECENT_MEAN * np.log1p(-np.where(recent, special / share, 0.0))
        fresh = np.floor(newest - age).astype(np.int64)
        return np.where(recent & (fresh >= 0), self._sizes + fresh, ids)


def _normal(uniform: NDArray[np.float64]) -> NDArray[np.float64]:
    """Draw nearly standard normal numbers: the logistic quantile scaled to variance 1, cheap and exact enough here."""
    clipped = np.clip(uniform, 2.0**-33, 1.0 - 2.0**-33)
    return np.log(clipped / (1.0 - clipped)) * (np.sqrt(3.0) / np.pi)


def _normal_of(bits: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Map each 64-bit value to a fixed, nearly normal number (SplitMix64 finaliser, sum of four 16-bit parts)."""
    z = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    parts = z.view(np.uint16).reshape(*z.shape, 4)
    total = parts.sum(axis=-1, dtype=np.int64).astype(np.float64)
    return (total - 2 * 65535.0) / (65535.0 * np.sqrt(4 / 12))
