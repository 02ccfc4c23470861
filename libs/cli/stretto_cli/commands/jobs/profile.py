"""``stretto profile``: measure how fast a model computes on a type of devices, before its job needs to know."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Generator
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.markup import escape
from stretto_client import figures
from stretto_client.documents import Documents
from stretto_client.errors import ClientError, Refused
from stretto_client.protocol.operations import ENDED_STATES
from stretto_messages.base import GIB, bounded, three_digits
from stretto_messages.values import SAMPLES_MAX, Plan, WorkerGroup
from stretto_wire import JobSpec
from stretto_wire.jobspec.jobfile import read_job

from ...command import command
from ...errors import BadInput, CliError
from ...options import GatewayOptions, complaints
from ...render import Json, table
from .submit import read_spec

SIZES = Plan(2, 1, 1.0, 1.0, 2 * GIB, GIB)
"""Sizes of the pods of a job file that states no initial plan."""
EPOCHS = 1000
"""Passes over the samples, so that the measurement ends by itself only with small data."""
LEFT_OUT = ("evaluate", "evaluate_every_samples", "best", "deadline_s")
"""Fields of a job file that say nothing of how fast the model computes."""
POLL_S = 1.0
LEVEL = 0.9
"""Chance that a figure is within its interval."""


@command("Jobs", "stretto profile job.yaml --type gpu-a")
def profile(
    options: GatewayOptions,
    file: Annotated[Path, typer.Argument(metavar="JOB.YAML", help="File with the job; - reads it from stdin.")],
    device: Annotated[str, typer.Option("--type", help="Type of devices to measure, of those that there are.")],
    windows: Annotated[int, typer.Option(min=1, max=100, help="Settled windows of telemetry to measure.")] = 3,
    patience_s: Annotated[
        float, typer.Option("--patience", min=1, help="Seconds to wait for them, from the submission on.")
    ] = 600.0,
    name: Annotated[
        str | None, typer.Option(help="Name of the job that measures. Default: made of the job's and the type's.")
    ] = None,
) -> None:
    """Measure how fast a model computes on a type of devices, beside the cluster's own cores.

    A job of its own trains the model with one worker on cores, one on the type and one parameter server, and is
    cancelled once it was measured. Later jobs whose `model.metadata` are alike take the figure for as long as they have
    not measured the type themselves.
    """
    spec = read_job(read_spec(file, name, here=options.url is None))
    if spec.program is not None:
        raise BadInput(f"{file} runs a program: only a model's computing is told apart from the rest of a step")
    with options.connect() as gateway:
        of_type = _type_of(gateway, device)
        document = measuring(spec, of_type, spec.name if name else _free(gateway, f"{spec.name[:40]}-on-{device}"))
        job = gateway.submit(JobSpec.parse(document).model_dump_json(exclude_unset=True))["job"]
        with _cancelling(gateway, job, f"stretto cancel {job}{options.same_gateway()}"):
            found = figures_of(_measured(gateway, job, device, windows, patience_s), device)
            options.answer(found, lambda: _shown(found, spec.model.metadata))


def measuring(spec: JobSpec, device: Json, name: str) -> Json:
    """Return the job that measures a type: the model and the data of ``spec`` on one worker of each kind."""
    document = spec.model_dump(mode="json", exclude_unset=True)
    for field in LEFT_OUT:
        document.pop(field, None)
    group = WorkerGroup(device["name"], 1, device["cpu_cores"], device["memory_bytes"])
    plan = replace(spec.resources.initial or SIZES, workers=2, groups=(group,))
    resources = document.setdefault("resources", {})
    workers = resources.setdefault("workers", {})
    for field in ("count", "stages", "dense", "extended"):
        workers.pop(field, None)
    workers["devices"] = [device["name"]]
    resources |= {"initial": asdict(plan), "fixed": True}
    if not spec.dataset.growing:
        document["dataset"]["epochs"] = max(min(EPOCHS, SAMPLES_MAX // spec.dataset.samples), 1)
        document["dataset"].pop("evaluate_first", None)
    return document | {"name": name}


def _type_of(gateway: Documents, name: str) -> Json:
    types = {each["name"]: each for each in gateway.cluster()["devices"]}
    if name not in types:
        there = ", ".join(types) or "none; an operator states them in STRETTO_DEVICE_TYPES"
        raise BadInput(f"--type {name}: the types of devices here are: {there}")
    return types[name]


def _free(gateway: Documents, name: str) -> str:
    """Return the name, cut to what a job's may have with a number behind it, or one with a number that no job has.

    A name belongs to one job for ever. Jobs of other teams are not seen: where one has the name, the gateway says so.
    """
    taken, name = {job["name"] for job in gateway.jobs()}, name[:60].rstrip("-")
    names = (f"{name}-{number}" if number > 1 else name for number in count(1))
    return next(each for each in names if each not in taken)


@contextlib.contextmanager
def _cancelling(gateway: Documents, job: str, remedy: str) -> Generator[None]:
    """Cancel the job behind the block, whatever that raises. Raises CliError if the job may train on."""
    reason = "measured"
    try:
        yield
    except BaseException as error:
        reason = "interrupted" if isinstance(error, KeyboardInterrupt) else f"failed: {error}"
        raise
    finally:
        try:
            gateway.cancel(job, bounded(reason))
        except ClientError as error:
            if not (isinstance(error, Refused) and error.kind == "over"):
                raise CliError(
                    f"{job} may train on, since cancelling it failed; `{remedy}` ends it: {error}"
                ) from error


def _measured(gateway: Documents, job: str, device: str, windows: int, patience_s: float) -> Json:
    """Return the view of the job once both its workers were measured. Raises CliError if they never are."""
    complaints.print(f"{job} trains until it was measured; `stretto watch {job}` shows it", highlight=False)
    until_s = time.monotonic() + patience_s
    while windows_of(view := gateway.job(job), device) < windows:
        if view["status"] in ENDED_STATES:
            told = view["reason"] or "give its data more samples, or ask for fewer --windows"
            raise CliError(f"{job} was {view['status']} before it was measured: {told}")
        if time.monotonic() > until_s:
            raise CliError(f"{job} is {view['status']} and was not measured in {patience_s:g} s: {view['reason']}")
        time.sleep(POLL_S)
    return view


def windows_of(view: Json, device: str) -> int:
    """Return the number of settled windows in which both kinds of workers were measured."""
    rows = view["model"]["measured"] if view.get("model") else []
    seen = {row.get("device", ""): row["windows"] for row in rows}
    return min(seen.get("", 0), seen.get(device, 0))


def figures_of(view: Json, device: str) -> Json:
    """Return the figures of a measured job: seconds of a batch, and the cores that a unit is as fast as."""
    from stretto_core.model.throughput import KNOWS_NOTHING, Configuration, Inputs  # numeric libraries

    from ..decisions.whatif.live import model_of

    model, plan = model_of(view), view["plan"]
    known = {each.device: each for each in model.measured}
    speed = next((each for each in model.speeds(view["name"]) if each.device == device), None)
    if speed is None:
        why = f"{view['name']}: computing is too small a part of a step to tell how fast {device} computes"
        raise CliError(f"{why}; give it a larger model or batch_size, or ask for more --windows")
    quantile = model.quantile(LEVEL)
    kinds: list[Json] = []
    for name in ("", device):
        at: Configuration = known[name]
        x = Inputs.of([at])
        compute_s = float(model.part_s(x, computes=True)[0])
        half = min(quantile * float(model.part_log_sd(x, computes=True)[0]), KNOWS_NOTHING)
        within = {"low": compute_s * math.exp(-half), "high": compute_s * math.exp(half)}
        step_s = float(model.step_time_s(x)[0])
        kinds.append({"device": name, "compute_s": compute_s, "compute_interval_s": within, "step_time_s": step_s})
    half = quantile * speed.log_sd
    (cores_of_unit,) = [group["cpu_cores"] for group in plan["groups"]]
    return {
        "job": view["name"],
        "device": device,
        "batch_size": view["model"]["batch_size"],
        "worker_cpu_cores": plan["worker_cpu_cores"],
        "kinds": kinds,
        "cores": speed.cores,
        "cores_interval": {"low": speed.cores * math.exp(-half), "high": speed.cores * math.exp(half)},
        "speed": speed.cores / cores_of_unit,
    }


def _shown(found: Json, metadata: dict[str, Any]) -> RenderableType:
    made = table("worker on", "computes a batch in", "90 % between", "step")
    for kind in found["kinds"]:
        within = kind["compute_interval_s"]
        made.add_row(
            kind["device"] or figures.cores(found["worker_cpu_cores"]),
            _ms(kind["compute_s"]),
            f"{_ms(within['low'])} and {_ms(within['high'])}",
            _ms(kind["step_time_s"]),
        )
    low, high = (three_digits(found["cores_interval"][end]) for end in ("low", "high"))
    told = (
        f"a unit of {found['device']} computes as fast as {three_digits(found['cores'])} of the cluster's cores, 90 % "
        f"between {low} and {high}; as a stated speed: {three_digits(found['speed'])}"
    )
    alike = "later jobs whose model.metadata are alike begin with that: " + escape(
        ", ".join(f"{name} {value}" for name, value in metadata.items())
    )
    none = "no later job takes it: model.metadata is empty, by which jobs are known to be alike"
    return Group(made, told, alike if metadata else f"[yellow]{none}[/yellow]")


def _ms(seconds: float) -> str:
    return f"{three_digits(1e3 * seconds)} ms"
