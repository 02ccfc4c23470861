"""The published law, for comparison: new categories are proportional to the samples (DLRover-RM section 5.3).

It knows no error: every interval is its mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stretto_core.oom.growth import Estimate, GrowthPoint, recent


@dataclass(frozen=True, slots=True)
class Line:
    """Growth of categories from the last point on."""

    samples: int
    categories: int
    per_sample: float

    def at(self, samples: float) -> Estimate:
        """Return the categories after ``samples`` in total; today's for a past count."""
        grown = self.categories + self.per_sample * max(0.0, samples - self.samples)
        return Estimate(grown, grown, grown)

    def course(self, samples: Sequence[float]) -> list[Estimate]:
        """Return the same for each of ``samples``."""
        return [self.at(each) for each in samples]

    def with_burst(self, forecast: Estimate, span: float) -> Estimate:
        """Return ``forecast``: a line expects no burst."""
        return forecast


def fit_line(points: list[GrowthPoint]) -> Line | None:
    """Draw a line through the first and the last of the newest ``points``; None with fewer than three."""
    if len(points) < 3 or points[-1].samples <= 0:
        return None
    samples, categories = recent(points)
    slope = float(np.ptp(categories) / np.ptp(samples))
    return Line(points[-1].samples, points[-1].categories, slope)
