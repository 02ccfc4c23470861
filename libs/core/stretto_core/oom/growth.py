"""Growth of the number of categories with the samples trained, as a Gaussian process with honest intervals.

DLRover-RM section 5.3 takes new categories as proportional to throughput x time, so to samples. Real key streams grow
sub-linearly: as a power of the samples (Heaps' law, phi = K n^beta), or towards the end of a finite vocabulary. Which
one holds shows only slowly, and neither holds for ever: keys come in bursts, new data are added, a rate changes. So the
rate itself is modelled, r = d phi / d x, with x the samples relative to those trained so far (x = 1 now). With
u = log x, its logarithm is the sum of independent terms, given a position p of the change:

    log r(x) = level + slope u + decay (x - 1) + W(u) + V(x) + change [x < p] + e

    level   ~ N(0, LEVEL_SD^2)              log of the rate now, relative to the mean rate so far
    slope   ~ N(SLOPE_MEAN, SLOPE_SD^2)     beta - 1 of Heaps' law
    decay   ~ N(DECAY_MEAN, DECAY_SD^2)     exponential decline of the rate: a vocabulary that comes to its end
    W(u)                                    random walk (Wiener process) that starts at u = 0 and runs both ways:
                                            no stream follows a formula
    V(x)                                    stationary autocorrelated noise (Ornstein-Uhlenbeck process) with
                                            correlation length l in x: bursts, which a forecast averages
    change  ~ N(0, CHANGE_SD^2)             another rate before some p in the past, which makes earlier data misleading
    e                                       white noise of one increment, beside the Poisson noise of counting

The hyperparameters (noise sd, random-walk sd, sd and correlation length of V) lie on a grid with a prior. Each point of
the grid, with each p or none, is weighted by its marginal likelihood, and the forecast is the mixture (Rasmussen and
Williams, Gaussian Processes for Machine Learning, 2006, sections 2.2 and 5.4). A change that leaves no sign before the
forecast is in no interval.

Constants say where they come from. "Calibrated" means: chosen by hand, such that the bench of forecasts meets its bars
for error, coverage of the 90 % interval, warning and waste over 200 generated series of each kind and over ids of
public data (``python -m tests.bench --only forecasts``).
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
"""Measurements kept of a job. Taste: a state of some KB; older ones are thinned out."""
BINS = 20
"""Increments that the model is fitted to; neighbours are taken together until there are no more. Taste: the fit costs
their cube."""

# Prior of the trend. The means of slope and decay, and their sds, are measured: from the first thirds of 32 public
# streams (clicks, ratings, census), each fitted without a prior. The data after a first third are not in them.
LEVEL_SD = 1.5
"""Taste: wide. The level is relative to the mean rate, so the data decide on it."""
SLOPE_MEAN, SLOPE_SD = -0.37, 0.3
DECAY_MEAN, DECAY_SD = -0.13, 0.25

DECAY_REACH = 4.0
"""Value of x up to which the decay acts; further ahead the rate declines no more by it. Taste: the end of a vocabulary
cannot be extrapolated far beyond the data."""

CHANGE_SD, CHANGE_PROBABILITY = 1.0, 0.3
"""Prior of a change: sd of the log rate's jump, and chance of one anywhere. Calibrated."""
CHANGE_BINS_MIN = 6
"""Fewer increments cannot tell a change from noise: two lie before the first p, two after the last."""

LOG_RATE_MIN = -4.0
"""Lower bound of an observed log rate, relative to the mean: an empty increment is a pause, however long. Taste."""

# Grid of the hyperparameters, with the prior of each value in the line below. Standard deviations are of the log rate.
# All are calibrated; the prior favours small noise, so that a few increments in line are believed.
NOISE_SDS = (0.03, 0.1, 0.3, 0.9)
NOISE_PRIOR = (0.6, 0.25, 0.1, 0.05)
RANDOM_WALK_SDS = (0.1, 0.4)
"""Per unit of log x."""
RANDOM_WALK_PRIOR = (0.8, 0.2)
AUTOCORRELATIONS = ((0.0, 0.1), (0.35, 0.05), (0.35, 0.15), (0.8, 0.05), (0.8, 0.15))
"""Stationary sd and correlation length, the latter in x. The first is a process that is absent."""
AUTOCORRELATION_PRIOR = (0.8, 0.05, 0.05, 0.05, 0.05)

_GRID = np.array(
    [
        (noise_sd**2, walk_sd**2, sd**2, length)
        for noise_sd, walk_sd, (sd, length) in product(NOISE_SDS, RANDOM_WALK_SDS, AUTOCORRELATIONS)
    ]
)
"""[H, 4]: variances of noise, random walk and autocorrelated noise; correlation length of the latter."""
_LOG_PRIOR = np.log(
    [noise * walk * auto for noise, walk, auto in product(NOISE_PRIOR, RANDOM_WALK_PRIOR, AUTOCORRELATION_PRIOR)]
)
"""[H]."""

WEIGHT_MIN = 0.02
"""Components of the mixture below this share of the likeliest are left out. Taste: speed."""

SEGMENTS = 8
"""Geometric segments of the way ahead, in each of which the rate is constant (quadrature). Taste."""

LOG_SD_MAX = 10.0
"""Upper bound of the sd of the log of the growth ahead: beyond a factor of e^16 nothing is known, and floats end."""
LOG_SD_MIN = 0.01
"""Standard deviation that is always added. Taste: no forecast is exact."""

BURST_FACTOR = 2.0
"""Growth over a short span may be this many times the largest over any equal span lately. Calibrated."""
RECENT_SPANS = 6
"""Number of such spans that count as lately. Taste."""
RECENT_POINTS = POINTS_MAX // 2
"""The newest points, none of which has been thinned out."""

AHEAD_MIN = 1e-9
"""Least way ahead, in x: below, it is lost in the rounding of its two ends."""

Z_90 = 1.645
"""Quantile of the standard normal distribution: 90 % lie within +-Z_90."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """An estimate between the ends of its 90 % interval."""

    low: float
    mean: float
    high: float


@dataclass(slots=True)
class GrowthPoint:
    """Number of ``categories`` in the whole job after ``samples``."""

    samples: int
    categories: int


class CategoryForecast(Protocol):
    """Forecast of a job's categories, from the last point on."""

    @property
    def samples(self) -> int: ...

    @property
    def categories(self) -> int: ...

    def at(self, samples: float) -> Estimate:
        """Return the categories after ``samples`` in total; today's for a past count."""
        ...

    def course(self, samples: Sequence[float]) -> list[Estimate]:
        """Return the same for each of ``samples``."""
        ...

    def with_burst(self, forecast: Estimate, span: float) -> Estimate:
        """Raise the upper end of a near ``forecast`` to what a burst may bring in ``span`` samples."""
        ...


class GrowthLaw(Protocol):
    """Algorithm of the kind ``oom``: the growth after the last of the points, or None if they are too few."""

    def __call__(self, points: list[GrowthPoint]) -> CategoryForecast | None: ...


@dataclass(frozen=True, slots=True)
class Growth:
    """Posterior of the log rate from the last point on: one Gaussian process with the mixture's moments."""

    samples: int
    categories: int
    state_mean: Floats
    """[4]: level, slope, decay, and the autocorrelated noise now."""
    state_covariance: Floats
    """[4, 4]"""
    noise_variance: float
    random_walk_variance: float
    autocorrelated_variance: float
    correlation_length: float
    """In x."""
    increment_width: float
    """Mean width of the increments that the model was fitted to, in x."""
    rate: float
    """Categories per unit of x at level 0."""
    recent: tuple[Floats, Floats]
    """Samples and categories of the newest points."""

    def with_burst(self, forecast: Estimate, span: float) -> Estimate:
        """Raise the upper end to ``BURST_FACTOR`` times the largest growth in any ``span`` samples lately."""
        samples, categories = self.recent
        since = np.searchsorted(samples, samples[-1] - RECENT_SPANS * span)
        if span <= 0 or len(samples) - since < 2:
            return forecast
        ends = samples[max(1, since) :]
        begins = np.maximum(ends - span, samples[0])
        rises = np.interp(ends, samples, categories) - np.interp(begins, samples, categories)
        largest = float((rises * span / np.maximum(ends - begins, span / 2)).max())
        return Estimate(forecast.low, forecast.mean, max(forecast.mean, self.categories + BURST_FACTOR * largest))

    def at(self, samples: float) -> Estimate:
        """Return the categories after ``samples`` in total, with the 90 % interval; today's for a past count."""
        return self.course([samples])[0]

    def course(self, samples: Sequence[float]) -> list[Estimate]:
        """Return the same for each of ``samples`` [G].

        The growth ahead is the sum of the rate over K segments, taken as log-normal. Its median is the sum along the
        median path; the variance of its log is the variance of the log rates' mean, weighted by the segments' shares of
        the sum (delta method).
        """
        ahead = np.maximum(np.asarray(samples, float) / max(1, self.samples), 1 + AHEAD_MIN)
        edges = 1 + np.expm1(np.log(ahead)[:, None] * np.linspace(0, 1, SEGMENTS + 1))
        x, length = np.sqrt(edges[:, 1:] * edges[:, :-1]), np.diff(edges, axis=1)
        log_x, decayed = np.log(x), np.exp((1 - x) / self.correlation_length)
        features = np.stack([np.ones_like(x), log_x, np.minimum(x, DECAY_REACH) - 1, decayed], axis=2)
        increments = length * np.exp(features @ self.state_mean)
        total = increments.sum(1, keepdims=True)
        share = increments / total
        mean_features = (share[:, None] @ features)[:, 0]
        variance = ((mean_features @ self.state_covariance) * mean_features).sum(1)
        variance += self.random_walk_variance * _quadratic(share, np.minimum(log_x[:, :, None], log_x[:, None]))
        # autocorrelated noise given its value now; in a segment longer than its correlation it averages out
        innovation = np.exp(-np.abs(x[:, :, None] - x[:, None]) / self.correlation_length)
        innovation -= decayed[:, :, None] * decayed[:, None]
        averaged = share * np.sqrt(np.minimum(1, 2 * self.correlation_length / length))
        variance += self.autocorrelated_variance * _quadratic(averaged, innovation)
        variance += self.noise_variance * self.increment_width / np.maximum(ahead - 1, self.increment_width)
        reach = Z_90 * np.minimum(np.sqrt(variance + LOG_SD_MIN**2), LOG_SD_MAX)
        median = np.log(total[:, 0] * self.rate)
        ends = self.categories + np.exp(median + np.array([-1.0, 0.0, 1.0])[:, None] * reach)
        ends[:, ahead <= 1 + AHEAD_MIN] = self.categories
        return [Estimate(low, mean, high) for low, mean, high in ends.T.tolist()]


def _quadratic(weights: Floats, covariance: Floats) -> Floats:
    """Return w' C w [G] for each of ``weights`` [G, K] and ``covariance`` [G, K, K]."""
    return ((weights[:, None] @ covariance)[:, 0] * weights).sum(1)


@dataclass(frozen=True, slots=True)
class _Increments:
    """Data of n increments, all arrays [n]."""

    x: Floats
    """Middle of each."""
    residual: Floats
    """Log rate relative to ``mean_rate``, less ``prior_mean``."""
    prior_mean: Floats
    """Prior mean of the trend."""
    counting_variance: Floats
    """Variance of the log rate by the Poisson noise of the count."""
    new: Floats
    """New categories."""
    width: Floats
    mean_rate: float


def _increments(x: Floats, y: Floats) -> _Increments:
    """Take increments of ``y`` categories after ``x``. A count of k has Poisson variance k, so its log about 1 / k."""
    if len(x) > BINS + 1:
        kept = np.unique(np.linspace(0, len(x) - 1, BINS + 1).round().astype(int))
        x, y = x[kept], y[kept]
    width, new = np.diff(x), np.diff(y)
    mean_rate = max(float(new.sum()), 0.5) / float(width.sum())
    middle = (x[1:] + x[:-1]) / 2
    prior_mean = SLOPE_MEAN * np.log(middle) + DECAY_MEAN * (middle - 1)
    residual = np.maximum(np.log((new + 0.5) / width / mean_rate), LOG_RATE_MIN) - prior_mean
    return _Increments(middle, residual, prior_mean, 1 / (new + 0.5), new, width, mean_rate)


def fit_growth(points: list[GrowthPoint]) -> Growth | None:
    """Fit the growth after the last of ``points`` (samples strictly rising). None with fewer than three points."""
    if len(points) < 3 or points[-1].samples <= 0:
        return None
    now = points[-1]
    x = np.array([point.samples for point in points], float) / now.samples
    data = _increments(x, np.maximum.accumulate([float(point.categories) for point in points]))
    mixture = _posterior(data, _prior(data))
    hyperparameters = _GRID[mixture.grid_index]
    # one process with the mixture's mean and covariance forecasts what the mixture does, to 1 % of the interval
    mean = mixture.weights @ mixture.mean
    off = mixture.mean - mean
    covariance = np.einsum("c,cfg->fg", mixture.weights, mixture.covariance)
    covariance += np.einsum("c,cf,cg->fg", mixture.weights, off, off)
    noise, walk, auto = (float(variance) for variance in mixture.weights @ hyperparameters[:, :3])
    length = AUTOCORRELATIONS[0][1]
    if auto > 0:
        length = float((mixture.weights * hyperparameters[:, 2]) @ hyperparameters[:, 3]) / auto
    return Growth(
        samples=now.samples,
        categories=now.categories,
        state_mean=mean + np.array([0.0, SLOPE_MEAN, DECAY_MEAN, 0.0]),
        state_covariance=covariance,
        noise_variance=noise,
        random_walk_variance=walk,
        autocorrelated_variance=auto,
        correlation_length=length,
        increment_width=float(data.width.mean()),
        rate=data.mean_rate,
        recent=recent(points),
    )


@dataclass(frozen=True, slots=True)
class _Prior:
    """Prior covariances of n observed log rates, under each of H points of the grid."""

    covariance: Floats
    """[H, n, n]: of the observations."""
    smooth: Floats
    """[H, n, n]: the part of trend and random walk, without autocorrelated and white noise."""
    cross: Floats
    """[H, n, 4]: with the state now (level, slope, decay, autocorrelated noise)."""
    changes: Floats
    """[n, P]: indicator of the observations before each of P possible changes."""


def _prior(data: _Increments) -> _Prior:
    x, log_x, n, size = data.x, np.log(data.x), len(data.x), len(_GRID)
    trend = LEVEL_SD**2 + SLOPE_SD**2 * np.outer(log_x, log_x) + DECAY_SD**2 * np.outer(x - 1, x - 1)
    noise, walk, auto, length = (column[:, None, None] for column in _GRID.T)
    smooth = trend + walk * np.minimum.outer(-log_x, -log_x)
    # the noise of an increment falls with its width, within bounds; counting noise adds to it
    white = noise * np.diag(np.clip(data.width.mean() / data.width, 0.3, 3)) + np.diag(data.counting_variance)
    covariance = smooth + auto * np.exp(-np.abs(np.subtract.outer(x, x)) / length) + white
    with_trend = np.stack([np.full(n, LEVEL_SD**2), SLOPE_SD**2 * log_x, DECAY_SD**2 * (x - 1)], axis=1)
    with_auto = auto * np.exp((x[:, None] - 1) / length)
    cross = np.concatenate([np.broadcast_to(with_trend, (size, n, 3)), with_auto], axis=2)
    positions = np.arange(2, n - 1) if n >= CHANGE_BINS_MIN else np.arange(0)
    return _Prior(covariance, smooth, cross, (np.arange(n)[:, None] < positions).astype(float))


@dataclass(frozen=True, slots=True)
class _Mixture:
    """Posterior of the state: the C likely components out of H points of the grid with 1 + P changes."""

    weights: Floats
    """[C], their sum is 1."""
    grid_index: NDArray[np.int64]
    """[C]"""
    mean: Floats
    """[C, 4], less the prior mean."""
    covariance: Floats
    """[C, 4, 4]"""


def _posterior(data: _Increments, prior: _Prior) -> _Mixture:
    """Condition the state on the observed log rates, by the Cholesky root L of each prior covariance K = L L'.

    A change u with variance s^2 makes it K + s^2 u u'. Its inverse and determinant follow from those of K (Sherman and
    Morrison; the matrix determinant lemma), with the gain g = s^2 / (1 + s^2 u' K^-1 u):

        (K + s^2 u u')^-1 = K^-1 - g K^-1 u u' K^-1,    |K + s^2 u u'| = |K| (1 + s^2 u' K^-1 u)
    """
    size, n = len(prior.covariance), len(data.x)
    changes = np.hstack([np.zeros((n, 1)), prior.changes])  # the first is none
    root = np.linalg.cholesky(prior.covariance)
    columns = np.concatenate(
        [*(np.broadcast_to(part, (size, *part.shape)) for part in (data.residual[:, None], changes)), prior.cross],
        axis=2,
    )
    whitened = np.linalg.solve(root, columns)
    residual, change, cross = whitened[:, :, 0], whitened[:, :, 1:-4], whitened[:, :, -4:]
    own, shared = (change**2).sum(1), np.einsum("hn,hnp->hp", residual, change)
    gain = CHANGE_SD**2 / (1 + CHANGE_SD**2 * own)
    gain[:, 0] = 0
    count = changes.shape[1] - 1
    log_prior_change = np.log([1 - CHANGE_PROBABILITY, *[CHANGE_PROBABILITY / max(1, count)] * count])
    log_likelihood = -0.5 * (residual**2).sum(1) - np.log(np.diagonal(root, axis1=1, axis2=2)).sum(1)
    log_evidence = (log_likelihood + _LOG_PRIOR)[:, None] + log_prior_change
    log_evidence = log_evidence + 0.5 * gain * shared**2 - 0.5 * np.log1p(CHANGE_SD**2 * own)
    relative = np.exp(log_evidence - log_evidence.max())
    grid_index, position = np.nonzero(relative > WEIGHT_MIN)
    # from here on [C, ...]: the likely components
    weights, gain = relative[grid_index, position], gain[grid_index, position]
    fitted, change = gain * shared[grid_index, position], change[grid_index, :, position]
    root, residual, cross = root[grid_index], residual[grid_index], cross[grid_index]
    along = np.einsum("cnf,cn->cf", cross, change)
    mean = np.einsum("cn,cnf->cf", residual, cross) - fitted[:, None] * along
    covariance = np.zeros((len(grid_index), 4, 4))
    covariance[:, range(3), range(3)] = LEVEL_SD**2, SLOPE_SD**2, DECAY_SD**2
    covariance[:, 3, 3] = _GRID[grid_index, 2]
    covariance += gain[:, None, None] * along[:, :, None] * along[:, None, :] - np.swapaxes(cross, 1, 2) @ cross
    # posterior mean of the smooth part and the change at the observations: smooth K'^-1 residual
    weighted = np.linalg.solve(np.swapaxes(root, 1, 2), (residual - fitted[:, None] * change)[:, :, None])[:, :, 0]
    path = np.einsum("cij,cj->ci", prior.smooth[grid_index], weighted)
    path += CHANGE_SD**2 * changes.T[position] * (changes.T[position] * weighted).sum(1, keepdims=True)
    mean[:, 0] += _smearing(data, path)
    return _Mixture(weights / weights.sum(), grid_index, mean, covariance)


def _smearing(data: _Increments, path: Floats) -> Floats:
    """Return the correction of the level [C] from the median to the mean of the noise.

    Log of the growth observed over the growth along the median ``path`` [C, n] (Duan's smearing estimate, JASA 1983),
    weighed against one increment without a correction.
    """
    fitted = np.exp(path + data.prior_mean) * data.width
    one = fitted.mean(1)
    return np.log((data.new.sum() / data.mean_rate + one) / (fitted.sum(1) + one))


def recent(points: list[GrowthPoint]) -> tuple[Floats, Floats]:
    """Return samples and categories of the newest points; categories never fall."""
    newest = points[-RECENT_POINTS:]
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
