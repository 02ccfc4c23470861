"""`stretto whatif memory`: where the memory of a parameter server is going (DLRover-RM §5.3)."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from pydantic import Field
from rich.console import RenderableType
from stretto_core.algorithms import MEMORY
from stretto_core.oom.series import SeriesError, SeriesForecast, SeriesPoint, SeriesProblem

from ..options import Output, OutputOption, answer
from .reading import WHOLE_MAX, AlgorithmOption, BadData, FileArgument, Given, refuse, rows
from .solving import algorithm, solved

GIB = 1024**3
GIB_MOST = 2.0**30


class Row(Given):
    """What one parameter server held at a moment."""

    time_s: Annotated[float, Field(ge=-WHOLE_MAX, le=WHOLE_MAX)]
    samples_trained: Annotated[float, Field(ge=0, le=WHOLE_MAX)]
    categories: Annotated[float, Field(ge=0, le=WHOLE_MAX)]
    memory_gib: Annotated[float, Field(gt=0, le=GIB_MOST)]


CapacityOption = Annotated[float, typer.Option("--capacity-gib", help="memory that the server has")]
RemainingOption = Annotated[float, typer.Option("--samples-remaining", help="to be trained after the last row")]


def memory(
    file: FileArgument,
    capacity_gib: CapacityOption,
    samples_remaining: RemainingOption,
    name: AlgorithmOption = MEMORY.default,
    output: OutputOption = Output.TABLE,
) -> None:
    """Foresee a parameter server's memory when all samples are trained, and when it runs out before.

    FILE is CSV, a row for each look at one server: time_s (seconds on any clock), samples_trained and categories (so
    far, whole numbers), memory_gib. The whole format, with an example: libs/cli/WHATIF.md.
    """
    if not 0 < capacity_gib <= GIB_MOST:
        refuse("--capacity-gib", str(capacity_gib), f"a finite number above 0, at most {GIB_MOST:g}")
    if not 0 <= samples_remaining <= WHOLE_MAX:
        refuse("--samples-remaining", str(samples_remaining), f"a finite number, at least 0, at most {WHOLE_MAX:g}")
    problem = problem_of(rows(file, Row), capacity_gib, samples_remaining)
    found, _ = solved(algorithm(MEMORY, name), problem)
    told = told_of(found)
    answer(output, told, lambda: _shown(told, capacity_gib))


def problem_of(given: list[Row], capacity_gib: float, samples_remaining: float) -> SeriesProblem:
    """As the core asks it. Raises BadData."""
    points = tuple(
        SeriesPoint(row.time_s, round(row.samples_trained), round(row.categories), round(row.memory_gib * GIB))
        for row in given
    )
    try:
        return SeriesProblem(points, round(capacity_gib * GIB), round(samples_remaining))
    except SeriesError as error:
        raise BadData(str(error)) from error


def told_of(found: SeriesForecast) -> dict[str, Any]:
    """The answer as a document."""
    return {
        "forecast_gib_at_end": found.at_end.mean / GIB,
        "interval_gib": [found.at_end.low / GIB, found.at_end.high / GIB],
        "oom_at_s": found.oom_at_s,
        "oom_at_samples": found.oom_at_samples,
        "recommended_gib": found.recommended_bytes / GIB,
    }


def _shown(told: dict[str, Any], capacity_gib: float) -> RenderableType:
    low, high = told["interval_gib"]
    runs_out = f"{capacity_gib:g} GiB are enough to the end"
    if told["oom_at_s"] is not None:
        runs_out = (
            f"{capacity_gib:g} GiB are full at {told['oom_at_s']:.0f} s, after {told['oom_at_samples']:.0f} samples"
        )
    return (
        f"at the end {told['forecast_gib_at_end']:.3f} GiB ({low:.3f} to {high:.3f} with 90 %); {runs_out};"
        f" {told['recommended_gib']:.3f} GiB are recommended"
    )
