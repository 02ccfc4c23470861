"""How the number of categories grows with the samples trained, and how far that can be trusted.

DLRover-RM section 5.3 takes new categories as proportional to throughput x time, so to samples. Real key streams grow
sub-linearly (Heaps' law, phi = K n^beta; saturation of a finite vocabulary), with a linear part when new categories
keep appearing. Which of these a job follows shows only slowly, and is most of what is uncertain about its end. So
every shape is fitted (a curve plus a linear part, both non-negative), weighted by how well it explains the
increments seen, and the forecast is the average over shapes; their disagreement is part of the interval (Bayesian
model averaging; Hoeting et al., Statistical Science 1999).

Fitted are increments, not stocks: what happened between two windows is evidence about the rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

EXPONENTS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
SATURATIONS = (0.1, 0.2, 0.35, 0.6, 1.0, 1.8, 3.0)
"""time constants of saturating curves, in units of the samples seen so far"""

_EXPONENTS, _SATURATIONS = np.array(EXPONENTS), np.array(SATURATIONS)

POINTS_MAX = 96
HOLDOUT = 0.2
"""share of the newest points by which the length of the history is chosen"""

TREND_SD = 0.12
"""relative error of every shape per unit of log distance: no stream follows a formula"""

NOISE_PRIOR_SD = 0.25
NOISE_PRIOR_COUNT = 1.5
"""what a few blocks cannot tell: relative scatter of a block, with the weight of so many blocks"""

SPREAD_MAX = 10.0
"""of the logarithm of the growth ahead: what is less certain than by a factor of e^16 is not known"""

SURPRISE = 2.0
"""times the most that came in any equal time lately may come next"""

LATELY_SPANS = 6
LATELY_POINTS = POINTS_MAX // 2
"""the newest, of which none has been thinned out"""

AHEAD_LEAST = 1e-9
"""of the samples seen: below, the rise of a curve is lost in the rounding of its two ends"""

Z_90 = 1.645


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate between the ends of its 90 % interval."""

    low: float
    mean: float
    high: float


@dataclass(slots=True)
class GrowthPoint:
    """``categories`` in the whole job after ``samples``."""

    samples: int
    categories: int


@dataclass(frozen=True, slots=True)
class Growth:
    """Fitted growth of categories from the last point on.

    ``weights`` [shapes] sum to 1; ``curve`` and ``linear`` [shapes] are the amplitudes of each shape's two parts, in
    categories. ``noise_sd`` is the relative scatter of the growth over one block, ``block`` of the samples seen.
    ``lately``: samples and categories of the newest points.
    """

    samples: int
    categories: int
    weights: Floats
    curve: Floats
    linear: Floats
    block: float
    noise_sd: float
    lately: tuple[Floats, Floats]

    def as_lately(self, foretold: Interval, span: float) -> Interval:
        """``foretold`` of a near moment, its upper end ``SURPRISE`` times the most that came in ``span`` samples."""
        samples, categories = self.lately
        since = np.searchsorted(samples, samples[-1] - LATELY_SPANS * span)
        if span <= 0 or len(samples) - since < 2:
            return foretold
        ends = samples[max(1, since) :]
        begins = np.maximum(ends - span, samples[0])
        rises = np.interp(ends, samples, categories) - np.interp(begins, samples, categories)
        most = float((rises * span / np.maximum(ends - begins, span / 2)).max())
        return Interval(foretold.low, foretold.mean, max(foretold.mean, self.categories + SURPRISE * most))

    def at(self, samples: float) -> Interval:
        """Categories after ``samples`` in total, with the 90 % interval; today's for a past count."""
        stock, ahead = self.categories, samples / max(1, self.samples)
        if ahead <= 1 + AHEAD_LEAST:
            return Interval(stock, stock, stock)
        rise = (_curves(np.array([ahead])) - _curves(np.ones(1)))[0]
        new = self.curve * rise + self.linear * (ahead - 1)
        mean = float(self.weights @ new)
        if mean <= 0:
            return Interval(stock, stock, stock)
        shapes = float(self.weights @ (new / mean - 1) ** 2)
        blocks = max(0.25, (ahead - 1) / self.block)
        trend = (TREND_SD * math.log(ahead)) ** 2
        spread = math.sqrt(shapes + self.noise_sd**2 * (1 / blocks + self.block) + trend + 0.01**2)
        spread = min(spread, SPREAD_MAX)
        return Interval(stock + mean * math.exp(-Z_90 * spread), stock + mean, stock + mean * math.exp(Z_90 * spread))


def _curves(x: Floats) -> Floats:
    """Every shape's curve at ``x`` [n], relative to the samples seen so far: [n, shapes]."""
    column = x[:, None]
    return np.concatenate([column**_EXPONENTS, -np.expm1(-column / _SATURATIONS)], axis=1)


def _amplitudes(x: Floats, y: Floats, weight: Floats) -> tuple[Floats, Floats, Floats]:
    """Per shape: amplitudes of curve and linear part (>= 0) by weighted least squares, and the weighted residual sum.

    Closed form: of the unconstrained solution and the two with one part alone, the best that is not negative.
    """
    rise, steps, seen = np.diff(_curves(x), axis=0), np.diff(x)[:, None], np.diff(y)[:, None]
    w = weight[:, None]
    cc, cl, ll = (w * rise**2).sum(0), (w * rise * steps).sum(0), (w * steps**2).sum(0)
    cy, ly, yy = (w * rise * seen).sum(0), (w * steps * seen).sum(0), float((w * seen**2).sum())
    determinant = np.maximum(cc * ll - cl**2, 1e-12 * cc * ll)
    curve, linear = (ll * cy - cl * ly) / determinant, (cc * ly - cl * cy) / determinant
    alone_curve, alone_linear = np.maximum(cy / cc, 0), np.maximum(ly / ll, 0)
    curve_wins = cy**2 / cc >= ly**2 / ll
    inside = (curve >= 0) & (linear >= 0)
    curve = np.where(inside, curve, np.where(curve_wins, alone_curve, 0))
    linear = np.where(inside, linear, np.where(curve_wins, 0, alone_linear))
    residual = yy - 2 * (curve * cy + linear * ly) + curve**2 * cc + 2 * curve * linear * cl + linear**2 * ll
    return curve, linear, np.maximum(residual, 0)


def _best_start(x: Floats, y: Floats) -> int:
    """Where the usable history begins: the longest whose fit foretells the newest points about as well as any.

    A surge, or new data, makes old increments misleading; without a change, more history is better.
    """
    cut = len(x) - max(2, int(len(x) * HOLDOUT))
    best, best_error = 0, math.inf
    for start in (0, len(x) // 3, len(x) // 2, (2 * len(x)) // 3):
        if cut - start < 4:
            continue
        past = slice(start, cut)
        curve, linear, residual = _amplitudes(x[past], y[past], 1 / np.diff(x[past]))
        shape = int(residual.argmin())
        rise = float((_curves(x[-1:]) - _curves(x[cut - 1 : cut]))[0, shape])
        foretold = curve[shape] * rise + linear[shape] * (x[-1] - x[cut - 1])
        error = abs(math.log((y[-1] - y[cut - 1] + 1e-9) / (foretold + 1e-9)))
        if error < 0.6 * best_error - 0.03:
            best, best_error = start, error
    return best


def fit_growth(points: list[GrowthPoint]) -> Growth | None:
    """The growth after the last of ``points`` (samples strictly rising). None with fewer than three points."""
    if len(points) < 3 or points[-1].samples <= 0:
        return None
    now = points[-1]
    x = np.array([point.samples for point in points], float) / now.samples
    y = np.array([point.categories for point in points], float)
    y = np.maximum.accumulate(y) / max(1, now.categories)
    start = _best_start(x, y) if len(points) >= 10 else 0
    x, y = x[start:], y[start:]
    # the noise of an increment is relative to the rate there: a first fit says what that is
    steps = np.diff(x)
    curve, linear, residual = _amplitudes(x, y, 1 / steps)
    shape = int(residual.argmin())
    fitted = np.diff(_curves(x)[:, shape] * curve[shape] + linear[shape] * x)
    scale = np.maximum(fitted, 0.25 * fitted.mean()) + 1e-12
    block, noise_sd, increment_sd = _scatter(x, np.diff(y), fitted, scale)
    curve, linear, residual = _amplitudes(x, y, 1 / scale**2)
    likelihood = -0.5 * (residual - residual.min()) / max(increment_sd, 0.01) ** 2
    weights = np.exp(likelihood)
    return Growth(
        now.samples,
        now.categories,
        weights / weights.sum(),
        curve * now.categories,
        linear * now.categories,
        block,
        noise_sd,
        _lately(points),
    )


def _lately(points: list[GrowthPoint]) -> tuple[Floats, Floats]:
    newest = points[-LATELY_POINTS:]
    categories = np.array([point.categories for point in newest], float)
    return np.array([point.samples for point in newest], float), np.maximum.accumulate(categories)


def _scatter(x: Floats, seen: Floats, fitted: Floats, scale: Floats) -> tuple[float, float, float]:
    """Length of a block (share of the samples seen), relative scatter of a block and of one increment.

    Bursts make neighbours alike: the scatter of blocks tells more than that of single increments, and each
    increment counts for correspondingly less.
    """
    single = math.sqrt(float((((seen - fitted) / scale) ** 2).mean()))
    blocks = min(8, len(seen))
    edges = np.linspace(0, len(seen), blocks + 1).astype(int)[:-1]
    total, expected = np.add.reduceat(seen, edges), np.add.reduceat(scale, edges)
    misses = (total - np.add.reduceat(fitted, edges)) / expected
    squares, free = float((misses**2).sum()), max(1, blocks - 2)
    prior = NOISE_PRIOR_COUNT * NOISE_PRIOR_SD**2
    block_sd = math.sqrt((squares + prior) / (free + NOISE_PRIOR_COUNT))
    alike = math.sqrt(squares / free * len(seen) / blocks)
    return float(x[-1] - x[0]) / blocks, block_sd, max(single, alike)


def add_point(points: list[GrowthPoint], samples: int, categories: int) -> None:
    """Append a measurement; when there are too many, every second of the older half goes. Keeps samples rising."""
    if points and samples <= points[-1].samples:
        while points and points[-1].samples >= samples:  # the job went back to a checkpoint
            points.pop()
    points.append(GrowthPoint(samples, categories))
    if len(points) > POINTS_MAX:
        half = POINTS_MAX // 2
        points[:half] = points[:half:2]
