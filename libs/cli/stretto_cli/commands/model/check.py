"""``stretto check``: try a model and its data before a job does."""

from __future__ import annotations

import contextlib
import json
from itertools import count, groupby
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.markup import escape
from stretto_client import figures
from stretto_wire.errors import WireError
from stretto_wire.jobspec.jobfile import argument, read_job

from ...command import command
from ...errors import BadInput
from ...options import OutputForm, OutputOption, answer, console
from ...render import table
from ...trainer_process import run, trial_of
from ..jobs.submit import read_spec

NAME_MAX = 60
"""Letters of a job's name, with room for a number behind it."""
JOB_SUFFIXES = (".yaml", ".yml", ".json")
ASKED: dict[str, Any] = {
    "path": str(Path()), "arguments": {}, "samples": 0, "partition": "", "batch_size": 512, "embedding_dim": None,
}  # fmt: skip
"""The trial of a model without options."""
LAYERS_SHOWN = 30
"""Layers up to which each has a line of its own; of more, those behind each other that are alike share one."""


@command(
    "Your model",
    "stretto check my_model:Clicks --data clicks.parquet --write job.yaml",
    "stretto check shop.models:Ranking --path src --set layers=3 --samples 2000000",
    "stretto check job.yaml",
)
def check(
    entry: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:NAME|JOB.YAML",
            help="The model, as in `model.entry` of a job file, or such a file, which states all that the options do.",
        ),
    ],
    path: Annotated[Path, typer.Option(help="Folder that holds the module, as in `model.path`.")] = Path(),
    data: Annotated[str | None, typer.Option(help="Value of the model's argument `data`.")] = None,
    arguments: Annotated[
        list[str] | None, typer.Option("--set", help="An argument of the model, NAME=VALUE; may be repeated.")
    ] = None,
    samples: Annotated[
        int, typer.Option(min=0, help="Samples of one epoch. Default: what the model's reader says.")
    ] = 0,
    partition: Annotated[str, typer.Option(help="Partition to read, where the dataset has some.")] = "",
    batch_size: Annotated[int, typer.Option(min=1, max=10**6, help="Samples of one step.")] = 512,
    embedding_dim: Annotated[
        int | None, typer.Option(min=1, max=4096, help="Floats of an embedding row, where the model does not say.")
    ] = None,
    write: Annotated[Path | None, typer.Option(help="File for a job file in which every field is explained.")] = None,
    output: OutputOption = OutputForm.TABLE,
) -> None:
    """Import a model, read its data, train some steps in a process of its own, and tell every fault at once.

    Nothing runs but this command: no bus, no services. Its layers are told as stages count them. Exit status 1 if
    something was found.
    """
    asked = {
        "entry": entry,
        "path": str(path),
        "arguments": arguments_of(arguments or [], data),
        "samples": samples,
        "partition": partition,
        "batch_size": batch_size,
        "embedding_dim": embedding_dim,
    }
    if Path(entry).suffix in JOB_SUFFIXES:
        if write is not None or asked != ASKED | {"entry": entry}:
            raise BadInput(f"{entry} states the model and its data: leave all options but --output out, or change it")
        asked = trial_of(read_job(read_spec(Path(entry), here=True)))
    else:
        asked["name"] = free(entry.partition(":")[2].replace("_", "-").strip("-").lower()[:NAME_MAX] or "my-job")
    quiet, what = output is OutputForm.JSON, f"{entry} was not tried"
    report = run(["stretto.trial.check"], json.dumps(asked), quiet=quiet, what=what)
    if write is not None and not report["findings"]:
        write.write_text(report["job"])
    answer(output, report, lambda: _shown(report, write))
    if report["findings"]:
        raise typer.Exit(1)


def free(name: str) -> str:
    """Return a name that no job of this folder's installation has: `clicks`, or `clicks-2`. A name belongs to one job
    for ever; without an installation nothing is known, and the name stays."""
    from stretto_client import Client, ClientError, connect

    with contextlib.suppress(ClientError), connect() as gateway:
        taken = {job.name for job in Client.jobs(gateway, q=name)}
        names = (f"{name}-{number}" if number > 1 else name for number in count(1))
        return next(each for each in names if each not in taken)
    return name


def arguments_of(given: list[str], data: str | None) -> dict[str, Any]:
    """Return the model's arguments from texts NAME=VALUE and the value of --data. Raises BadInput."""
    found: dict[str, Any] = {}
    if data is not None:  # pods run in folders of their own
        found["data"] = str(Path(data).resolve()) if Path(data).exists() else data
    for each in given:
        name, equals, text = each.partition("=")
        if not equals or not name.isidentifier():
            raise BadInput(f"--set {each}: give NAME=VALUE with the name of an argument of the model")
        try:
            found[name] = argument(text)
        except WireError as error:
            raise BadInput(f"--set {each}: {error.remedy}") from error
    return found


def layer_rows(layers: list[dict[str, Any]], uncut: str) -> list[tuple[str, str, str]]:
    """Return the layers of a model as lines: number, name, and whether a stage can begin there. uncut: as of Report."""
    rows: list[tuple[str, str, str]] = []
    for verdict, group in groupby(layers, lambda each: f"no: {each['uncut']}" if each["uncut"] else "yes"):
        alike = [*group]
        for first, *others in [alike] if len(layers) > LAYERS_SHOWN else [[each] for each in alike]:
            last = others[-1] if others else None
            numbers = f"{first['number']} to {last['number']}" if last else str(first["number"])
            rows.append((numbers, f"{first['name']} … {last['name']}" if last else first["name"], verdict))
    return rows + ([("", "", f"no other cut: {uncut}")] if uncut else [])


def _layers(report: dict[str, Any]) -> RenderableType:
    shown = table("layer", "name", "a cut before it", wrapped="a cut before it")
    for row in layer_rows([each for each in report["layers"] if each["number"]], report["uncut"]):
        shown.add_row(*map(escape, row))
    return shown


def _shown(report: dict[str, Any], write: Path | None) -> Any:
    if report["findings"]:
        if any(each["where"] == "job" for each in report["findings"]) and report["layers"]:
            console.print(_layers(report))
        for each in report["findings"]:
            console.print(f"[red]{each['where']}[/red]  {each['text']}", highlight=False)
        return f"{len(report['findings'])} found"
    found = report["figures"]
    shown = table("what", "value")
    for what, value in (
        ("framework", found["framework"]),
        ("every parameter is updated by", found["rule"]),
        ("its first steps", found["compared"] or f"are those of {found['framework']} alone"),
        ("read alone", f"{found['read_samples_per_s']:,.0f} samples/s"),
        ("training, one worker and one server here", f"{found['steps_per_s']:.1f} steps/s"),
        ("loss of the first and the last step", f"{found['loss_first']:.4f}, {found['loss_last']:.4f}"),
        ("keys per sample", f"{found['keys_per_sample']:.1f}"),
        ("parameter servers, per million keys", figures.size(found["bytes_per_million_keys"])),
        ("dense parameters", f"{found['dense_parameters']:,}"),
        (
            "a step, to and from parameter servers",
            f"{figures.size(found['step_bytes'])}; {figures.size(found['step_bytes_least'])} by "
            "wire: {pull: bfloat16, push: int8}",
        ),
        ("memory of this worker", figures.size(found["worker_memory_bytes"])),
    ):
        shown.add_row(what, value)
    console.print(shown)
    console.print(_layers(report))
    if found["export"]:
        console.print(f"[yellow]export[/yellow]  {escape(found['export'])}", highlight=False)
    if not report["job"]:
        return "nothing is in the way"
    return f"nothing is in the way; {'--write FILE gives its job file' if write is None else f'see {write}'}"
