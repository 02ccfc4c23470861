"""Generated growth of categories, as the forecast has to meet it: what is steady, bursty, late, skewed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

FAMILIES = ("steady", "bursty", "late-surge", "skewed")


@dataclass(frozen=True)
class Curve:
    """One job: at each of T moments the samples trained, the categories and bytes of every PS [T, ps]."""

    family: str
    samples: np.ndarray
    rows: np.ndarray
    used_bytes: np.ndarray
    row_bytes: float

    @property
    def need_bytes(self) -> int:
        return int(self.used_bytes[-1].max())


def generate(family: str, seed: int, moments: int = 120) -> Curve:
    rng = np.random.default_rng([seed, FAMILIES.index(family)])
    samples = np.cumsum(rng.uniform(0.7, 1.3, moments))
    samples *= 10 ** rng.uniform(5, 8) / samples[-1]
    x = samples / samples[-1]
    exponent, drift = rng.uniform(0.4, 0.9), rng.uniform(0, 0.6)
    growth = (1 - drift) * x**exponent + drift * x
    if rng.random() < 0.25:
        growth = -np.expm1(-x / rng.uniform(0.3, 1.5))
    steps = np.diff(growth, prepend=0)
    if family == "bursty":
        period = int(rng.integers(3, 10))
        phase = (np.arange(moments) + rng.integers(0, period)) % period < max(1, period // 3)
        steps *= np.where(phase, rng.uniform(2, 4), rng.uniform(0.2, 0.6))
    if family == "late-surge":
        steps[x > rng.uniform(0.55, 0.8)] *= rng.uniform(2, 4)
    steps *= rng.gamma(50, 1 / 50, moments)
    categories = np.cumsum(steps) / steps.sum() * 10 ** rng.uniform(5.5, 7.3)
    servers = int(rng.integers(1, 7))
    shares = rng.dirichlet(np.full(servers, 4.0 if family == "skewed" else 400.0))
    if family == "skewed":
        drifting = np.clip(shares + np.linspace(0, 1, moments)[:, None] * rng.normal(0, 0.03, servers), 0.01, None)
        split = drifting / drifting.sum(1, keepdims=True)
    else:
        split = np.tile(shares, (moments, 1))
    rows = np.cumsum(np.diff(categories, prepend=0)[:, None] * split, axis=0)
    row_bytes = float(rng.choice([136, 200, 330]))
    base = rng.uniform(300e6, 700e6)
    used = (base + row_bytes * rows) * (1 + 0.003 * rng.standard_normal(rows.shape))
    return Curve(family, samples.astype(int), rows.astype(int), np.maximum(used, 0).astype(int), row_bytes)
