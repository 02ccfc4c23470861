"""The layers of a live job for `stretto whatif place --job`: what its workers took, by its fitted model."""

from __future__ import annotations

from dataclasses import fields

from stretto_core.model.throughput import Configuration, FittedModel
from stretto_core.planner.placement import DeviceType, PlacementProblem
from stretto_core.planner.staging import measured_layers
from stretto_messages.base import InvalidValue
from stretto_messages.values import MeasuredConfiguration

from ....errors import BadInput
from ....reading import refuse
from ....render import Json

CPU = "cpu"
"""The type of a file that stands for the cores of a job's workers."""


def model_of(view: Json) -> FittedModel:
    """Return the throughput model of a job's view. Raises BadInput without one."""
    told = view.get("model")
    if not told:
        refuse("--job", view["name"], "a job with a fitted model: ask again after its first measured windows (15 s)")
    known = {field.name for field in fields(MeasuredConfiguration)}  # a newer gateway tells more
    rows = (MeasuredConfiguration(**{name: row[name] for name in known & row.keys()}) for row in told["measured"])
    return FittedModel(
        form=told["form"],
        coefficients=told["coefficients"],
        covariance=tuple(map(tuple, told["covariance"])),
        noise_sd=told["log_sd"],
        dof=told["degrees_of_freedom"],
        rmsle=told["rmsle"],
        unidentified=tuple(told["unidentified"]),
        measured=tuple(map(Configuration.measured, rows)),
        overlap=told["overlap"],
    )


def problem_of(
    view: Json, types: tuple[DeviceType, ...], throughput_limit: float | None, samples: float | None
) -> PlacementProblem:
    """Return the placement problem of a job's view. None: the job's present throughput, the samples that are left.

    Raises BadInput for a job that has too little to tell.
    """
    if view["spec"].get("program"):
        refuse("--job", view["name"], "a job that trains a model: a program's layers are not known")
    model, plan, progress = model_of(view), view["plan"], view["progress"]
    if not plan:
        refuse("--job", view["name"], "a job with a plan: ask again once `stretto jobs` shows one")
    limit = throughput_limit or progress["samples_per_s"]
    if not limit:
        refuse("throughput_limit", "", f"a value above 0, as {view['name']} does not train now")
    if samples is None and progress["samples_total"] is None:
        refuse("samples", "", f"samples that are left to train, as {view['name']} tells no total")
    left = (progress["samples_total"] or 0) - progress["samples_done"] - view["data"]["given_up"]
    names = ["" if each.name == CPU else each.name for each in types]
    try:
        layers = measured_layers(model, plan["ps"], plan["ps_cpu_cores"], names)
    except InvalidValue as error:
        remedy = "leave the others out, or let the job try them (resources.workers.devices)"
        raise BadInput(f"types: {error}; {remedy}") from error
    return PlacementProblem(layers, types, view["model"]["batch_size"], limit, samples or max(left, 1))
