"""The updates of rows and dense slices: plug-ins, each with its slots, its kernel and the NumPy reference of that.

Formulas are those of Keras, slot by slot. Keras changes every row in every step; here a row is written only by a batch
that has its key. With Adagrad and SGD this is the same. Where momentum and squares go on without a gradient, a row gets
the steps that it missed when its key comes again (`Moving`). FTRL of Keras sets each row to 0 in the first step that
has no gradient of it; here a row keeps its initial weights until its first gradient.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..errors import InputRefused
from . import schedules
from .schedules import Constant, Cosine, Exponential, Schedule, Warmup

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]

HYPERPARAMETERS = 6
_SHARE_MAX = 0.999995
"""Nearest to 1 that a share of momentum or squares may be: a table of factors has 3.6 million steps then."""
_STEPS_MAX = 2**24
_NO_FACTORS = np.ones((2, 1), np.float32)


@dataclass(frozen=True)
class Optimizer(ABC):
    """The base of every optimizer. A row is [weights | slots]; a dense slice is one long row."""

    learning_rate: float | Constant | Exponential | Cosine | Warmup = 0.001

    KERNEL: ClassVar[int | None] = None
    """The number of the kernel in kernels.c; None: the reference serves always."""
    TAKES_SQUARES: ClassVar[bool] = False
    """True where squares of gradients count, as those of Keras: of each occurrence of a row in a batch."""

    def __post_init__(self) -> None:
        if isinstance(self.learning_rate, float | int):
            Constant(self.learning_rate)
        for name, value in self.shares().items():
            if not 0 <= value < 1:
                raise InputRefused(f"{name} = {value} of {type(self).__name__} must be at least 0 and less than 1")
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, float) and not (math.isfinite(value) and value >= 0):
                raise InputRefused(f"{each.name} = {value} of {type(self).__name__} must not be negative or infinite")

    @property
    def schedule(self) -> Schedule:
        """The learning rate as a function of the samples trained."""
        rate = self.learning_rate
        return Constant(rate) if isinstance(rate, float | int) else rate

    @property
    def dense(self) -> Optimizer:
        """The optimizer of dense slices."""
        return self

    @property
    def moves_rows_late(self) -> bool:
        """True where a row makes steps without a gradient later: what is read is as if it had made them."""
        return False

    @property
    def counters(self) -> int:
        """Slots at the end of a row that count steps."""
        return 0

    def in_steps_of(self, samples: int) -> Optimizer:
        """Return this optimizer with the samples of a step, where that matters to it and is not stated."""
        return self

    def shares(self) -> dict[str, float]:
        """Return the fields that must be at least 0 and less than 1."""
        return {}

    def hyperparameters(self) -> F32:
        """Return what the kernel calls h: [HYPERPARAMETERS]."""
        return np.array((*self._values(), *[0.0] * HYPERPARAMETERS)[:HYPERPARAMETERS], np.float32)

    def factors(self) -> F32:
        """Return [2 or 6, n]: factors by a row's steps, as `Moving.factors`; the last hold from then on."""
        return _NO_FACTORS

    def clocks(self, samples: I64) -> F32:
        """Return the steps of all rows after these samples, -1 where each row has a clock of its own: [columns]."""
        return np.full(len(samples), -1, np.float32)

    def catch_up(self, w: F32, s: F32, rates: F32, clocks: F32, h: F32) -> None:  # noqa: B027
        """Give rows the steps that they missed, in place, bit by bit as the kernel does: none here. clocks [n, 1]."""

    @abstractmethod
    def first_slots(self, width: int) -> F32:
        """Return the slots of a row of `width` weights before its first update."""

    @abstractmethod
    def step(self, w: F32, s: F32, g: F32, q: F32, rates: F32, h: F32) -> None:
        """Update weights [n, width] and slots [n, …] in place, bit by bit as the kernel does.

        g, q [n, width]: gradients and their squares, which need not be g * g (`Push.row_squares`). rates [n, 1].
        """

    def _values(self) -> tuple[float, ...]:
        return ()


@dataclass(frozen=True)
class Moving(Optimizer):
    """The base of optimizers whose rows go on without a gradient: momentum m moves them, and squares v fade.

    Slots are m and v, as far as the optimizer has them, and the steps t that the row has seen.
    step_samples: samples of a step, for rows that make every step, as rows of Keras and PyTorch do. A row makes the
    steps that it missed all at once when its key comes again: m, v and the sum of the moves are closed forms. A row
    begins with its first gradient. 0: a row rests without a gradient, and counts its own steps ("lazy"). None: the
    batch size of the job, and lazy in a store alone. Parameters of one value go on under another, in steps as long as
    before.
    """

    step_samples: int | None = field(default=None, compare=False, kw_only=True)

    IS_SCALED: ClassVar[bool] = False
    """True where m is made of gradients, and rate and squares scale its moves; else m is made of moves."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.step_samples is not None and self.step_samples < 0:
            raise InputRefused(f"step_samples = {self.step_samples} of {type(self).__name__} must not be negative")
        for name, value in self.shares().items():
            if value > _SHARE_MAX:
                raise InputRefused(
                    f"{name} = {value} of {type(self).__name__} is too near to 1: give at most {_SHARE_MAX}"
                )

    @abstractmethod
    def kept(self) -> tuple[float | None, float | None]:
        """Return the shares of m and v that a step without a gradient leaves; None where there is no such slot."""

    @property
    def moves_rows_late(self) -> bool:
        return bool(self.step_samples) and self.kept()[0] is not None

    @property
    def counters(self) -> int:
        return int(any(each is not None for each in self.kept()))

    def in_steps_of(self, samples: int) -> Optimizer:
        return replace(self, step_samples=samples) if self.step_samples is None else self

    def first_slots(self, width: int) -> F32:
        slots = sum(each is not None for each in self.kept())
        return np.zeros(slots * width + self.counters, np.float32)

    def factors(self) -> F32:
        """Return by t, until all are constant in float32, where rows make every step: [6, n].

        The first two are Adam's. Then the moves of a row from step t on by its momentum, in terms of m (scaled: of
        rate m / (sqrt(v) + epsilon)); r^t, the share of the moves that fades in t steps; the shares of m and v that t
        steps leave.
        """
        if not self.step_samples:
            return _NO_FACTORS
        m, v = (each or 0.0 for each in self.kept())
        return _fadings(m, v, self._moves(m))

    def clocks(self, samples: I64) -> F32:
        if not self.step_samples:
            return super().clocks(samples)
        return np.floor(samples / self.step_samples + 0.5).astype(np.float32)

    def catch_up(self, w: F32, s: F32, rates: F32, clocks: F32, h: F32) -> None:
        m, v, t = self._split(s, w.shape[1])
        if not t.size:
            return
        factors = self.factors()
        last = factors.shape[1] - 1
        t[~(t >= 0)] = 0
        seen = _steps_of(t)
        now = np.where(clocks > t, _steps_of(clocks), seen)
        t[:] = np.where(seen == 0, now.astype(np.float32), t)  # a new row begins now: nobody has read it decayed
        behind = np.flatnonzero((now[:, 0] > seen[:, 0]) & (seen[:, 0] > 0))
        if not len(behind):
            return
        seen, now, rates = seen[behind], now[behind], rates[behind]
        gap, at = np.minimum(now - seen, last), np.minimum(now, last)
        if m.size:
            step = factors[2, np.minimum(seen, last)] - factors[3, gap] * factors[2, at]
            root = np.float32(1)
            if self.IS_SCALED:
                step, root = rates * step, np.sqrt(v[behind]) + factors[1, at]
            w[behind] = w[behind] - step * m[behind] / root
            m[behind] = factors[4, gap] * m[behind]
        if decay := self._decay():  # momentum fades first
            w[behind] = _power(np.float32(1) - rates * np.float32(decay), now - seen) * w[behind]
        if v.size:
            v[behind] = factors[5, gap] * v[behind]
        t[behind] = now.astype(np.float32)

    def _split(self, s: F32, n: int) -> tuple[F32, F32, F32]:
        """Return the views of m, v and t in slots; one that there is not has no columns."""
        m, v = (n * (each is not None) for each in self.kept())
        return s[:, :m], s[:, m : m + v], s[:, m + v :]

    def _moves(self, share: float) -> float:
        """Return the sum of the moves that a momentum of 1 makes without a gradient, each subtracted from the row."""
        return share / (1 - share)

    def _decay(self) -> float:
        """Return the weight decay."""
        return 0.0


@dataclass(frozen=True)
class SGD(Moving):
    """Stochastic gradient descent; momentum (Polyak 1964) and Nesterov's as in Keras."""

    learning_rate: float | Constant | Exponential | Cosine | Warmup = 0.01
    momentum: float = 0.0
    nesterov: bool = False

    KERNEL = 0

    def shares(self) -> dict[str, float]:
        return {"momentum": self.momentum}

    def kept(self) -> tuple[float | None, float | None]:
        return self.momentum or None, None

    def step(self, w: F32, s: F32, g: F32, q: F32, rates: F32, h: F32) -> None:
        m, _, t = self._split(s, w.shape[1])
        if not self.momentum:
            w[:] = w - rates * g
            return
        _count(t)
        m[:] = h[0] * m - rates * g
        w[:] = w + (h[0] * m - rates * g) if self.nesterov else w + m

    def _moves(self, share: float) -> float:
        moves = -super()._moves(share)  # its momentum is added
        return share * moves if self.nesterov else moves

    def _values(self) -> tuple[float, ...]:
        return self.momentum, float(self.nesterov)


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """Adagrad (Duchi et al. 2011): a += g^2; w -= rate g / (sqrt(a + epsilon) + epsilon_outside).

    Keras adds its epsilon within the root, PyTorch outside.
    """

    initial_accumulator: float = 0.1
    epsilon: float = 1e-7
    epsilon_outside: float = 0.0

    KERNEL = 1
    TAKES_SQUARES = True

    def first_slots(self, width: int) -> F32:
        return np.full(width, self.initial_accumulator, np.float32)

    def step(self, w: F32, s: F32, g: F32, q: F32, rates: F32, h: F32) -> None:
        s[:] = s + q
        w[:] = w - rates * g / (np.sqrt(s + h[0]) + h[1])

    def _values(self) -> tuple[float, ...]:
        return self.epsilon, self.epsilon_outside


@dataclass(frozen=True)
class RowWiseAdagrad(Adagrad):
    """Adagrad with one accumulator a row: a += mean(g^2) (as FBGEMM). Dense slices have Adagrad."""

    KERNEL = 2
    TAKES_SQUARES = False

    @property
    def dense(self) -> Optimizer:
        return Adagrad(self.learning_rate, self.initial_accumulator, self.epsilon, self.epsilon_outside)

    def first_slots(self, width: int) -> F32:
        return np.full(1, self.initial_accumulator, np.float32)

    def step(self, w: F32, s: F32, g: F32, q: F32, rates: F32, h: F32) -> None:
        total = np.zeros(len(g), np.float64)
        for column in g.T.astype(np.float64):  # one after the other: a sum by halves has other bits
            total += column * column
        s[:, 0] = s[:, 0] + (total / g.shape[1]).astype(np.float32)
        w[:] = w - rates * g / (np.sqrt(s + h[0]) + h[1])


@dataclass(frozen=True)
class Adam(Moving):
    """Adam (Kingma & Ba 2015). Missed steps have the rate, the epsilon and the v of the moment when they are made.

    epsilon: beside the root of v as it is ("epsilon hat", Keras) or, with `is_epsilon_corrected`, of v without its bias
    (the paper's Algorithm 1, PyTorch).
    """

    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    is_epsilon_corrected: bool = False

    KERNEL = 3
    TAKES_SQUARES = True
    IS_SCALED = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.step_samples and not self._can_catch_up:
            raise InputRefused(
                f"beta_1 = {self.beta_1} of {type(self).__name__}: its square must be below beta_2 = {self.beta_2} and "
                "above 0, or give step_samples=0"
            )

    @property
    def _can_catch_up(self) -> bool:
        return 0 < self.beta_1**2 < self.beta_2

    def in_steps_of(self, samples: int) -> Optimizer:
        return super().in_steps_of(samples) if self._can_catch_up else self

    def shares(self) -> dict[str, float]:
        return {"beta_1": self.beta_1, "beta_2": self.beta_2}

    def kept(self) -> tuple[float | None, float | None]:
        return self.beta_1, self.beta_2

    def factors(self) -> F32:
        """Return by t the correction sqrt(1 - beta_2^t) / (1 - beta_1^t) and epsilon: [2, n]; where rows make every
        step, the rest of `Moving.factors`: moves from t on are the sum over j > 0 of correction(t + j) r^j, with
        r = beta_1 / sqrt(beta_2).
        """
        return _corrections(self.beta_1, self.beta_2, self.epsilon, self.is_epsilon_corrected, bool(self.step_samples))

    def step(self, w: F32, s: F32, g: F32, q: F32, rates: F32, h: F32) -> None:
        m, v, t = self._split(s, w.shape[1])
        factors = self.factors()
        at = np.minimum(_count(t), factors.shape[1] - 1)
        steps, epsilons = rates * factors[0, at], factors[1, at]
        m[:] = h[0] * m + h[1] * g
        v[:] = h[2] * v + h[3] * q
        w[:] = (w - (rates * h[4]) * w) - steps * m / (np.sqrt(v) + epsilons)

    def _values(self) -> tuple[float, ...]:
        return self.beta_1, 1 - self.beta_1, self.beta_2, 1 - self.beta_2, self._decay()


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019): w -= rate weight_decay w before each step."""

    weight_decay: float = 0.004

    def _decay(self) -> float:
        return self.weight_decay


@dataclass(frozen=True)
class RMSprop(Moving):
    """RMSprop (Tieleman & Hinton 2012) as in Keras, with its momentum; not centred. Epsilons as of Adagrad."""

    rho: float = 0.9
    momentum: float = 0.0
    epsilon: float = 1e-7
    epsilon_outside: float = 0.0

    KERNEL = 4
    TAKES_SQUARES = True

    def shares(self) -> dict[str, float]:
        return {"rho": self.rho, "momentum": self.momentum}

    def kept(self) -> tuple[float | None, float | None]:
        return self.momentum or None, self.rho

    def step(self, w: F32, s: F32, g: F32, q: F32, rates: F32, h: F32) -> None:
        m, v, t = self._split(s, w.shape[1])
        _count(t)
        v[:] = h[0] * v + h[1] * q
        change = rates * g / (np.sqrt(v + h[2]) + h[4])
        if self.momentum:
            m[:] = change = h[3] * m + change
        w[:] = w - change

    def _values(self) -> tuple[float, ...]:
        return self.rho, 1 - self.rho, self.epsilon, self.momentum, self.epsilon_outside


@dataclass(frozen=True)
class Ftrl(Optimizer):
    """FTRL-proximal (McMahan et al. 2013) as in Keras with learning_rate_power -0.5; slots n and z.

    It divides by the rate, so a schedule must not reach 0.
    """

    initial_accumulator: float = 0.1
    l1: float = 0.0
    l2: float = 0.0
    l2_shrinkage: float = 0.0
    beta: float = 0.0

    KERNEL = 5
    TAKES_SQUARES = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.schedule.lowest_rate() <= 0:
            raise InputRefused(f"learning_rate = {self.learning_rate} of Ftrl reaches 0: give a floor above 0")

    def first_slots(self, width: int) -> F32:
        return np.repeat(np.array([self.initial_accumulator, 0.0], np.float32), width)

    def step(self, w: F32, s: F32, g: F32, q: F32, rates: F32, h: F32) -> None:
        n = w.shape[1]
        sums, linear = s[:, :n], s[:, n:]
        l2 = h[1] + h[2] / (np.float32(2) * rates)
        root = np.sqrt(sums + q)
        linear[:] = linear + ((g + h[3] * w) - (root - np.sqrt(sums)) / rates * w)
        sums[:] = sums + q
        kept = np.where(linear > h[0], h[0], np.where(linear < -h[0], -h[0], linear))
        w[:] = (kept - linear) / (root / rates + np.float32(2) * l2)

    def _values(self) -> tuple[float, ...]:
        return self.l1, self.l2, self.beta, 2 * self.l2_shrinkage


@cache
def _corrections(beta_1: float, beta_2: float, epsilon: float, is_epsilon_corrected: bool, is_shared: bool) -> F32:
    """Return Adam's corrections of bias, its epsilons and, where steps are shared, what a gap costs: [2 or 6, n]."""
    t = _steps_until_constant(max(beta_1, beta_2))
    steps = len(t)
    t[0] = 1.0  # no step has the number 0
    root = np.sqrt(1 - beta_2**t)
    corrections = root / (1 - beta_1**t)
    epsilons = epsilon * (root if is_epsilon_corrected else np.ones(steps))
    if not is_shared:
        return np.stack([corrections, epsilons]).astype(np.float32)
    fading, t[0] = beta_1 / math.sqrt(beta_2), 0.0
    moves = np.empty(steps)
    moves[-1] = corrections[-1] * fading / (1 - fading)
    for step in range(steps - 2, -1, -1):
        moves[step] = fading * (corrections[step + 1] + moves[step + 1])
    return np.stack([corrections, epsilons, moves, fading**t, beta_1**t, beta_2**t]).astype(np.float32)


@cache
def _fadings(m: float, v: float, moves: float) -> F32:
    """Return what a gap costs momentum and squares of which a step leaves these shares, as `Moving.factors`: [6, n]."""
    t = _steps_until_constant(max(m, v))
    same = np.ones(len(t))
    return np.stack([same, same, moves * same, m**t, m**t, v**t]).astype(np.float32)


def _steps_until_constant(share: float) -> NDArray[np.float64]:
    """Return 0, 1, … until a power of the share no longer changes a sum of float32."""
    return np.arange(2 if share < 1e-6 else math.ceil(math.log(2.0**-26) / math.log(share)) + 2, dtype=np.float64)


def _count(t: F32) -> I64:
    """Count a step of each row, in place; return them as whole numbers."""
    t[~(t >= 0)] = 0
    now = _steps_of(t) + 1
    t[:] = now.astype(np.float32)
    return now


def _steps_of(count: F32) -> I64:
    """Return whole steps. A float counts them exactly up to 2^24; there it stops."""
    return np.where(count < _STEPS_MAX, count, _STEPS_MAX).astype(np.int64)


def _power(base: F32, exponents: I64) -> F32:
    """Return powers by squaring, with the kernel's bits."""
    result, left = np.ones_like(base), exponents.copy()
    while left.any():
        result = np.where(left & 1, result * base, result)
        left >>= 1
        base = np.square(base)
    return result


OPTIMIZERS: dict[str, type[Optimizer]] = {
    "sgd": SGD,
    "adagrad": Adagrad,
    "rowwise-adagrad": RowWiseAdagrad,
    "adam": Adam,
    "adamw": AdamW,
    "rmsprop": RMSprop,
    "ftrl": Ftrl,
}
"""Optimizers by the names that a job uses."""


def to_dict(optimizer: Optimizer) -> dict[str, Any]:
    """Return an optimizer of OPTIMIZERS as JSON-able values."""
    return {**asdict(optimizer), "kind": _name(optimizer, OPTIMIZERS), "learning_rate": _plain(optimizer.learning_rate)}


def from_dict(given: dict[str, Any]) -> Optimizer:
    """Invert `to_dict`. Raises InputRefused."""
    options = dict(given)
    kind = options.pop("kind", None)
    if kind not in OPTIMIZERS:
        raise InputRefused(f"optimizer kind = {kind!r} is not known: use one of {', '.join(OPTIMIZERS)}")
    try:
        if "learning_rate" in options:
            options["learning_rate"] = _scheduled(options["learning_rate"])
        return OPTIMIZERS[kind](**options)
    except TypeError as error:
        names = ", ".join(each.name for each in fields(OPTIMIZERS[kind]))
        raise InputRefused(f"optimizer {given!r}: {error}; {kind} has {names}") from error


def _plain(rate: Any) -> Any:
    if isinstance(rate, float | int):
        return float(rate)
    plain = {**asdict(rate), "kind": _name(rate, schedules.KINDS)}
    return {**plain, "then": _plain(rate.then)} if isinstance(rate, Warmup) else plain


def _scheduled(given: Any) -> Any:
    if not isinstance(given, dict):
        return given
    options: dict[str, Any] = dict(given)
    kind = options.pop("kind", None)
    if kind not in schedules.KINDS:
        raise InputRefused(f"schedule kind = {kind!r} is not known: use one of {', '.join(schedules.KINDS)}")
    if "then" in options:
        options["then"] = _scheduled(options["then"])
    return schedules.KINDS[kind](**options)


def _name(value: object, kinds: dict[str, Any]) -> str:
    for name, kind in kinds.items():
        if type(value) is kind:
            return name
    raise InputRefused(f"{value!r} is none of {', '.join(kinds)}: only these have a name in a job")
