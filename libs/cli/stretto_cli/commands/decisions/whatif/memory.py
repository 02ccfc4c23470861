"""`stretto whatif memory`: the memory that a parameter server will need (DLRover-RM §5.3)."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from pydantic import Field
from rich.console import RenderableType
from stretto_core.algorithms import MEMORY
from stretto_core.model.types import GIB
from stretto_core.oom.series import Forecaster, SeriesError, SeriesForecast, SeriesPoint, SeriesProblem

from ....options import OutputForm, OutputOption, answer
from ....reading import WHOLE_MAX, AlgorithmOption, BadData, FileArgument, Given, read_csv, refuse
from ....solving import algorithm, solved

GIB_MOST = 2.0**30


class Row(Given):
    """The memory and contents of one parameter server at one time."""

    time_s: Annotated[float, Field(ge=-WHOLE_MAX, le=WHOLE_MAX)]
    samples_trained: Annotated[float, Field(ge=0, le=WHOLE_MAX)]
    categories: Annotated[float, Field(ge=0, le=WHOLE_MAX)]
    memory_gib: Annotated[float, Field(gt=0, le=GIB_MOST)]


CapacityOption = Annotated[float, typer.Option("--capacity-gib", help="memory limit of the server, in GiB")]
RemainingOption = Annotated[float, typer.Option("--samples-remaining", help="samples to train after the last row")]


def memory(
    file: FileArgument,
    capacity_gib: CapacityOption,
    samples_remaining: RemainingOption,
    name: AlgorithmOption = MEMORY.default,
    output: OutputOption = OutputForm.TABLE,
) -> None:
    """Forecast the memory of a parameter server at the end of training, and when it runs out before.

    FILE is CSV, one row per observation of one server: time_s (seconds on any clock), samples_trained and categories
    (whole numbers so far), memory_gib. The whole format, with an example: libs/cli/WHATIF.md.
    """
    if not 0 < capacity_gib <= GIB_MOST:
        refuse("--capacity-gib", str(capacity_gib), f"a finite number above 0, at most {GIB_MOST:g}")
    if not 0 <= samples_remaining <= WHOLE_MAX:
        refuse("--samples-remaining", str(samples_remaining), f"a finite number, at least 0, at most {WHOLE_MAX:g}")
    problem = problem_of(read_csv(file, Row), capacity_gib, samples_remaining)
    forecast: Forecaster = algorithm(MEMORY, name)
    found, _ = solved(forecast, problem)
    result = document_of(found)
    answer(output, result, lambda: _view(result, capacity_gib))


def problem_of(given: list[Row], capacity_gib: float, samples_remaining: float) -> SeriesProblem:
    """Return the problem as core states it. Raises BadData."""
    points = tuple(
        SeriesPoint(row.time_s, round(row.samples_trained), round(row.categories), round(row.memory_gib * GIB))
        for row in given
    )
    try:
        return SeriesProblem(points, round(capacity_gib * GIB), round(samples_remaining))
    except SeriesError as error:
        raise BadData(str(error)) from error


def document_of(found: SeriesForecast) -> dict[str, Any]:
    """Return the answer as a document."""
    return {
        "forecast_gib_at_end": found.at_end.mean / GIB,
        "interval_gib": [found.at_end.low / GIB, found.at_end.high / GIB],
        "oom_at_s": found.oom_at_s,
        "oom_at_samples": found.oom_at_samples,
        "oom_is_likely": found.oom_is_likely,
        "recommended_gib": found.recommended_bytes / GIB,
    }


def _view(result: dict[str, Any], capacity_gib: float) -> RenderableType:
    low, high = result["interval_gib"]
    runs_out = f"{capacity_gib:g} GiB are enough to the end"
    if result["oom_at_s"] is not None:
        how = "are full" if result["oom_is_likely"] else "will probably do, but may be full"
        runs_out = (
            f"{capacity_gib:g} GiB {how} at {result['oom_at_s']:.0f} s, after {result['oom_at_samples']:.0f} samples"
        )
    return (
        f"at the end {result['forecast_gib_at_end']:.3f} GiB ({low:.3f} to {high:.3f} with 90 %); {runs_out};"
        f" {result['recommended_gib']:.3f} GiB are recommended"
    )
