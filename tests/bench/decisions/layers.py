"""Models to place: generated ones, and public structures and profiles with public prices (../shared/data).

The tables lack some inputs of HeterPS' cost model, which are assumed in this module alone: relative speeds of devices,
the shares of work that more units share, and times of layers with only a public structure.
"""

from __future__ import annotations

import csv
import gzip
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from stretto_core.planner.placement import DeviceType, Layer, PlacementProblem, exact

from tests.bench.places import DATA

BATCH, SAMPLES = 512, 1e9
CORE_GFLOPS, LOOKUP_MB_S, LINK_MB_S = 20.0, 200.0, 3000.0
"""assumed: a core's dense arithmetic and random reads of embeddings; the link of one unit"""

RENTED = {
    "cpu": ("c5.large", 1.0),
    "k80": ("p2.8xlarge", 60.0),
    "t4": ("g4dn.xlarge", 150.0),
    "a10g": ("g5.xlarge", 300.0),
    "v100": ("p3.2xlarge", 350.0),
}
"""the rented instance for a unit of each type, and its speed in cores (assumed)"""

SPARSE_GAIN = 0.25
"""exponent of the speed with which accelerators read embeddings: memory in the host serves them hardly faster"""


def invented(layers: int, types: int, seed: int) -> PlacementProblem:
    """Generate a problem as in HeterPS §6.2: a CPU at 0.04 per core, many accelerators, sparse and dense layers."""
    rng = np.random.default_rng(seed)
    speeds = np.array([1.0, *rng.uniform(8, 40, types - 1)])
    prices = [0.04, *(2.42 * rng.uniform(0.3, 2.0, types - 1))]
    kinds = tuple(DeviceType("cpu" if n == 0 else f"gpu{n}", float(prices[n])) for n in range(types))

    def layer(index: int) -> Layer:
        sparse = index == 0 or rng.random() < 0.3
        compute_s = rng.uniform(0.02, 0.3) * (2 / speeds**0.2 if sparse else 4 / speeds)
        transfer_s = rng.uniform(0.002, 0.05, types) * (1.5 if sparse else 0.5)
        alpha, beta = rng.uniform(0.96, 0.999, types), rng.uniform(0.8, 0.99, types)
        sizes = rng.uniform(1e3, 1e6), rng.uniform(1e3, 1e8)
        return Layer(f"l{index}", "embedding" if sparse else "fc", *_rows(compute_s, alpha, transfer_s, beta), *sizes)

    return PlacementProblem(tuple(map(layer, range(layers))), kinds, BATCH, 20_000.0, SAMPLES, seed)


def limited(problem: PlacementProblem) -> PlacementProblem:
    """Limit each type to six tenths of the units in the optimum, and types that it does not use to any number.

    If that is too little, take eight tenths, then all but one of the type with the most units."""
    best = exact(problem)
    assert best is not None
    used = [sum(stage.units for stage in best.stages if stage.type == n) for n in range(len(problem.types))]
    for share in (0.6, 0.8):
        limits = [int(share * units) or 1 if units else None for units in used]
        if (found := _with(problem, limits)) is not None:
            return found
    most = used.index(max(used))
    found = _with(problem, [units - 1 if n == most else None for n, units in enumerate(used)])
    assert found is not None
    return found


def _with(problem: PlacementProblem, limits: list[int | None]) -> PlacementProblem | None:
    types = tuple(replace(kind, limit=limit) for kind, limit in zip(problem.types, limits, strict=True))
    asked = replace(problem, types=types)
    return asked if exact(asked) is not None else None


def public() -> Iterator[tuple[str, PlacementProblem]]:
    """Return the named problems of the tables; none where the folder is absent."""
    if not DATA.is_dir():
        return
    types, speeds = _rented()
    yield "AlexNet", _profiled(DATA / "layer-profiles" / "pipedream" / "alexnet.graph.txt", types, speeds)
    with open(DATA / "layer-structures" / "ctr_model_layers.csv", encoding="utf-8", newline="") as opened:
        rows = list(csv.DictReader(opened))
    for name, begin in (("CTRDNN", "CTRDNN (PaddleRec rank"), ("MATCH", "MATCH multiview")):
        yield name, _structured([row for row in rows if row["model"].startswith(begin)], types, speeds)


def _rented() -> tuple[tuple[DeviceType, ...], np.ndarray]:
    """Return the types with the on-demand price of a unit in us-east-1, and their speeds in cores."""
    with gzip.open(DATA / "prices" / "cloud_prices_libcloud.csv.gz", "rt", encoding="utf-8", newline="") as opened:
        rows = [row for row in csv.DictReader(opened) if row["region"] == "us-east-1" and row["kind"] == "on_demand"]
    offered = {row["name"]: row for row in rows if row["provider"] == "aws"}

    def price(name: str, machine: str) -> float:
        row = offered[machine]
        return float(row["usd_per_hour"]) / float(row["vcpus"] if name == "cpu" else row["gpus"])

    types = tuple(DeviceType(name, price(name, machine)) for name, (machine, _) in RENTED.items())
    return types, np.array([speed for _, speed in RENTED.values()])


def _profiled(path: Path, types: tuple[DeviceType, ...], speeds: np.ndarray) -> PlacementProblem:
    """Read measured forward and backward times of one GPU (taken as the V100's), in the order of the layers."""
    line = re.compile(
        r"node(\d+) -- (\w+).*forward_compute_time=([\d.]+), backward_compute_time=([\d.]+), "
        r"activation_size=\[?([\d.]+).*parameter_size=([\d.]+)"
    )
    found = sorted(
        (int(match[1]), match[2], *map(float, match.groups()[2:])) for match in map(line.match, path.open()) if match
    )
    layers = list[Layer]()
    for number, kind, forward_ms, backward_ms, activation, parameters in found:
        if forward_ms + backward_ms > 0:
            compute_s = (forward_ms + backward_ms) / 1e3 * RENTED["v100"][1] / speeds
            layers.append(_layer(f"{number}", kind, compute_s, activation, parameters))
    taken_s = sum(layer.compute_s[-1] for layer in layers)
    return PlacementProblem(tuple(layers), types, BATCH, 4 * BATCH / taken_s, SAMPLES)


def _structured(rows: list[dict[str, str]], types: tuple[DeviceType, ...], speeds: np.ndarray) -> PlacementProblem:
    """Derive times from arithmetic (three times the forward pass) or from looked-up bytes; 26 lookups a sample."""
    layers = list[Layer]()
    for row in rows:
        wide, out, parameters = (float(row[name]) for name in ("rows_or_in", "cols_or_out", "parameters"))
        if row["kind"] == "sparse":
            compute_s = BATCH * 26 * out * 4 * 2 / (LOOKUP_MB_S * 1e6) / speeds**SPARSE_GAIN
        else:
            compute_s = 6 * BATCH * (wide * out if parameters else wide) / (CORE_GFLOPS * 1e9) / speeds
        kind = row["type"].split()[0]
        layers.append(_layer(f"{row['layer']}", kind, compute_s, BATCH * out * 4, parameters * 4))
    return PlacementProblem(tuple(layers), types, BATCH, 100_000.0, SAMPLES)


def _layer(name: str, kind: str, compute_s: np.ndarray, sent_bytes: float, weight_bytes: float) -> Layer:
    """Return the layer, of whose arithmetic 97 % and of whose transfer 95 % are assumed to be shared by more units."""
    every = np.ones(len(compute_s))
    columns = _rows(compute_s, 0.97 * every, sent_bytes / (LINK_MB_S * 1e6) * every, 0.95 * every)
    return Layer(name, kind, *columns, sent_bytes, weight_bytes)


def _rows(*columns: np.ndarray) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(map(float, column)) for column in columns)
