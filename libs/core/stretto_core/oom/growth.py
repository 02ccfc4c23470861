"""How the number of categories grows with the samples trained, and how far that can be trusted.

DLRover-RM section 5.3 takes new categories as proportional to throughput x time, so to samples. Real key streams grow
sub-linearly: a power of the samples (Heaps' law, phi = K n^beta), or towards the end of a finite vocabulary. Which it
is shows only slowly, and neither holds for ever: keys come in bursts, new data is added, a rate changes. So the rate
itself is modelled, r = d phi / d x with x the samples relative to those seen so far, as a Gaussian process:

    log r(x) = level + bend * log x + fade * (x - 1) + wander(log x) + swing(x) + step * [x < p] + scatter

``bend`` is beta - 1 of Heaps' law; ``fade`` an approaching end of the vocabulary (saturation); ``wander`` a Wiener
process: no stream follows a formula; ``swing`` a stationary one (Ornstein-Uhlenbeck): bursts, which a forecast
averages; ``step`` a change of the rate at some p in the past, which makes what was before misleading; ``scatter`` is
white. How strong the last four are is not known either: every strength of a grid, and every p, is weighted by its
marginal likelihood, and the forecast is the mixture (Rasmussen and Williams, Gaussian Processes for Machine Learning,
2006, sections 2.2, 5.4). A change that leaves no sign before the forecast is in no interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

POINTS_MAX = 96
BINS = 20
"""increments that are looked at; neighbours are taken together until there are no more"""

LEVEL_SD = 1.5
BEND, BEND_SD = -0.37, 0.3
FADE, FADE_SD = -0.13, 0.25
"""mean and sd before anything was seen; the means are those of the first thirds of 32 public streams (clicks, ratings,
census), each judged without a prior: what came after is not in them"""

FADE_REACH = 4.0
"""times the samples seen: further ahead the end of a vocabulary comes no closer than was foreseen until there"""

STEP_SD, STEP_CHANCE = 1.0, 0.3
STEP_BINS_LEAST = 6
PAUSE = 4.0
"""in log: below e^-4 of the mean rate nothing comes, however much less it is"""

SCATTERS = (0.03, 0.1, 0.3, 0.9)
WANDERS = (0.1, 0.4)
SWINGS = ((0.0, 0.1), (0.35, 0.05), (0.35, 0.15), (0.8, 0.05), (0.8, 0.15))
"""sd of the logarithm of the rate, and over which share of the samples seen neighbours are alike"""

CALM = (0.6, 0.25, 0.1, 0.05), (0.8, 0.2), (0.8, 0.05, 0.05, 0.05, 0.05)
"""chance of each scatter, wander and swing before anything was seen: a few increments in line are believed"""

_CALM = np.log([s * w * o for s, w, o in product(*CALM)])
_STRENGTHS = np.array([(s**2, w**2, o**2, long) for s, w, (o, long) in product(SCATTERS, WANDERS, SWINGS)])
"""[H, 4]: variances of scatter, wander, swing; length of a swing"""

WEIGHT_LEAST = 0.02
"""what is less likely than this part of the likeliest is left out"""

STRETCHES = 8
"""of the way ahead, in each of which the rate is taken as one"""

SPREAD_MAX = 10.0
"""of the logarithm of the growth ahead: what is less certain than by a factor of e^16 is not known"""

SPREAD_LEAST = 0.01

SURPRISE = 2.0
"""times the most that came in any equal time lately may come next"""

LATELY_SPANS = 6
LATELY_POINTS = POINTS_MAX // 2
"""the newest, of which none has been thinned out"""

AHEAD_LEAST = 1e-9
"""of the samples seen: below, the way ahead is lost in the rounding of its two ends"""

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


class Course(Protocol):
    """Where the categories of a job are going, from the last point on."""

    @property
    def samples(self) -> int: ...

    @property
    def categories(self) -> int: ...

    def at(self, samples: float) -> Interval:
        """Categories after ``samples`` in total; today's for a past count."""
        ...

    def course(self, samples: Sequence[float]) -> list[Interval]:
        """The same for each of ``samples``."""
        ...

    def as_lately(self, foretold: Interval, span: float) -> Interval:
        """``foretold`` of a near moment, with room for what came in any ``span`` samples of late."""
        ...


class GrowthLaw(Protocol):
    """Algorithms of the kind ``oom``: the growth after the last of the points, None if they say too little."""

    def __call__(self, points: list[GrowthPoint]) -> Course | None: ...


@dataclass(frozen=True, slots=True)
class Growth:
    """Growth of categories from the last point on: a Gaussian process for the logarithm of the rate.

    ``state`` [4]: mean of (level, bend, fade, swing now), ``covariance`` [4, 4]. ``scatter``, ``wander``, ``swing``:
    their variances; neighbours within ``alike`` swing alike, ``width`` is that of an increment, both relative to the
    samples seen. ``rate``: categories per ``samples`` at level 0. ``lately``: samples and categories of the newest
    points.
    """

    samples: int
    categories: int
    state: Floats
    covariance: Floats
    scatter: float
    wander: float
    swing: float
    alike: float
    width: float
    rate: float
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
        return self.course([samples])[0]

    def course(self, samples: Sequence[float]) -> list[Interval]:
        """The same for each of ``samples``.

        The sum over stretches of the rate there is taken as log-normal: its median is that of the median path.
        """
        far = np.maximum(np.asarray(samples, float) / max(1, self.samples), 1 + AHEAD_LEAST)
        edges = 1 + np.expm1(np.log(far)[:, None] * np.linspace(0, 1, STRETCHES + 1))
        x, long = np.sqrt(edges[:, 1:] * edges[:, :-1]), np.diff(edges, axis=1)
        log_x, decays = np.log(x), np.exp((1 - x) / self.alike)
        features = np.stack([np.ones_like(x), log_x, np.minimum(x, FADE_REACH) - 1, decays], axis=2)
        new = long * np.exp(features @ self.state)
        total = new.sum(1, keepdims=True)
        part = new / total
        known = (part[:, None] @ features)[:, 0]
        variance = ((known @ self.covariance) * known).sum(1)
        variance += self.wander * _quadratic(part, np.minimum(log_x[:, :, None], log_x[:, None]))
        # of the swing, what today's does not tell; within a stretch longer than it, it averages out
        fresh = np.exp(-np.abs(x[:, :, None] - x[:, None]) / self.alike) - decays[:, :, None] * decays[:, None]
        variance += self.swing * _quadratic(part * np.sqrt(np.minimum(1, 2 * self.alike / long)), fresh)
        variance += self.scatter * self.width / np.maximum(far - 1, self.width)
        reach = Z_90 * np.minimum(np.sqrt(variance + SPREAD_LEAST**2), SPREAD_MAX)
        median = np.log(total[:, 0] * self.rate)
        ends = self.categories + np.exp(median + np.array([-1.0, 0.0, 1.0])[:, None] * reach)
        ends[:, far <= 1 + AHEAD_LEAST] = self.categories
        return [Interval(low, mean, high) for low, mean, high in ends.T.tolist()]


def _quadratic(part: Floats, covariance: Floats) -> Floats:
    """[G] of ``part`` [G, K] and ``covariance`` [G, K, K]."""
    return ((part[:, None] @ covariance)[:, 0] * part).sum(1)


@dataclass(frozen=True, slots=True)
class _Rates:
    """Increments of n bins, ``x`` [n] their middles: ``log`` [n] of the rate relative to ``mean``, with the prior's
    ``expected`` taken off, and ``variance`` [n] that counting alone gives it; ``new`` [n] categories in ``steps`` [n].
    """

    x: Floats
    log: Floats
    expected: Floats
    variance: Floats
    new: Floats
    steps: Floats
    mean: float


def _rates(x: Floats, y: Floats) -> _Rates:
    """Of ``y`` categories after ``x``. A bin of k new categories has the Poisson scatter of k."""
    if len(x) > BINS + 1:
        kept = np.unique(np.linspace(0, len(x) - 1, BINS + 1).round().astype(int))
        x, y = x[kept], y[kept]
    steps, new = np.diff(x), np.diff(y)
    mean = max(float(new.sum()), 0.5) / float(steps.sum())
    middle = (x[1:] + x[:-1]) / 2
    expected = BEND * np.log(middle) + FADE * (middle - 1)
    log = np.maximum(np.log((new + 0.5) / steps / mean), -PAUSE) - expected
    return _Rates(middle, log, expected, 1 / (new + 0.5), new, steps, mean)


def fit_growth(points: list[GrowthPoint]) -> Growth | None:
    """The growth after the last of ``points`` (samples strictly rising). None with fewer than three points."""
    if len(points) < 3 or points[-1].samples <= 0:
        return None
    now = points[-1]
    x = np.array([point.samples for point in points], float) / now.samples
    seen = _rates(x, np.maximum.accumulate([float(point.categories) for point in points]))
    mixture = _posterior(seen, _model(seen))
    strengths = _STRENGTHS[mixture.which]
    # one process with the mixture's mean and covariance foretells what the mixture does, to 1 % of the interval
    state = mixture.weights @ mixture.state
    off = mixture.state - state
    covariance = np.einsum("c,cfg->fg", mixture.weights, mixture.covariance)
    covariance += np.einsum("c,cf,cg->fg", mixture.weights, off, off)
    scatter, wander, swing = (float(variance) for variance in mixture.weights @ strengths[:, :3])
    alike = float((mixture.weights * strengths[:, 2]) @ strengths[:, 3]) / swing if swing > 0 else SWINGS[0][1]
    return Growth(
        now.samples,
        now.categories,
        state + np.array([0.0, BEND, FADE, 0.0]),
        covariance,
        scatter,
        wander,
        swing,
        alike,
        width=float(seen.steps.mean()),
        rate=seen.mean,
        lately=lately(points),
    )


@dataclass(frozen=True, slots=True)
class _Model:
    """What H strengths say of n rates before they are seen.

    ``covariance`` [H, n, n], of which ``smooth`` [H, n, n] without swing and scatter; ``common`` [H, n, 4] with the
    state; ``steps`` [n, P]: where the rate was another, for each of P changes.
    """

    covariance: Floats
    smooth: Floats
    common: Floats
    steps: Floats


def _model(seen: _Rates) -> _Model:
    x, log_x, n, strengths = seen.x, np.log(seen.x), len(seen.x), len(_STRENGTHS)
    trend = LEVEL_SD**2 + BEND_SD**2 * np.outer(log_x, log_x) + FADE_SD**2 * np.outer(x - 1, x - 1)
    scatter, wander, swing, alike = (column[:, None, None] for column in _STRENGTHS.T)
    smooth = trend + wander * np.minimum.outer(-log_x, -log_x)
    noise = scatter * np.diag(np.clip(seen.steps.mean() / seen.steps, 0.3, 3)) + np.diag(seen.variance)
    covariance = smooth + swing * np.exp(-np.abs(np.subtract.outer(x, x)) / alike) + noise
    trended = np.stack([np.full(n, LEVEL_SD**2), BEND_SD**2 * log_x, FADE_SD**2 * (x - 1)], axis=1)
    swung = swing * np.exp((x[:, None] - 1) / alike)
    common = np.concatenate([np.broadcast_to(trended, (strengths, n, 3)), swung], axis=2)
    changes = np.arange(2, n - 1) if n >= STEP_BINS_LEAST else np.arange(0)
    return _Model(covariance, smooth, common, (np.arange(n)[:, None] < changes).astype(float))


@dataclass(frozen=True, slots=True)
class _Mixture:
    """The C likely ones of H strengths with 1 + P changes: ``weights`` [C], ``which`` strength [C], ``state`` [C, 4]
    without what the prior expects, ``covariance`` [C, 4, 4]."""

    weights: Floats
    which: NDArray[np.int64]
    state: Floats
    covariance: Floats


def _posterior(seen: _Rates, model: _Model) -> _Mixture:
    """Of the state, by conditioning on the rates: K^-1 through the Cholesky root R of each strength's covariance.

    A step u of variance s^2 makes it K + s^2 u u^T, whose inverse and determinant follow from those of K (Sherman and
    Morrison; the matrix determinant lemma): gain = s^2 / (1 + s^2 u^T K^-1 u).
    """
    strengths, n = len(model.covariance), len(seen.x)
    no_step = np.zeros((n, 1))
    steps = np.hstack([no_step, model.steps])
    root = np.linalg.cholesky(model.covariance)
    told = np.concatenate(
        [*(np.broadcast_to(part, (strengths, *part.shape)) for part in (seen.log[:, None], steps)), model.common],
        axis=2,
    )
    told = np.linalg.solve(root, told)
    data, stepped, common = told[:, :, 0], told[:, :, 1:-4], told[:, :, -4:]
    own, shared = (stepped**2).sum(1), np.einsum("hn,hnp->hp", data, stepped)
    gain = STEP_SD**2 / (1 + STEP_SD**2 * own)
    gain[:, 0] = 0
    changes = steps.shape[1] - 1
    prior = np.log([1 - STEP_CHANCE, *[STEP_CHANCE / max(1, changes)] * changes])
    alone = -0.5 * (data**2).sum(1) - np.log(np.diagonal(root, axis1=1, axis2=2)).sum(1)
    evidence = (alone + _CALM)[:, None] + prior + 0.5 * gain * shared**2 - 0.5 * np.log1p(STEP_SD**2 * own)
    likely = np.exp(evidence - evidence.max())
    which, change = np.nonzero(likely > WEIGHT_LEAST)
    weights, gain = likely[which, change], gain[which, change]
    drawn, stepped = gain * shared[which, change], stepped[which, :, change]
    root, data, common = root[which], data[which], common[which]
    along = np.einsum("cnf,cn->cf", common, stepped)
    state = np.einsum("cn,cnf->cf", data, common) - drawn[:, None] * along
    variance = np.zeros((len(which), 4, 4))
    variance[:, range(3), range(3)] = LEVEL_SD**2, BEND_SD**2, FADE_SD**2
    variance[:, 3, 3] = _STRENGTHS[which, 2]
    variance += gain[:, None, None] * along[:, :, None] * along[:, None, :] - np.swapaxes(common, 1, 2) @ common
    pull = np.linalg.solve(np.swapaxes(root, 1, 2), (data - drawn[:, None] * stepped)[:, :, None])[:, :, 0]
    path = np.einsum("cij,cj->ci", model.smooth[which], pull)
    path += STEP_SD**2 * steps.T[change] * (steps.T[change] * pull).sum(1, keepdims=True)
    state[:, 0] += _missed(seen, path)
    return _Mixture(weights / weights.sum(), which, state, variance)


def _missed(seen: _Rates, path: Floats) -> Floats:
    """What the median path [C, n] misses of the sum seen, in log: the mean of scatter and swing is more than their
    median (Duan's smearing estimate, JASA 1983), weighed against one increment without."""
    foretold = np.exp(path + seen.expected) * seen.steps
    one = foretold.mean(1)
    return np.log((seen.new.sum() / seen.mean + one) / (foretold.sum(1) + one))


def lately(points: list[GrowthPoint]) -> tuple[Floats, Floats]:
    """Samples and categories of the newest points, which never fall."""
    newest = points[-LATELY_POINTS:]
    categories = np.array([point.categories for point in newest], float)
    return np.array([point.samples for point in newest], float), np.maximum.accumulate(categories)


def add_point(points: list[GrowthPoint], samples: int, categories: int) -> None:
    """Append a measurement; when there are too many, every second of the older half goes. Keeps samples rising."""
    if points and samples <= points[-1].samples:
        while points and points[-1].samples >= samples:  # the job went back to a checkpoint
            points.pop()
    points.append(GrowthPoint(samples, categories))
    if len(points) > POINTS_MAX:
        half = POINTS_MAX // 2
        points[:half] = points[:half:2]
