"""The resource-performance model of one job: which plan trains how fast, and how sure that is.

Two forms of the step time T (seconds), all coefficients >= 0. Symbols as in DLRover-RM Table 3: m batch size,
w workers, p parameter servers, l_w and l_p cores of one worker and one PS.

- ``paper`` (DLRover-RM Eq. 1-6): alpha_grad m/l_w + alpha_upd w/(p l_p) + alpha_sync (M/p)/(B/w)
  + alpha_emb m D/p + constant, the constant being the sum of the four betas, which T alone cannot tell apart.
- ``default``: a1 m/l_w + a2 + a3 w/(p l_p) + a4 w + a5 log w + a6/(p l_p) + a7 m/p, which has what Eq. 1 lacks on
  measured data: a cost that grows with w and does not shrink with p.

Throughput is w m / T samples per second (Eq. 1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.stats import t as student_t

from stretto_core.machine import CoreError
from stretto_core.types import Plan

Array = NDArray[np.float64]

COMPONENTS = ("grad", "upd", "sync", "emb")
ROBUST_ROUNDS = 12
NEGLIGIBLE = 0.02  # a log error below this is never an outlier
MISFIT_PER_LOG_UNIT = 0.06  # how far measured systems leave the form, per unit of log distance (measured)
KNOWS_NOTHING = 20.0  # widest half of an interval of a logarithm: e^20, so that its ends stay finite
NOISE_PRIOR_DOF, NOISE_PRIOR_SD = 4.0, 0.08


class FitError(CoreError):
    """The measurements cannot be fitted; says which value is wrong and what to give instead."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """What the step time depends on. ``model_mb``, ``bandwidth_mb_s`` and ``embedding_dim`` are Eq. 4 and 5's
    M, B and D: constants of a job, 1 where unknown (then they are part of the coefficient)."""

    workers: int
    ps: int
    worker_cpu_cores: float
    ps_cpu_cores: float
    batch_size: int
    model_mb: float = 1.0
    bandwidth_mb_s: float = 1.0
    embedding_dim: float = 1.0

    @staticmethod
    def of(plan: Plan, batch_size: int) -> Configuration:
        """The part of a plan that the step time depends on."""
        return Configuration(plan.workers, plan.ps, plan.worker_cpu_cores, plan.ps_cpu_cores, batch_size)


@dataclass(frozen=True, slots=True)
class Measurement:
    """The step time of one configuration. ``weight`` grows with the windows behind it (1 = ordinary).

    ``components_s``: any of T_grad, T_upd, T_sync, T_emb in seconds, by the names of ``COMPONENTS``.
    """

    configuration: Configuration
    step_time_s: float
    weight: float = 1.0
    components_s: dict[str, float] = field(default_factory=dict[str, float])

    def __post_init__(self) -> None:
        values = (self.step_time_s, self.weight, *self.components_s.values())
        if not all(math.isfinite(value) and value >= 0 for value in values) or self.step_time_s <= 0:
            raise FitError(
                f"step_time_s {self.step_time_s!r}, weight {self.weight!r}, components_s {self.components_s!r}: "
                "give finite values, the step time above 0, the others at least 0"
            )
        if unknown := set(self.components_s) - set(COMPONENTS):
            raise FitError(f"components_s names {sorted(unknown)}; the components are {', '.join(COMPONENTS)}")


@dataclass(frozen=True, slots=True)
class Inputs:
    """Configurations as arrays that broadcast against each other, so that a grid needs no million objects."""

    workers: Array
    ps: Array
    worker_cpu_cores: Array
    ps_cpu_cores: Array
    batch_size: Array
    model_mb: Array
    bandwidth_mb_s: Array
    embedding_dim: Array

    @staticmethod
    def of(configurations: Sequence[Configuration]) -> Inputs:
        """One row per configuration."""

        def column(name: str) -> Array:
            return np.array([getattr(row, name) for row in configurations], dtype=np.float64)

        return Inputs(**{name: column(name) for name in Inputs.__slots__})


@dataclass(frozen=True, slots=True)
class Term:
    """One non-negative term: its name, the component of the step it belongs to, its input."""

    name: str
    component: str
    feature: Callable[[Inputs], Array]


@dataclass(frozen=True, slots=True)
class Form:
    """A model form. ``share_prior`` is the prior standard deviation of the share of the step time of every term but
    the first; ``ridge`` says whether it also pulls the coefficients (else it only widens the intervals)."""

    name: str
    terms: tuple[Term, ...]
    constant: str
    constants_by_component: dict[str, str]
    share_prior: float
    ridge: bool


def _ones(x: Inputs) -> Array:
    return np.ones_like(x.workers * x.ps)


PAPER = Form(
    name="paper",
    terms=(
        Term("alpha_grad", "grad", lambda x: x.batch_size / x.worker_cpu_cores),  # Eq. 2
        Term("alpha_upd", "upd", lambda x: x.workers / (x.ps * x.ps_cpu_cores)),  # Eq. 3
        Term("alpha_sync", "sync", lambda x: x.model_mb / x.ps / (x.bandwidth_mb_s / x.workers)),  # Eq. 4
        Term("alpha_emb", "emb", lambda x: x.batch_size * x.embedding_dim / x.ps),  # Eq. 5
    ),
    constant="constant",
    constants_by_component={component: f"beta_{component}" for component in COMPONENTS},
    share_prior=10.0,
    ridge=False,
)

DEFAULT = Form(
    name="default",
    terms=(
        Term("a1", "grad", lambda x: x.batch_size / x.worker_cpu_cores),
        Term("a3", "upd", lambda x: x.workers / (x.ps * x.ps_cpu_cores)),
        Term("a4", "sync", lambda x: x.workers),
        Term("a5", "sync", lambda x: np.log(x.workers)),
        Term("a6", "upd", lambda x: 1.0 / (x.ps * x.ps_cpu_cores)),
        Term("a7", "emb", lambda x: x.batch_size / x.ps),
    ),
    constant="a2",
    constants_by_component={component: f"a2_{component}" for component in COMPONENTS},
    share_prior=0.3,
    ridge=True,
)

FORMS = {form.name: form for form in (DEFAULT, PAPER)}


def form_named(name: str) -> Form:
    """The form of that name; raises :class:`FitError` for another."""
    if name not in FORMS:
        raise FitError(f"form is {name!r}; choose one of {', '.join(FORMS)}")
    return FORMS[name]


def _terms(form: Form, names: Sequence[str] | None = None, components: Sequence[str] = ()) -> tuple[Term, ...]:
    """The form's terms with its constants: one, and one more for each component measured by itself."""
    constants = [Term(form.constants_by_component[c], c, _ones) for c in COMPONENTS if c in components]
    every = (*form.terms, *constants, Term(form.constant, "", _ones))
    if names is None:
        return every
    known = {term.name: term for term in _terms(form, components=COMPONENTS)}
    return tuple(known[name] for name in names)


@dataclass(frozen=True, slots=True)
class FittedModel:
    """A fitted form: predictions with intervals, and what the measurements cannot tell.

    ``covariance`` (term x term, in the order of ``coefficients``) times ``noise_sd``² is the posterior covariance
    over all terms, zeros included; ``dof`` its degrees of freedom. ``rmsle`` is over the fitted measurements.
    ``unidentified`` names every coefficient on which some null vector of the design matrix is non-zero.
    """

    form: str
    coefficients: dict[str, float]
    covariance: tuple[tuple[float, ...], ...]
    noise_sd: float
    dof: float
    rmsle: float
    unidentified: tuple[str, ...]
    measured: tuple[Configuration, ...]

    def step_time_s(self, x: Inputs) -> Array:
        """Predicted T in seconds, in the shape that the inputs broadcast to."""
        total: Array = np.zeros(np.broadcast_shapes(*(getattr(x, name).shape for name in Inputs.__slots__)))
        for term in _terms(form_named(self.form), tuple(self.coefficients)):
            coefficient = self.coefficients[term.name]
            if coefficient > 0:  # broadcasting the small feature arrays keeps a million-plan grid cheap
                total = total + coefficient * term.feature(x)
        return np.maximum(total, 1e-12)

    def log_sd(self, x: Inputs) -> Array:
        """Standard deviation of log T of each row of one-dimensional inputs: coefficients, noise-free."""
        features = _design(_terms(form_named(self.form), tuple(self.coefficients)), x)
        jacobian = features / self.step_time_s(x)[:, None]
        spread = np.einsum("ij,jk,ik->i", jacobian, np.array(self.covariance), jacobian)
        misfit = MISFIT_PER_LOG_UNIT * _log_distance(x, Inputs.of(self.measured))
        return np.sqrt(self.noise_sd**2 * np.maximum(spread, 0.0) + misfit**2)

    def interval_s(self, x: Inputs, level: float = 0.9, *, of_measurement: bool = False) -> tuple[Array, Array]:
        """Low and high T in seconds at ``level``; ``of_measurement`` adds the noise of one measured window."""
        sd = self.log_sd(x)
        if of_measurement:
            sd = np.sqrt(sd**2 + self.noise_sd**2)
        half = np.minimum(self.quantile(level) * sd, KNOWS_NOTHING)
        predicted = self.step_time_s(x)
        return predicted * np.exp(-half), predicted * np.exp(half)

    def quantile(self, level: float = 0.9) -> float:
        """How many standard deviations the interval at ``level`` reaches to either side."""
        return float(student_t.ppf(0.5 + level / 2, self.dof))

    def half_width(self, configuration: Configuration, level: float = 0.9) -> float:
        """Half of the interval in log T: 0.1 reads +-10 %. Above 0.5 the plan is not identified."""
        low, high = self.interval_s(Inputs.of([configuration]), level)
        return float(np.log(high[0] / low[0]) / 2)


def throughput(step_time_s: Array, x: Inputs) -> Array:
    """Samples per second, Eq. 1."""
    return x.workers * x.batch_size / step_time_s


def _design(terms: Sequence[Term], x: Inputs) -> Array:
    """One row per configuration, one column per term."""
    return np.stack([np.broadcast_to(term.feature(x), x.workers.shape) for term in terms], axis=1)


def _log_distance(x: Inputs, measured: Inputs) -> Array:
    """Euclidean distance to the nearest measured configuration, over the logs of w, p, l_w, l_p and m."""
    names = ("workers", "ps", "worker_cpu_cores", "ps_cpu_cores", "batch_size")
    here = np.log(np.stack([getattr(x, name) for name in names], axis=1))
    there = np.log(np.stack([getattr(measured, name) for name in names], axis=1))
    return np.sqrt(((here[:, None, :] - there[None, :, :]) ** 2).sum(axis=2).min(axis=1))


@dataclass(frozen=True, slots=True)
class _System:
    """What one fit works on. ``rows`` stacks a row for each T and one for each measured component; ``owner`` is the
    measurement that a row came from, ``is_total`` marks the rows of T."""

    design: Array
    rows: Array
    observed: Array
    owner: NDArray[np.int64]
    is_total: NDArray[np.bool_]
    weight: Array
    scale: Array  # per term: its share of the step time per unit of coefficient, for the prior
    ridge: Array  # per term: prior standard deviation of that share


def fit(
    measurements: Sequence[Measurement],
    form: str = "default",
    *,
    robust: bool = True,
    component_constants: bool = True,
) -> FittedModel:
    """Fit by minimising the squared log error (RMSLE, DLRover-RM §4.3) under non-negative coefficients.

    Each Gauss-Newton step on log T is a plain NNLS: with J = X / T_predicted the linearised prediction is
    log T_predicted + J theta - 1, so the target is 1 + log(T / T_predicted). ``robust`` reweights by L1, then by
    Tukey's bisquare, against hung windows. Measured components add rows of their own, relative to the whole step;
    ``component_constants`` gives each of them its beta (leave it off where components exclude their constant).
    Raises :class:`FitError` without measurements.
    """
    if not measurements:
        raise FitError("measurements is empty; give at least one measured configuration")
    chosen = form_named(form)
    measured = {name for row in measurements for name in row.components_s} if component_constants else set[str]()
    terms = _terms(chosen, components=sorted(measured))
    x = Inputs.of([row.configuration for row in measurements])
    system = _assemble(chosen, terms, x, measurements)
    weight = system.weight.copy()
    theta = _gauss_newton(system, weight)
    if robust and len(measurements) > 4:
        theta, weight = _reweight(system, theta)
    return _posterior(chosen, terms, system, theta, weight, measurements)


def _assemble(form: Form, terms: Sequence[Term], x: Inputs, measurements: Sequence[Measurement]) -> _System:
    design = _design(terms, x)
    step_time = np.array([row.step_time_s for row in measurements])
    rows, observed, owner = [design], [step_time], [np.arange(len(measurements))]
    for component in COMPONENTS:
        having = [i for i, row in enumerate(measurements) if component in row.components_s]
        if having:
            mask = np.array([term.component == component for term in terms], dtype=np.float64)
            rows.append(design[having] * mask)
            observed.append(np.array([measurements[i].components_s[component] for i in having]))
            owner.append(np.array(having))
    doubled = _design(terms, replace(x, workers=2 * x.workers))  # log w is 0 where only w = 1 was measured
    scale = np.where(design.any(axis=0), design, doubled) / step_time[:, None]
    prior = np.full(len(terms), form.share_prior)
    prior[0] = 10.0
    stacked = np.concatenate(rows)
    return _System(
        design=design,
        rows=stacked,
        observed=np.concatenate(observed),
        owner=np.concatenate(owner),
        is_total=np.arange(len(stacked)) < len(measurements),
        weight=np.array([row.weight for row in measurements]),
        scale=np.maximum(scale.mean(axis=0), 1e-300),
        ridge=np.where(np.arange(len(terms)) > 0, prior if form.ridge else 1e4, 1e4),
    )


RIDGE_NOISE_SD = 0.07


def _residuals(system: _System, theta: Array) -> tuple[Array, Array, Array]:
    """Predicted T per measurement, Jacobian and residual per row: of log T for T, relative to T for components."""
    predicted = np.maximum(system.design @ theta, 1e-3 * system.observed[system.is_total])
    jacobian = system.rows / predicted[system.owner][:, None]
    residual = (system.observed - system.rows @ theta) / predicted[system.owner]
    residual[system.is_total] = np.log(system.observed[system.is_total] / predicted)
    return predicted, jacobian, residual


def _objective(system: _System, theta: Array, weight: Array) -> float:
    _, _, residual = _residuals(system, theta)
    penalty = RIDGE_NOISE_SD / system.ridge * system.scale * theta
    return float((weight[system.owner] * residual**2).sum() + (penalty**2).sum())


def _gauss_newton(system: _System, weight: Array, theta: Array | None = None, rounds: int = 30) -> Array:
    """The non-negative coefficients of least weighted squared log error, ridge included."""
    ridge = np.diag(RIDGE_NOISE_SD / system.ridge)
    root = np.sqrt(weight)[system.owner][:, None]
    if theta is None:  # start from errors relative to the measured T
        relative = system.rows / system.observed[system.is_total][system.owner][:, None] / system.scale
        target = system.observed / system.observed[system.is_total][system.owner]
        solution = _nnls(np.vstack([root * relative, ridge]), np.concatenate([root[:, 0] * target, ridge[0] * 0]))
        theta = solution / system.scale
    best = _objective(system, theta, weight)
    for _ in range(rounds):
        _, jacobian, residual = _residuals(system, theta)
        target = jacobian @ theta + residual  # equals 1 + log(T / predicted) on the rows of T
        matrix = np.vstack([root * jacobian / system.scale, ridge])
        step = _nnls(matrix, np.concatenate([root[:, 0] * target, ridge[0] * 0])) / system.scale
        fraction, value = 1.0, math.inf
        while fraction > 1e-3:  # a convex combination stays non-negative
            value = _objective(system, theta + fraction * (step - theta), weight)
            if value <= best:
                break
            fraction /= 2
        if value > best:
            break
        theta = theta + fraction * (step - theta)
        if best - value <= 1e-12 * (1 + best):
            break
        best = value
    return theta


def _nnls(matrix: Array, target: Array) -> Array:
    return np.asarray(nnls(matrix, target, maxiter=50 * matrix.shape[1])[0], dtype=np.float64)


def _reweight(system: _System, theta: Array) -> tuple[Array, Array]:
    """L1, then bisquare weights by the residual of T: a hung window loses its say."""
    weight = system.weight
    for round_number in range(ROBUST_ROUNDS):
        _, _, residual = _residuals(system, theta)
        size = np.abs(residual[system.is_total])
        spread = max(1.4826 * float(np.median(size)), NEGLIGIBLE)
        if round_number < ROBUST_ROUNDS // 2:
            weight = system.weight * NEGLIGIBLE / np.maximum(size, NEGLIGIBLE)  # L1
        else:
            weight = system.weight * np.maximum(1 - (size / (4.685 * spread)) ** 2, 1e-3) ** 2
        theta = _gauss_newton(system, weight, theta, rounds=4)
    return theta, weight


def _posterior(
    form: Form,
    terms: Sequence[Term],
    system: _System,
    theta: Array,
    weight: Array,
    measurements: Sequence[Measurement],
) -> FittedModel:
    """Inverse-gamma posterior of the noise and normal posterior of all terms, those at zero included."""
    _, jacobian, residual = _residuals(system, theta)
    totals = residual[system.is_total]
    dof = NOISE_PRIOR_DOF + float(weight.sum())
    variance = (NOISE_PRIOR_DOF * NOISE_PRIOR_SD**2 + float((weight * totals**2).sum())) / dof
    prior = np.full(len(terms), form.share_prior)
    prior[0] = 10.0
    scaled = np.sqrt(weight)[system.owner][:, None] * jacobian / system.scale
    precision = scaled.T @ scaled + np.diag(variance / prior**2)
    covariance = np.linalg.inv(precision) / np.outer(system.scale, system.scale)
    return FittedModel(
        form=form.name,
        coefficients={term.name: float(value) for term, value in zip(terms, theta, strict=True)},
        covariance=tuple(tuple(float(value) for value in row) for row in covariance),
        noise_sd=math.sqrt(variance),
        dof=dof,
        rmsle=float(np.sqrt(np.average(totals**2, weights=system.weight))),
        unidentified=_unidentified(system.rows, [term.name for term in terms]),
        measured=tuple(dict.fromkeys(row.configuration for row in measurements)),
    )


def _unidentified(rows: Array, names: Sequence[str]) -> tuple[str, ...]:
    """Every coefficient on which some null vector of the design matrix is non-zero."""
    norms = np.linalg.norm(rows, axis=0)
    scaled = rows / np.where(norms > 0, norms, 1.0)
    _, singular, right = np.linalg.svd(scaled, full_matrices=True)
    rank = int((singular > 1e-9 * singular.max(initial=1.0)).sum())
    null = right[rank:]
    return tuple(name for name, column in zip(names, null.T, strict=True) if (np.abs(column) > 1e-6).any())
