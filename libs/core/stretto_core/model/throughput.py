"""The resource-performance model of one job: which plan trains how fast, and how sure that is.

Forms of the step time T (seconds), all coefficients >= 0. Symbols as in DLRover-RM Table 3: m batch size,
w workers, p parameter servers, l_w and l_p cores of one worker and one PS.

- ``paper`` (DLRover-RM Eq. 1-6): alpha_grad m/l_w + alpha_upd w/(p l_p) + alpha_sync (M/p)/(B/w)
  + alpha_emb m D/p + constant, the constant being the sum of the four betas, which T alone cannot tell apart.
- ``default``: a1 m/l_w + a2 + a3 w/(p l_p) + a4 w + a5 log w + a6/(p l_p) + a7 m/p, which has what Eq. 1 lacks on
  measured data: a cost that grows with w and does not shrink with p. Where they vary, two more: a8 [n > 1] + a9 w/n
  (n nodes: other nodes are further away, and pods of one node share its network) and a10 m/memory (what a worker's
  memory cannot cache is read again).
Workers on a type of devices d compute in a term of their own, a1@d m (alpha_grad@d m), for which a1 m/l_w is left out:
one type's coefficient knows nothing of another's cores, and all other terms are shared (HeterPS Eq. 1: OCT by type).

- ``optimus`` (Optimus, EuroSys'18 §3.2): theta0 m + theta1 + theta2 w/p + theta3 w + theta4 p.

Systems that overlap computing, communicating and reading take less than the sum. The terms of the default form belong
to three paths, worker (a1 and a constant), servers (a2 to a9) and input (a10), and T = (sum over paths T_path^o)^(1/o);
the overlap o is 1, the sum, unless the measurements speak for more; T tends to the slowest path as it grows.

Throughput is w m / T samples per second (Eq. 1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from stretto_messages.fitter import ModelFitted
from stretto_messages.values import UNIT_CORES_MAX, DeviceSpeed, KnownModel, MeasuredConfiguration, Plan

from stretto_core.machine import CoreError
from stretto_core.model.types import GUESSED_SD

Array = NDArray[np.float64]

FormName = Literal["default", "paper"]
"""Form of the throughput model that a fitter may be set to."""
COUNTS = ("workers", "ps")
AT = "@"
"""Stands in a coefficient's name between the term and the type of devices whose workers it is of."""
AXES = (*COUNTS, "worker_cpu_cores", "ps_cpu_cores")
"""Fields of a configuration, and of a plan, that can be varied."""
COMPONENTS = ("grad", "upd", "sync", "emb")
OVERLAPS = (2.0, 4.0, 8.0)
"""Overlaps o that are tried besides 1, the sum; values between them predict much the same."""
MISFIT_PER_LOG_UNIT = 0.06  # how far measured systems leave the form, per unit of log distance (measured)
KNOWS_NOTHING = 20.0  # widest half of an interval of a logarithm: e^20, so that its ends stay finite


class FitError(CoreError):
    """The measurements cannot be fitted; says which value is wrong and what to give instead."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """The variables of the step time. ``model_mb``, ``bandwidth_mb_s`` and ``embedding_dim`` are Eq. 4 and 5's
    M, B and D: constants of a job, 1 where unknown (then they are part of the coefficient). So are ``nodes``, on which
    the pods are, and ``worker_memory_gib``. The step is that of the workers on ``device`` (empty: on cores); ``mixed``:
    others of the job have another one, which the step time is taken not to depend on."""

    workers: int
    ps: int
    worker_cpu_cores: float
    ps_cpu_cores: float
    batch_size: int
    model_mb: float = 1.0
    bandwidth_mb_s: float = 1.0
    embedding_dim: float = 1.0
    nodes: int = 1
    worker_memory_gib: float = 1.0
    device: str = ""
    mixed: bool = False

    @staticmethod
    def of(plan: Plan, batch_size: int, device: str = "") -> Configuration:
        """The part of a plan that the step time of its workers on ``device`` depends on."""
        mixed = bool(plan.groups) and (plan.cpu_workers > 0 or len(plan.groups) > 1)
        of_units = {group.device: group.cpu_cores for group in plan.groups}
        return Configuration(
            plan.workers,
            plan.ps,
            of_units.get(device, plan.worker_cpu_cores),
            plan.ps_cpu_cores,
            batch_size,
            device=device,
            mixed=mixed,
        )

    @staticmethod
    def measured(row: MeasuredConfiguration) -> Configuration:
        """The configuration that the fitter's windows were measured under."""
        return Configuration(
            row.workers,
            row.ps,
            row.worker_cpu_cores,
            row.ps_cpu_cores,
            row.batch_size,
            device=row.device,
            mixed=row.mixed,
        )


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
    nodes: Array = field(default_factory=lambda: np.ones(()))
    worker_memory_gib: Array = field(default_factory=lambda: np.ones(()))
    device: NDArray[np.str_] = field(default_factory=lambda: np.array(""))

    @staticmethod
    def of(configurations: Sequence[Configuration]) -> Inputs:
        """One row per configuration."""

        def column(name: str) -> Array:
            return np.array([getattr(row, name) for row in configurations], dtype=np.float64)

        numbers = {name: column(name) for name in Inputs.__slots__ if name != "device"}
        return Inputs(**numbers, device=np.array([row.device for row in configurations], dtype=np.str_))


@dataclass(frozen=True, slots=True)
class Term:
    """One non-negative term: its name, the component of the step it belongs to, its input, its path where paths
    overlap. One with ``if_varies``, a field of :class:`Inputs`, is left out where that is the same everywhere."""

    name: str
    component: str
    feature: Callable[[Inputs], Array]
    path: str = "servers"
    if_varies: str = ""
    device: str | None = None
    """The type of devices whose workers the term is of; None: all workers'."""

    def of(self, x: Inputs) -> Array:
        """Return the input of the term: 0 for workers on other devices than its own."""
        amount = self.feature(x)
        if self.device is None:
            return amount
        own = x.device == self.device
        return amount if own.all() else amount * own

    @property
    def computes(self) -> bool:
        """True for the term of a worker's own computing, which no prior pulls."""
        return self.device is not None


@dataclass(frozen=True, slots=True)
class Form:
    """A model form. ``share_prior`` is the prior standard deviation of the largest share of a step time of every term
    but the first; ``ridge`` says whether it also pulls the coefficients (else it only widens the intervals)."""

    name: str
    terms: tuple[Term, ...]
    constant: str
    constants_by_component: dict[str, str]
    share_prior: float
    ridge: bool
    overlaps: bool = False


def _ones(x: Inputs) -> Array:
    return np.ones_like(x.workers * x.ps)


PAPER = Form(
    name="paper",
    terms=(
        Term("alpha_grad", "grad", lambda x: x.batch_size / x.worker_cpu_cores, device=""),  # Eq. 2
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
        Term("a1", "grad", lambda x: x.batch_size / x.worker_cpu_cores, "worker", device=""),
        Term("a3", "upd", lambda x: x.workers / (x.ps * x.ps_cpu_cores)),
        Term("a4", "sync", lambda x: x.workers),
        Term("a5", "sync", lambda x: np.log(x.workers)),
        Term("a6", "upd", lambda x: 1.0 / (x.ps * x.ps_cpu_cores)),
        Term("a7", "emb", lambda x: x.batch_size / x.ps),
        Term("a8", "sync", lambda x: (x.nodes > 1).astype(np.float64), if_varies="nodes"),
        Term("a9", "sync", lambda x: x.workers / x.nodes, if_varies="nodes"),
        Term("a10", "", lambda x: x.batch_size / x.worker_memory_gib, "input", if_varies="worker_memory_gib"),
    ),
    constant="a2",
    constants_by_component={component: f"a2_{component}" for component in COMPONENTS},
    share_prior=0.3,
    ridge=True,
    overlaps=True,
)

OPTIMUS = Form(
    name="optimus",
    terms=(
        Term("theta0", "grad", lambda x: x.batch_size, device=""),
        Term("theta2", "sync", lambda x: x.workers / x.ps),
        Term("theta3", "sync", lambda x: x.workers),
        Term("theta4", "sync", lambda x: x.ps),
    ),
    constant="theta1",
    constants_by_component={component: f"theta1_{component}" for component in COMPONENTS},
    share_prior=10.0,
    ridge=False,
)

FORMS = {form.name: form for form in (DEFAULT, PAPER, OPTIMUS)}


def form_named(name: str) -> Form:
    """The form of that name; raises :class:`FitError` for another."""
    if name not in FORMS:
        raise FitError(f"form is {name!r}; choose one of {', '.join(FORMS)}")
    return FORMS[name]


def terms_of(form: Form, x: Inputs, components: Sequence[str] = (), overlap: float = 1.0) -> tuple[Term, ...]:
    """Return the form's terms that vary in ``x``, and their constants.

    There is one constant, one more per component measured by itself and, where paths overlap, one of the worker.
    """
    varying = [term for term in form.terms if not term.if_varies or np.ptp(getattr(x, term.if_varies)) > 0]
    varying[1:1] = [_on_device(form, name) for name in sorted({*x.device.ravel().tolist()} - {""})]
    own = {*components, "grad"} if overlap > 1 else {*components}
    constants = [_constant(form, component, component in components) for component in COMPONENTS if component in own]
    return (*varying, *constants, Term(form.constant, "", _ones))


def terms_named(form: Form, names: Sequence[str]) -> tuple[Term, ...]:
    """Return the terms of a fitted model, by their names."""
    known = _terms_by_name(form)
    return tuple(known[name] if name in known else _on_device(form, name.partition(AT)[2]) for name in names)


@lru_cache(maxsize=64)
def _fitted_terms(form: str, names: tuple[str, ...]) -> tuple[Term, ...]:
    """Return the terms of a fitted model, for which a front over devices asks hundreds of times."""
    return terms_named(form_named(form), names)


def _on_device(form: Form, device: str) -> Term:
    """Return the term of computing of workers on a type of devices, whose units are all alike: coefficient x m."""
    first = form.terms[0]
    return Term(f"{first.name}{AT}{device}", first.component, _batch, first.path, device=device)


def _batch(x: Inputs) -> Array:
    return x.batch_size


def _terms_by_name(form: Form) -> dict[str, Term]:
    constants = [_constant(form, component, True) for component in COMPONENTS]
    return {term.name: term for term in (*form.terms, *constants, Term(form.constant, "", _ones))}


def _constant(form: Form, component: str, measured: bool) -> Term:
    path = "worker" if component == "grad" else "servers"
    return Term(form.constants_by_component[component], component if measured else "", _ones, path)


def combined(parts: Array, overlap: float) -> Array:
    """T of its paths (first axis): their sum for ``overlap`` 1, the slowest as it grows."""
    if overlap == 1 or len(parts) == 1:
        return parts.sum(axis=0)
    slowest = np.maximum(parts.max(axis=0), 1e-300)
    return slowest * ((parts / slowest) ** overlap).sum(axis=0) ** (1 / overlap)


def is_understood(model: KnownModel) -> bool:
    """Return True if the terms of a remembered model are those of its form: an earlier version may have had others."""
    if model.form not in FORMS:
        return False
    form = FORMS[model.form]
    ours = (name for name in model.coefficients if not name.startswith(form.terms[0].name + AT))
    return _terms_by_name(form).keys() >= {*ours}


def predicted_step_time_s(form: str, coefficients: Mapping[str, float], overlap: float, x: Inputs) -> Array:
    """Return the predicted T in seconds, in the shape that the inputs broadcast to."""
    shape = np.broadcast_shapes(*(getattr(x, name).shape for name in Inputs.__slots__))
    paths = dict[str, Array]()
    for term in _fitted_terms(form, tuple(coefficients)):
        coefficient = coefficients[term.name]
        if coefficient > 0:  # broadcasting the small feature arrays keeps a million-plan grid cheap
            path = term.path if overlap > 1 else ""
            paths[path] = (paths[path] if path in paths else np.zeros(shape)) + coefficient * term.of(x)
    if len(paths) > 1:
        return np.maximum(combined(np.stack(list(paths.values())), overlap), 1e-12)
    return np.maximum(next(iter(paths.values()), np.zeros(shape)), 1e-12)


ROUNDING = 1e-9
"""Tolerance for sums of fractions of cores."""


@dataclass(frozen=True, slots=True)
class Supply:
    """The batches that are prepared for a job, faster than which no plan trains.

    ``home_s``: time in which a worker prepares one. With ``home_ahead`` the worker trains another batch meanwhile;
    without, it waits. ``data_worker_per_s``: batches per second of a data worker, of which there are at most ``most``,
    and as many as a plan leaves ``cores_each`` of ``room_cores`` for: a larger plan has fewer.
    """

    home_s: float = 0.0
    data_worker_per_s: float = 0.0
    most: int = 0
    cores_each: float = 1.0
    room_cores: float = math.inf
    home_ahead: bool = True

    def step_time_s(self, x: Inputs, on_devices: int = 0) -> Array:
        """Return the least time between two steps of a worker: whoever prepares faster does.

        ``on_devices``: workers that leave the cluster's cores to others.
        """
        if not (self.most and self.data_worker_per_s):
            return np.full(x.workers.shape, self.home_s)
        return np.minimum(self.home_s or np.inf, self._lanes_s(x, on_devices))

    def slowed_s(self, trained_s: Array, x: Inputs, on_devices: int = 0) -> Array:
        """Return the time between two steps of a worker that would train one in ``trained_s`` if it never waited."""
        if self.home_ahead:
            return np.maximum(trained_s, self.step_time_s(x, on_devices))
        at_home_s = trained_s + self.home_s
        if not (self.most and self.data_worker_per_s):
            return at_home_s
        return np.minimum(at_home_s, np.maximum(trained_s, self._lanes_s(x, on_devices)))

    def _lanes_s(self, x: Inputs, on_devices: int) -> Array:
        """Return the time between two batches that data workers prepare for one worker."""
        left = self.room_cores - (x.workers - on_devices) * x.worker_cpu_cores - x.ps * x.ps_cpu_cores
        count = np.clip(np.floor(left / self.cores_each + ROUNDING), 0, self.most)
        return x.workers / np.maximum(count * self.data_worker_per_s, 1e-12)


ENDLESS = Supply()
"""Batches come as fast as they are taken."""


class Prediction(NamedTuple):
    """A predicted step time T in seconds, and the ends of its interval."""

    step_time_s: float
    low_s: float
    high_s: float


@dataclass(frozen=True, slots=True)
class FittedModel:
    """A fitted form: predictions with intervals, and what the measurements cannot tell.

    ``covariance`` (term x term, in the order of ``coefficients``) times ``noise_sd``² is the posterior covariance
    over all terms, zeros included; ``dof`` its degrees of freedom. ``rmsle`` is over the fitted measurements.
    ``unidentified`` names every coefficient on which some null vector of the design matrix is non-zero. ``overlap`` of
    the paths is 1 where their times add up. ``supply`` bounds what is predicted: the form is of training alone.
    """

    form: str
    coefficients: dict[str, float]
    covariance: tuple[tuple[float, ...], ...]
    noise_sd: float
    dof: float
    rmsle: float
    unidentified: tuple[str, ...]
    measured: tuple[Configuration, ...]
    overlap: float = 1.0
    supply: Supply = ENDLESS

    @staticmethod
    def of(message: ModelFitted, supply: Supply = ENDLESS) -> FittedModel:
        """Return the model that the fitter published."""
        return FittedModel(
            supply=supply,
            form=message.form,
            coefficients=message.coefficients,
            covariance=message.covariance,
            noise_sd=message.log_sd,
            dof=message.degrees_of_freedom,
            rmsle=message.rmsle,
            unidentified=message.unidentified,
            measured=tuple(Configuration.measured(row) for row in message.measured),
            overlap=message.overlap,
        )

    @property
    def known(self) -> KnownModel:
        """Part of the model that similar jobs can reuse."""
        return KnownModel(form=cast("FormName", self.form), coefficients=self.coefficients, overlap=self.overlap)

    def step_time_s(self, x: Inputs) -> Array:
        """Return the predicted T in seconds, in the shape that the inputs broadcast to."""
        trained_s = self.trained_s(x)
        return trained_s if self.supply == ENDLESS else self.supply.slowed_s(trained_s, x)

    def trained_s(self, x: Inputs) -> Array:
        """Return the predicted T in seconds of workers that never wait for a batch."""
        return predicted_step_time_s(self.form, self.coefficients, self.overlap, x)

    def part_s(self, x: Inputs, *, computes: bool) -> Array:
        """Return the part of T in which workers compute (forward and backward through the dense layers), or T of
        workers whose computing others do, which pull rows, push and synchronize."""
        part = {term.name: self.coefficients[term.name] for term in self._terms_of(computes)}
        return predicted_step_time_s(self.form, part, self.overlap, x)

    def crossing_s(self, x: Inputs) -> Array:
        """Return the time in which a worker passes the rows of a batch on to another worker (ODT, HeterPS §4.1).

        The same rows come from one server over the same link in T_emb at p = 1. A pull that no step waited for tells
        nothing of the link, and counts as 0.
        """
        terms = terms_named(form_named(self.form), tuple(self.coefficients))
        part = {term.name: self.coefficients[term.name] for term in terms if term.component == "emb"}
        return predicted_step_time_s(self.form, part, self.overlap, replace(x, ps=np.ones_like(x.ps)))

    def _terms_of(self, computes: bool) -> tuple[Term, ...]:
        form = form_named(self.form)
        constant = form.constants_by_component["grad"]
        terms = terms_named(form, tuple(self.coefficients))
        return tuple(term for term in terms if (term.computes or term.name == constant) == computes)

    @property
    def devices(self) -> frozenset[str]:
        """The types of devices on which workers were measured; empty text stands for cores."""
        return frozenset(row.device for row in self.measured)

    def speeds(self, job: str) -> tuple[DeviceSpeed, ...]:
        """Return how fast ``job``'s units of each type computed beside its workers on cores, as last measured.

        k cores take t_k to compute a batch, a unit takes t: it is as fast as k t_k / t cores. With J the derivatives of
        log t_k - log t by the coefficients, and C their covariance, the logarithm's variance is J C J'. What computing
        takes is measured, though one size of worker does not tell how much of that is a constant. A unit whose
        computing is too small a part of a step is left out: its speed would be less sure than a stated one.
        """
        latest, terms = {row.device: row for row in self.measured}, self._terms_of(computes=True)
        names = list(self.coefficients)
        if "" not in latest or len(self.covariance) < len(names):
            return ()
        at = [names.index(term.name) for term in terms]
        theta, of_terms = np.array(list(self.coefficients.values()))[at], np.array(self.covariance)[np.ix_(at, at)]
        found = list[DeviceSpeed]()
        for device in sorted(latest.keys() - {""}):
            design = design_of(terms, Inputs.of([latest[""], latest[device]]))
            computes_s = design @ theta
            if computes_s.min() <= 0:
                continue
            contrast = np.array([1.0, -1.0]) / computes_s @ design
            log_sd = self.noise_sd * math.sqrt(max(float(contrast @ of_terms @ contrast), 0.0))
            cores = float(latest[""].worker_cpu_cores * computes_s[0] / computes_s[1])
            if log_sd < GUESSED_SD and 0 < cores <= UNIT_CORES_MAX:
                found.append(DeviceSpeed(device=device, cores=cores, log_sd=log_sd, job=job))
        return tuple(found)

    def log_sd(self, x: Inputs) -> Array:
        """Standard deviation of log T of each row of one-dimensional inputs: coefficients, noise-free."""
        return self._log_sd(x, terms_named(form_named(self.form), tuple(self.coefficients)), DISTANCE)

    def part_log_sd(self, x: Inputs, *, computes: bool) -> Array:
        """Standard deviation of the log of a part of T; computing depends on the worker alone."""
        return self._log_sd(x, self._terms_of(computes), DISTANCE_OF_WORKER if computes else DISTANCE)

    def _log_sd(self, x: Inputs, terms: tuple[Term, ...], axes: Sequence[str]) -> Array:
        names = list(self.coefficients)
        at = [names.index(term.name) for term in terms]
        theta = np.array([self.coefficients[term.name] for term in terms])
        design = design_of(terms, x)
        predicted = predicted_at_least(terms, design, theta, self.overlap)
        jacobian = log_sensitivity(terms, design, theta, self.overlap, predicted)
        spread = np.einsum("ij,jk,ik->i", jacobian, np.array(self.covariance)[np.ix_(at, at)], jacobian)
        misfit = MISFIT_PER_LOG_UNIT * _log_distance(x, Inputs.of(self.measured), axes)
        return np.sqrt(self.noise_sd**2 * np.maximum(spread, 0.0) + misfit**2)

    def interval_s(self, x: Inputs, level: float = 0.9, *, of_measurement: bool = False) -> tuple[Array, Array]:
        """Low and high T in seconds at ``level``; ``of_measurement`` adds the noise of one measured window."""
        sd = self.log_sd(x)
        if of_measurement:
            sd = np.sqrt(sd**2 + self.noise_sd**2)
        half = np.minimum(self.quantile(level) * sd, KNOWS_NOTHING)
        predicted = self.step_time_s(x)
        return predicted * np.exp(-half), predicted * np.exp(half)

    def predicted(self, asked: Sequence[Configuration], level: float = 0.9) -> list[Prediction]:
        """Return the step time of each configuration, with the interval of a new measurement of it at ``level``."""
        x = Inputs.of(asked)
        low, high = self.interval_s(x, level, of_measurement=True)
        return [Prediction(*map(float, row)) for row in zip(self.step_time_s(x), low, high, strict=True)]

    def quantile(self, level: float = 0.9) -> float:
        """Return the half-width of the interval at ``level``, in standard deviations."""
        from scipy.special import stdtrit  # imported late: it takes longer than everything else of a service's start

        return float(stdtrit(self.dof, 0.5 + level / 2))

    def half_width(self, configuration: Configuration, level: float = 0.9) -> float:
        """Half of the interval in log T: 0.1 reads +-10 %. Above 0.5 the plan is not identified."""
        low, high = self.interval_s(Inputs.of([configuration]), level)
        return float(np.log(high[0] / low[0]) / 2)


def measured_throughput(row: MeasuredConfiguration, supply: Supply = ENDLESS) -> float:
    """Return the samples per second of a measured configuration (Eq. 1), as far as ``supply`` lets it train."""
    step_s = row.step_time_s
    if supply != ENDLESS:
        step_s = float(supply.slowed_s(np.array([step_s]), Inputs.of([Configuration.measured(row)]))[0])
    return row.workers * row.batch_size / step_s


def throughput(step_time_s: Array, x: Inputs) -> Array:
    """Samples per second, Eq. 1."""
    return x.workers * x.batch_size / step_time_s


def design_of(terms: Sequence[Term], x: Inputs) -> Array:
    """One row per configuration, one column per term."""
    design = np.empty((*x.workers.shape, len(terms)))
    for index, term in enumerate(terms):
        design[:, index] = term.of(x)
    return design


def predicted_at_least(
    terms: Sequence[Term], design: Array, theta: Array, overlap: float, least: Array | float = 1e-12
) -> Array:
    """T of each row of the design, at least ``least``."""
    parts = design @ theta if overlap == 1 else combined(_path_times(terms, design, theta)[0], overlap)
    return np.maximum(parts, least)


def log_sensitivity(terms: Sequence[Term], design: Array, theta: Array, overlap: float, predicted: Array) -> Array:
    """Derivatives of log T of each row of the design by the coefficients, where T is ``predicted``.

    d log T / d theta_k = x_k (T_path / T)^(o - 1) / T; times theta they sum to 1, since T is of degree one in theta.
    """
    if overlap == 1:
        return design / predicted[:, None]
    parts, member = _path_times(terms, design, theta)
    return design * (((parts / predicted) ** (overlap - 1)).T @ member) / predicted[:, None]


def _path_times(terms: Sequence[Term], design: Array, theta: Array) -> tuple[Array, Array]:
    """T of each path (first axis) in each row of the design, and which terms belong to which path."""
    member = _members(tuple(term.path for term in terms))
    return member @ (design * theta).T, member


@lru_cache(maxsize=256)
def _members(paths: tuple[str, ...]) -> Array:
    """Return a row for each path, in order of their names, with 1 for each term on it."""
    return np.array([[path == name for path in paths] for name in sorted({*paths})], dtype=np.float64)


DISTANCE_OF_WORKER = ("worker_cpu_cores", "batch_size", "worker_memory_gib")
DISTANCE = ("workers", "ps", "ps_cpu_cores", "nodes", *DISTANCE_OF_WORKER)
"""Fields of :class:`Inputs` by which configurations are far from each other."""


def _log_distance(x: Inputs, measured: Inputs, names: Sequence[str]) -> Array:
    """Euclidean distance to the nearest measured configuration, over the logs of the fields with these names.

    Another type of devices is as far as a factor of e.
    """

    def logs(rows: Inputs) -> Array:
        return np.log(np.stack([np.broadcast_to(getattr(rows, name), rows.workers.shape) for name in names], axis=1))

    here, there = logs(x), logs(measured)
    other = np.broadcast_to(x.device, x.workers.shape)[:, None] != measured.device[None, :]
    return np.sqrt((((here[:, None, :] - there[None, :, :]) ** 2).sum(axis=2) + other).min(axis=1))
