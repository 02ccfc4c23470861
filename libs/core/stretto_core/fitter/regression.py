"""The fit of a throughput model: log error by Gauss-Newton over non-negative least squares (DLRover-RM §4.3)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from stretto_messages.values import KnownModel

from stretto_core.model.throughput import (
    COMPONENTS,
    OVERLAPS,
    Array,
    FitError,
    FittedModel,
    Form,
    Inputs,
    Measurement,
    Term,
    design_of,
    form_named,
    log_sensitivity,
    predicted_at_least,
    predicted_step_time_s,
    terms_of,
)

ROBUST_ROUNDS = 12
NEGLIGIBLE = 0.02  # a log error below this is never an outlier
SUSPICIOUS = 0.2  # log error that no ordinary window has
OUTLYING = 4.0  # times the usual log error
NOISE_PRIOR_DOF, NOISE_PRIOR_SD = 4.0, 0.08
RIDGE_NOISE_SD = 0.07  # what the ridge takes the noise of a measurement for
FREE = 1e4  # prior standard deviation of a share that the ridge does not pull
STRENGTHS = ((0.25, 0.25), (1.0, 0.5), (4.0, 0.25))  # times the ridge; the chance of each (about a half-Cauchy's)
FINE, COARSE = 1e-12, 1e-6  # decrease of the objective at which the search ends; where paths overlap it is slow
REJECTED = 0.05  # of its weight, or less, is left to a measurement that is an outlier
COMPONENT_WEIGHT = 0.25  # of a component's row beside the row of T, which is what a plan is judged by
SIMILAR_SHARE_SD = 0.1  # of a term's share of the step between similar jobs
OVERLAP_EVIDENCE = 3.0  # log likelihood that an overlap has to be ahead of none


@dataclass(frozen=True, slots=True)
class _System:
    """Input of one fit. ``rows`` stacks a row for each T, ``totals`` in number, and one for each measured component;
    ``owner`` is the measurement that a row came from."""

    terms: tuple[Term, ...]
    overlap: float
    design: Array
    rows: Array
    observed: Array
    owner: NDArray[np.int64]
    totals: int
    weight: Array
    share: Array  # per row: what it weighs beside the others of its measurement
    scale: Array  # per term: its largest (beside a similar job, mean) share of a step per unit of coefficient
    ridge: Array  # per term: prior standard deviation of that share
    spread: Array  # the same for the intervals, which a term that is not pulled widens too
    expected: Array  # per term: prior mean of that share


def fit(
    measurements: Sequence[Measurement],
    form: str = "default",
    *,
    robust: bool = True,
    component_constants: bool = True,
    similar: KnownModel | None = None,
) -> FittedModel:
    """Fit by minimising the squared log error (RMSLE, DLRover-RM §4.3) under non-negative coefficients.

    Each Gauss-Newton step on log T is a plain NNLS: with J = d log T / d theta, for which J theta = 1, the linearised
    prediction is log T_predicted + J theta - 1, so the target is 1 + log(T / T_predicted). ``robust`` reweights by L1,
    then by Tukey's bisquare, against hung windows. Measured components add rows of their own, relative to the whole
    step; ``component_constants`` gives each of them its beta (leave it off where components exclude their constant).

    ``similar`` is the model of a job like this one: what few measurements leave open is then as there, in shares of the
    step, its overlap included. Raises :class:`FitError` without measurements, or for a ``similar`` of another form.
    """
    if similar is not None and similar.form != form:
        raise FitError(f"similar has the form {similar.form!r}; give a model of the form {form!r}")
    chosen, components, x = _given(measurements, form, component_constants)

    def settled(overlap: float) -> tuple[_System, Array, Array]:
        system = _assemble(chosen, terms_of(chosen, x, components, overlap), overlap, x, measurements, similar)
        theta, weight = _gauss_newton(system, system.weight), system.weight
        if robust and len(measurements) > 4 and _suspicious(system, theta):
            theta, weight = _reweight(system, theta)
        return system, theta, weight

    best = settled(1.0 if similar is None else similar.overlap)
    if chosen.overlaps and similar is None:
        best = _overlapping(best, settled)
    system, theta, weight = best
    if chosen.ridge and similar is None:
        theta = _over_strengths(system, theta, weight)
    return _posterior(chosen, system, theta, weight, measurements)


def _overlapping(
    additive: tuple[_System, Array, Array], settled: Callable[[float], tuple[_System, Array, Array]]
) -> tuple[_System, Array, Array]:
    """The overlap that the measurements speak for, if they do clearly."""
    evidence = _evidence(*additive[:2])
    if _evidence_most(additive[0]) < evidence + OVERLAP_EVIDENCE:
        return additive
    best = settled(OVERLAPS[1])
    if _evidence(*best[:2]) >= evidence:  # else more or less of it is not far ahead either
        others = (best, settled(OVERLAPS[0]), settled(OVERLAPS[2]))
        best = max(others, key=lambda found: _evidence(*found[:2]))
    return best if _evidence(*best[:2]) >= evidence + OVERLAP_EVIDENCE else additive


def _evidence(system: _System, theta: Array) -> float:
    """Log likelihood with the noise integrated out, of the best coefficients; hung windows count as suspicious ones."""
    _, size = _residuals(system, theta)
    of_totals = size[: system.totals]
    np.minimum(np.abs(of_totals), SUSPICIOUS, out=of_totals)
    loss = _loss(system, system.share * system.weight[system.owner], size, theta)
    return _evidence_most(system) - _evidence_scale(system) * math.log1p(loss / (NOISE_PRIOR_DOF * NOISE_PRIOR_SD**2))


def _over_strengths(system: _System, theta: Array, weight: Array) -> Array:
    """Mean of the coefficients that each strength of the ridge leads to, by its marginal likelihood: how far terms are
    pulled is for the measurements to say (MacKay, Bayesian Interpolation, Neural Computation 1992)."""
    found, evidence = list[Array](), list[float]()
    for strength, chance in STRENGTHS:
        stiff = replace(system, ridge=np.where(system.ridge < FREE, system.ridge / strength, FREE))
        found.append(theta if strength == 1 else _gauss_newton(stiff, weight, theta))
        evidence.append(math.log(chance) + _evidence(stiff, found[-1]) + _log_occam(stiff, found[-1], weight))
    likely = np.exp(np.array(evidence) - max(evidence))
    return likely / likely.sum() @ np.stack(found)


def _log_occam(system: _System, theta: Array, weight: Array) -> float:
    """Log of the part of the prior's volume that the measurements leave, in the terms that are not at zero."""
    taken = (theta > 0) | (system.ridge >= FREE)
    jacobian = _jacobian(system, theta, _residuals(system, theta)[0])
    scaled = (np.sqrt(system.share * weight[system.owner])[:, None] * jacobian / system.scale)[:, taken]
    ridge = system.ridge[taken]
    precision = (RIDGE_NOISE_SD / ridge) ** 2
    _, posterior = np.linalg.slogdet(scaled.T @ scaled + np.diag(precision))
    return float(np.log(precision[ridge < FREE]).sum() - posterior) / 2


def _evidence_scale(system: _System) -> float:
    return (NOISE_PRIOR_DOF + float((system.share * system.weight[system.owner]).sum())) / 2


def _evidence_most(system: _System) -> float:
    """Return the evidence of a perfect fit."""
    return -_evidence_scale(system) * math.log(NOISE_PRIOR_DOF * NOISE_PRIOR_SD**2)


def _given(measurements: Sequence[Measurement], form: str, component_constants: bool) -> tuple[Form, list[str], Inputs]:
    """The form, the components to have a constant each, the configurations. Raises :class:`FitError`."""
    if not measurements:
        raise FitError("measurements is empty; give at least one measured configuration")
    measured = {name for row in measurements for name in row.components_s} if component_constants else set[str]()
    return form_named(form), sorted(measured), Inputs.of([row.configuration for row in measurements])


def rmsle(
    measurements: Sequence[Measurement],
    form: str = "default",
    *,
    component_constants: bool = True,
    similar: KnownModel | None = None,
) -> FittedModel:
    """The log error of all measurements alike: a hung window counts as any other. Raises :class:`FitError`."""
    return fit(measurements, form, robust=False, component_constants=component_constants, similar=similar)


def least_squares(
    measurements: Sequence[Measurement],
    form: str = "default",
    *,
    component_constants: bool = True,
    similar: KnownModel | None = None,
) -> FittedModel:
    """NNLS on the seconds themselves (DLRover-RM §4.3 as most would read it): large step times count most, and what a
    ``similar`` job took counts for nothing.

    Raises :class:`FitError` without measurements.
    """
    chosen, components, x = _given(measurements, form, component_constants)
    system = _assemble(chosen, terms_of(chosen, x, components), 1.0, x, measurements)
    root = np.sqrt(system.weight[system.owner])
    theta = _nnls(root[:, None] * system.rows / system.scale, root * system.observed) / system.scale
    return _posterior(chosen, system, theta, system.weight, measurements)


class Fitting(Protocol):
    """Algorithms of the kind ``fit``; what the arguments mean, :func:`fit` says."""

    def __call__(
        self,
        measurements: Sequence[Measurement],
        form: str = ...,
        *,
        component_constants: bool = ...,
        similar: KnownModel | None = ...,
    ) -> FittedModel: ...


def _assemble(
    form: Form,
    terms: tuple[Term, ...],
    overlap: float,
    x: Inputs,
    measurements: Sequence[Measurement],
    similar: KnownModel | None = None,
) -> _System:
    design = design_of(terms, x)
    step_time = np.array([row.step_time_s for row in measurements])
    rows, observed, owner = [design], [step_time], [np.arange(len(measurements))]
    for component in COMPONENTS:
        having = [i for i, row in enumerate(measurements) if component in row.components_s]
        if having:
            mask = np.array([term.component == component for term in terms], dtype=np.float64)
            rows.append(design[having] * mask)
            observed.append(np.array([measurements[i].components_s[component] for i in having]))
            owner.append(np.array(having))
    doubled = design_of(terms, replace(x, workers=2 * x.workers))  # log w is 0 where only w = 1 was measured
    scale = np.where(design.any(axis=0), design, doubled) / step_time[:, None]
    # a step has at most one whole of any term, jobs are alike in their usual steps
    scale = np.maximum(scale.max(axis=0) if similar is None else scale.mean(axis=0), 1e-30)
    prior = np.full(len(terms), form.share_prior if similar is None else SIMILAR_SHARE_SD)
    computes = np.array([term.computes for term in terms])
    if similar is None:
        prior[computes] = 10.0
    stacked = np.concatenate(rows)
    return _System(
        terms=terms,
        overlap=overlap,
        design=design,
        rows=stacked,
        observed=np.concatenate(observed),
        owner=np.concatenate(owner),
        totals=len(measurements),
        share=np.where(np.arange(len(stacked)) < len(measurements), 1.0, COMPONENT_WEIGHT),
        weight=np.array([row.weight for row in measurements]),
        scale=scale,
        ridge=prior if similar is not None else np.where(~computes & form.ridge, prior, FREE),
        spread=prior,
        expected=np.zeros(len(terms)) if similar is None else _shares(similar, terms, scale, x, step_time),
    )


def _shares(similar: KnownModel, terms: Sequence[Term], scale: Array, x: Inputs, step_time_s: Array) -> Array:
    """Shares of the terms in a step of the similar job, scaled to this job's median step time."""
    slower = float(
        np.median(step_time_s / predicted_step_time_s(similar.form, similar.coefficients, similar.overlap, x))
    )
    return np.array([similar.coefficients.get(term.name, 0.0) for term in terms]) * slower * scale


def _residuals(system: _System, theta: Array) -> tuple[Array, Array]:
    """Predicted T per measurement, and the residual per row: of log T for T, relative to T for components."""
    of_totals = system.observed[: system.totals]
    predicted = predicted_at_least(system.terms, system.design, theta, system.overlap, 1e-3 * of_totals)
    residual = (system.observed - system.rows @ theta) / predicted[system.owner]
    residual[: system.totals] = np.log(of_totals / predicted)
    return predicted, residual


def _jacobian(system: _System, theta: Array, predicted: Array) -> Array:
    """Derivatives, per row, of what :func:`_residuals` takes the residual of."""
    jacobian = system.rows / predicted[system.owner][:, None]
    if system.overlap != 1:  # else the rows of T are those of the design, and their derivatives this
        jacobian[: system.totals] = log_sensitivity(system.terms, system.design, theta, system.overlap, predicted)
    return jacobian


def _loss(system: _System, weight: Array, residual: Array, theta: Array) -> float:
    """Squared residuals by the weight of each row, and what the ridge adds."""
    penalty = RIDGE_NOISE_SD / system.ridge * (system.scale * theta - system.expected)
    return float(np.add.reduce(weight * residual**2) + np.add.reduce(penalty**2))  # half the time of ndarray.sum


def _gauss_newton(system: _System, weight: Array, theta: Array | None = None, rounds: int = 30) -> Array:
    """The non-negative coefficients of least weighted squared log error, ridge included."""
    ridge, of_rows = np.diag(RIDGE_NOISE_SD / system.ridge), system.share * weight[system.owner]
    root, drawn = np.sqrt(of_rows)[:, None], ridge @ system.expected

    def solved(rows: Array, target: Array) -> Array:
        return _nnls(np.concatenate([rows, ridge]), np.concatenate([root[:, 0] * target, drawn])) / system.scale

    if theta is None:  # start from errors relative to the measured T
        measured = system.observed[: system.totals][system.owner]
        theta = solved(root * (system.rows / measured[:, None] / system.scale), system.observed / measured)
        if system.overlap > 1:  # a path that starts at 0 would stay there
            theta = 0.8 * theta + 0.2 / len(theta) / system.scale
    predicted, residual = _residuals(system, theta)
    best = _loss(system, of_rows, residual, theta)
    for _ in range(rounds):
        jacobian = _jacobian(system, theta, predicted)
        target = jacobian @ theta + residual  # equals 1 + log(T / predicted) on the rows of T
        step = solved(root * jacobian / system.scale, target)
        fraction, value, near = 1.0, math.inf, theta
        while fraction > 1e-3:  # a convex combination stays non-negative
            near = theta + fraction * (step - theta)
            predicted, residual = _residuals(system, near)
            value = _loss(system, of_rows, residual, near)
            if value <= best:
                break
            fraction /= 2
        if value > best:
            break
        theta = near
        if best - value <= (FINE if system.overlap == 1 else COARSE) * (1 + best):
            break
        best = value
    return theta


def _nnls(matrix: Array, target: Array) -> Array:
    from scipy.optimize import nnls  # imported late: it takes longer than everything else of a service's start

    return np.asarray(nnls(matrix, target, maxiter=50 * matrix.shape[1])[0], dtype=np.float64)


def _suspicious(system: _System, theta: Array) -> bool:
    """Return True if any residual is large or an outlier. Otherwise every measurement keeps its full weight."""
    size = np.abs(_residuals(system, theta)[1][: system.totals])
    most = float(size.max())
    return most > SUSPICIOUS or most > max(OUTLYING * 1.4826 * float(np.median(size)), NEGLIGIBLE)


def _reweight(system: _System, theta: Array) -> tuple[Array, Array]:
    """L1, then bisquare weights by the residual of T: a hung window loses its say."""
    weight = system.weight
    for round_number in range(ROBUST_ROUNDS):
        size = np.abs(_residuals(system, theta)[1][: system.totals])
        spread = max(1.4826 * float(np.median(size)), NEGLIGIBLE)
        if round_number < ROBUST_ROUNDS // 2:
            weight = system.weight * NEGLIGIBLE / np.maximum(size, NEGLIGIBLE)  # L1
        else:
            weight = system.weight * np.maximum(1 - (size / (4.685 * spread)) ** 2, 1e-3) ** 2
        theta = _gauss_newton(system, weight, theta, rounds=4)
    return theta, weight


def _posterior(
    form: Form,
    system: _System,
    theta: Array,
    weight: Array,
    measurements: Sequence[Measurement],
) -> FittedModel:
    """Inverse-gamma posterior of the noise and normal posterior of all terms, those at zero included."""
    terms = system.terms
    predicted, residual = _residuals(system, theta)
    jacobian, totals = _jacobian(system, theta, predicted), residual[: system.totals]
    # one that is rejected says nothing of the noise; the others all alike, else the noise is taken for too small
    believed = np.where(weight > REJECTED * system.weight, system.weight, 0.0)
    dof = NOISE_PRIOR_DOF + float(believed.sum())
    variance = (NOISE_PRIOR_DOF * NOISE_PRIOR_SD**2 + float((believed * totals**2).sum())) / dof
    scaled = np.sqrt(system.share * weight[system.owner])[:, None] * jacobian / system.scale
    precision = scaled.T @ scaled + np.diag(variance / system.spread**2)
    covariance = np.linalg.inv(precision) / np.outer(system.scale, system.scale)
    return FittedModel(
        form=form.name,
        coefficients={term.name: float(value) for term, value in zip(terms, theta, strict=True)},
        covariance=tuple(tuple(float(value) for value in row) for row in covariance),
        noise_sd=math.sqrt(variance),
        dof=dof,
        rmsle=float(np.sqrt(np.average(totals**2, weights=system.weight))),
        unidentified=_unidentified(jacobian, [term.name for term in terms]),
        measured=tuple(dict.fromkeys(row.configuration for row in measurements)),
        overlap=system.overlap,
    )


def _unidentified(rows: Array, names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the coefficients that the measurements do not determine.

    A coefficient is undetermined if a null vector of ``rows``, the Jacobian of the residuals, is non-zero there.
    """
    norms = np.linalg.norm(rows, axis=0)
    scaled = rows / np.where(norms > 0, norms, 1.0)
    _, singular, right = np.linalg.svd(np.linalg.qr(scaled, mode="r"), full_matrices=True)
    rank = int((singular > 1e-9 * singular.max(initial=1.0)).sum())
    null = right[rank:]
    return tuple(name for name, column in zip(names, null.T, strict=True) if (np.abs(column) > 1e-6).any())
