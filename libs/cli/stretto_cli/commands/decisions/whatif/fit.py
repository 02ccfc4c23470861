"""`stretto whatif fit`: the throughput model of one job from its measurements (DLRover-RM §4.1, §4.3)."""

from __future__ import annotations

import functools
import importlib
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from stretto_core.algorithms import FIT
from stretto_core.model.throughput import (
    AXES,
    COMPONENTS,
    DEFAULT,
    FORMS,
    PAPER,
    Configuration,
    FittedModel,
    Measurement,
)
from stretto_core.planner.experiments import to_verify, worth_measuring

from ....options import OutputForm, OutputOption, answer
from ....reading import AlgorithmOption, Count, FileArgument, Given, NotNegative, Positive, read_csv, refuse
from ....render import table
from ....solving import algorithm, solved


class Setting(Given):
    """A configuration; a missing column is constant or unknown."""

    batch_size: Count = 1
    workers: Count = 1
    ps: Count = 1
    worker_cpu: Positive = 1.0
    ps_cpu: Positive = 1.0
    param_mb: NotNegative = 1.0
    bandwidth_mb_s: Positive = 1.0
    embedding_dim: NotNegative = 1.0
    nodes: Count = 1
    worker_memory_gib: Positive = 1.0


class Profile(Setting):
    """A configuration and its measured step time, in seconds; optionally its terms, without the constant."""

    step_time_s: Positive
    grad_s: NotNegative = 0.0
    upd_s: NotNegative = 0.0
    sync_s: NotNegative = 0.0
    emb_s: NotNegative = 0.0


NOT_IN_PAPER_FORM = {"nodes", "worker_memory_gib"}
"""Columns for which the paper's form has no term."""
FIELDS = {axis.removesuffix("_cores"): axis for axis in AXES}
"""Field of each column that can be varied."""
FormOption = Annotated[
    str,
    typer.Option(
        "--form", help="form of the step time: `paper`, `optimus`, or `default`, which fits measured data best"
    ),
]
PredictOption = Annotated[
    str | None, typer.Option("--predict", metavar="FILE", help="configurations whose step time to predict")
]


def fit(
    file: FileArgument,
    form: FormOption = DEFAULT.name,
    predict: PredictOption = None,
    name: AlgorithmOption = FIT.default,
    output: OutputOption = OutputForm.TABLE,
) -> None:
    """Fit the step time of a job to its profiles, predict other configurations, and suggest what to measure next.

    FILE is CSV: step_time_s (seconds) and those columns that varied: workers, ps, worker_cpu and ps_cpu (cores of one
    pod), batch_size (samples), param_mb (MB), bandwidth_mb_s (MB/s), embedding_dim; `--form paper` needs all of them.
    Optional: the terms of the step, grad_s, upd_s, sync_s, emb_s (seconds). The FILE of --predict has no times.
    The whole format, with an example: libs/cli/WHATIF.md.
    """
    if form not in FORMS:
        refuse("--form", form, " or ".join(FORMS))
    profiles = read_csv(file, Profile)
    if not profiles:
        refuse("FILE", file, "one row at least below the header")
    others = None if predict is None else _completed(read_csv(predict, Setting), profiles)
    if others == []:
        refuse("--predict", predict, "one row at least below the header")
    if form == PAPER.name:
        _all_given(profiles[0])
    measured = [_measurement(profile) for profile in profiles]
    solve = functools.partial(algorithm(FIT, name), form=form, component_constants=False)
    for module in ("scipy.optimize", "scipy.special"):  # the fit loads these late: not a part of its time
        importlib.import_module(module)
    model, solve_s = solved(solve, measured)
    result = document_of(model, measured, profiles[0], solve_s, others)
    answer(output, result, lambda: _view(result))


def _all_given(profile: Profile) -> None:
    for column in Setting.model_fields:
        if column not in profile.model_fields_set | NOT_IN_PAPER_FORM:
            refuse("header", column, "this column, for the paper's form")


def _completed(others: list[Setting], profiles: list[Profile]) -> list[Setting]:
    """Fill the columns that --predict leaves out with the value that all profiles share."""
    first = profiles[0]
    for column in Setting.model_fields:
        if not others or column not in first.model_fields_set or column in others[0].model_fields_set:
            continue
        values = {getattr(profile, column) for profile in profiles}
        if len(values) > 1:
            refuse("header of --predict", column, f"this column, which varies in the profiles ({len(values)} values)")
        others = [other.model_copy(update={column: values.copy().pop()}) for other in others]
    return others


def _measurement(profile: Profile) -> Measurement:
    parts = {name: getattr(profile, f"{name}_s") for name in COMPONENTS if f"{name}_s" in profile.model_fields_set}
    return Measurement(_configuration(profile), profile.step_time_s, 1.0, parts)


def _configuration(given: Setting) -> Configuration:
    return Configuration(
        given.workers,
        given.ps,
        given.worker_cpu,
        given.ps_cpu,
        given.batch_size,
        given.param_mb,
        given.bandwidth_mb_s,
        given.embedding_dim,
        given.nodes,
        given.worker_memory_gib,
    )


def document_of(
    model: FittedModel, measured: list[Measurement], first: Profile, solve_s: float, others: list[Setting] | None
) -> dict[str, Any]:
    """Return the answer as a document. Intervals are those of a new measurement, not of the mean."""
    axes = {column: field for column, field in FIELDS.items() if column in first.model_fields_set}
    result: dict[str, Any] = {
        "form": model.form,
        "coefficients": model.coefficients,
        "rmsle": model.rmsle,
        "unidentified": list(model.unidentified),
        "solve_s": solve_s,
    }
    if model.overlap > 1:
        result["overlap"] = model.overlap
    asked = [_configuration(other) for other in others or ()]
    if others is not None:
        predicted = model.predicted(asked, 0.9)
        result["predictions"] = [each.step_time_s for each in predicted]
        result["intervals_90"] = [[each.low_s, each.high_s] for each in predicted]
    next_ones = worth_measuring(model, [row.configuration for row in measured], list(axes.values()))
    if not next_ones and asked and (fastest := to_verify(model, measured, asked)) is not None:
        next_ones = [fastest]
    result["measure_next"] = [
        {column: getattr(configuration, field) for column, field in axes.items()} for configuration in next_ones
    ]
    return result


def _view(result: dict[str, Any]) -> RenderableType:
    made = table("coefficient", "value", "", right=("value",))
    for name, value in result["coefficients"].items():
        made.add_row(name, f"{value:.6g}", "not identified" if name in result["unidentified"] else "")
    if "overlap" in result:
        made.add_row("overlap", f"{result['overlap']:g}", "of computing, communicating and reading; 1: they add up")
    parts: list[RenderableType] = [
        made,
        f"RMSLE {result['rmsle']:.4f} over the profiles; {result['solve_s']:.3f} s",
    ]
    if "predictions" in result:
        predicted = table("row", "step time", "90 %", right=("row", "step time"))
        pairs = zip(result["predictions"], result["intervals_90"], strict=True)
        for row, (value, (low, high)) in enumerate(pairs, 1):
            predicted.add_row(str(row), f"{value:.4g} s", f"{low:.4g} to {high:.4g} s")
        parts.append(predicted)
    worth = "; ".join(
        ", ".join(f"{column} {value:g}" for column, value in row.items()) for row in result["measure_next"]
    )
    return Group(*parts, f"measure next: {worth}" if worth else "nothing else is worth measuring")
