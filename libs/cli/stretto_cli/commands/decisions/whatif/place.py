"""`stretto whatif place`: the type of device and the number of units for each layer (HeterPS)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import Field
from rich.console import Group, RenderableType
from stretto_core.algorithms import PLACE
from stretto_core.planner.placement import DeviceType, LearningAlgorithm, Placement, PlacementProblem
from stretto_core.planner.placement import Layer as ProfiledLayer
from stretto_messages.base import InvalidValue
from stretto_wire.given_file import DATA_BYTES, read_given

from ....options import GatewayOptions
from ....progress import watched
from ....reading import (
    AlgorithmOption,
    BadData,
    FileArgument,
    Given,
    NotNegative,
    Positive,
    Share,
    Whole,
    once,
    read_json,
    refuse,
)
from ....render import table
from ....solving import algorithm, gap_to_lower, solved
from . import live

Price = Annotated[float, Field(ge=0, le=1e15)]
Samples = Annotated[float, Field(gt=0, le=1e30)]
"""Number of samples; above the bound, a cost is not a finite number."""


class Type(Given):
    """A type of device; without ``limit`` any number of units."""

    name: Annotated[str, Field(min_length=1)]
    price_per_hour: Price
    limit: Whole | None = None


class Layer(Given):
    """A layer's profile: one value per type in every list."""

    name: str
    kind: str = ""
    compute_s: list[NotNegative]
    parallel_fraction: list[Share]
    transfer_s: list[NotNegative]
    transfer_parallel_fraction: list[Share]
    input_bytes: NotNegative = 0.0
    weight_bytes: NotNegative = 0.0


class Layers(Given):
    """The layers of a model and the types of devices."""

    profile_batch: Positive
    throughput_limit: Positive
    samples: Samples
    types: list[Type] = Field(min_length=1)
    layers: list[Layer] = Field(min_length=1)


class OfJob(Given):
    """The types of devices for a live job, whose layers are its own. None: as the job has it now."""

    throughput_limit: Positive | None = None
    samples: Samples | None = None
    types: list[Type] = Field(min_length=1)


PER_TYPE = ("compute_s", "parallel_fraction", "transfer_s", "transfer_parallel_fraction")
"""Fields of a layer with one value per type."""


ModelOption = Annotated[
    Path | None,
    typer.Option(
        "--model",
        metavar="FILE",
        help="model of a learning algorithm: used if the file exists, else trained and written",
    ),
]


JobOption = Annotated[
    str | None,
    typer.Option(
        "--job",
        metavar="JOB",
        help="a live job, whose measured rows and layers behind them are placed; FILE has types",
    ),
]


def place(
    options: GatewayOptions,
    file: FileArgument,
    name: AlgorithmOption = PLACE.default,
    model: ModelOption = None,
    seed: Annotated[int, typer.Option(help="seed of algorithms that draw random numbers, at least 0")] = 0,
    job: JobOption = None,
) -> None:
    """Place the layers of a model on types of devices, at the least cost that reaches a throughput.

    FILE is JSON: profile_batch (samples), throughput_limit (samples/s), samples (in all), types (name, price_per_hour,
    optional limit of units) and layers: name, kind, and lists with one value for each type, in their order: compute_s
    and transfer_s (seconds for a profiled batch on one unit), parallel_fraction, transfer_parallel_fraction (0 to 1).
    With --job, FILE has types alone, and throughput_limit and samples if they are not to be the job's own.
    The whole format, with an example: libs/cli/WHATIF.md.
    """
    if seed < 0:
        refuse("--seed", seed, "a whole number of at least 0")
    problem = replace(problem_of(read_json(file, Layers)) if job is None else _of_job(file, job, options), seed=seed)
    if model is not None and not model.parent.is_dir():
        refuse("--model", str(model), "a file in a folder that exists")
    chosen = algorithm(PLACE, name)
    if isinstance(chosen, LearningAlgorithm):
        found, solve_s = _learned(chosen, name, model, problem)
    elif model is None:
        found, solve_s = solved(chosen, problem)
    else:
        refuse("--model", str(model), f"an algorithm that learns, such as rl-lstm; {name} has no model")
    result = document_of(problem, found, solve_s)
    options.answer(result, lambda: _view(result, problem))


def _learned(
    chosen: LearningAlgorithm, name: str, file: Path | None, problem: PlacementProblem
) -> tuple[Placement | None, float]:
    """Place by the model in the file, or train one; it is written only if it found a placement."""
    if file is not None and file.exists():
        content = _read(file)
        return solved(lambda asked: chosen.apply(content, asked), problem)
    with watched(f"{name} learns", "rounds") as progress:
        learned, solve_s = solved(lambda asked: chosen.train(asked, progress), problem)
    if file is not None and learned.placement is not None:
        try:
            file.write_bytes(learned.model)
        except OSError as error:
            refuse("--model", str(file), f"a file that can be written ({error.strerror})")
    return learned.placement, solve_s


def _read(file: Path) -> bytes:
    try:
        return read_given(file, DATA_BYTES)
    except OSError as error:
        refuse("--model", str(file), f"a file that can be read ({error.strerror})")


def _of_job(file: str, job: str, options: GatewayOptions) -> PlacementProblem:
    given = read_json(file, OfJob)
    for field in ("layers", "profile_batch"):
        if field in (given.model_extra or {}):
            raise BadData(f"{field}: leave it out beside --job, since it is that of {job}")
    types = _types_of(given.types)
    with options.connect() as gateway:
        view = gateway.job(job)
    return live.problem_of(view, types, given.throughput_limit, given.samples)


def _types_of(given: list[Type]) -> tuple[DeviceType, ...]:
    once((kind.name for kind in given), "types.name")
    return tuple(DeviceType(kind.name, kind.price_per_hour, kind.limit) for kind in given)


def problem_of(given: Layers) -> PlacementProblem:
    """Return the problem as core states it. Raises BadData."""
    types = _types_of(given.types)
    once((layer.name for layer in given.layers), "layers.name")
    for index, layer in enumerate(given.layers):
        for field in PER_TYPE:
            values = getattr(layer, field)
            if len(values) != len(given.types):
                refuse(f"layers[{index}].{field}", values, f"{len(given.types)} values, one for each type")
    layers = tuple(
        ProfiledLayer(
            layer.name,
            layer.kind,
            *(tuple(getattr(layer, field)) for field in PER_TYPE),
            input_bytes=layer.input_bytes,
            weight_bytes=layer.weight_bytes,
        )
        for layer in given.layers
    )
    try:
        return PlacementProblem(layers, types, given.profile_batch, given.throughput_limit, given.samples)
    except InvalidValue as error:
        raise BadData(str(error)) from error


def document_of(problem: PlacementProblem, found: Placement | None, solve_s: float) -> dict[str, Any]:
    """Return the answer as a document."""
    if found is None:
        reason = f"no placement was found that reaches {problem.throughput_limit:g} samples/s within the limits"
        return {"feasible": False, "reason": reason, "solve_s": solve_s}
    stages = [
        {
            "type": problem.types[stage.type].name,
            "first_layer": stage.first,
            "last_layer": stage.last,
            "units": stage.units,
        }
        for stage in found.stages
    ]
    return {
        "feasible": True,
        "stages": stages,
        "throughput": found.throughput,
        "cost": found.cost,
        "bound": found.bound,
        "optimal": found.optimal,
        "solve_s": solve_s,
    }


def _view(result: dict[str, Any], problem: PlacementProblem) -> RenderableType:
    if not result["feasible"]:
        return f"not feasible: {result['reason']}"
    made = table("layers", "type", "units", "$/h", right=("units", "$/h"))
    prices = {kind.name: kind.price_per_hour for kind in problem.types}
    for stage in result["stages"]:
        first, last = (problem.layers[stage[end]].name for end in ("first_layer", "last_layer"))
        layers = first if first == last else f"{first} … {last}"
        hourly = stage["units"] * prices[stage["type"]]
        made.add_row(layers, stage["type"], str(stage["units"]), f"{hourly:.2f}")
    proof = "no bound is known"
    if result["optimal"]:
        proof = "proven to be the least"
    elif result["bound"] is not None:
        proof = f"at most {gap_to_lower(result['cost'], result['bound']):.2%} above the least"
    return Group(
        made,
        f"{result['throughput']:,.0f} samples/s (at least {problem.throughput_limit:,.0f}) for {result['cost']:.2f} in "
        f"all, {proof}; {result['solve_s']:.3f} s",
    )
