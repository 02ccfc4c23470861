"""``stretto export``: the trained model of a job, for programs without Stretto."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from stretto_client.documents import Json
from stretto_client.protocol.operations import ENDED_STATES
from stretto_core.checkpoints.names import is_final
from stretto_messages.base import counted

from ...command import command
from ...errors import BadInput
from ...options import GatewayOptions, JobArgument
from ...trainer_process import run

_OWN_NAMES = ("admin", "anonymous")
"""Names under which the gateway knows whoever has its own token, and everybody where it asks for none."""


class Format(StrEnum):
    """Form of an export."""

    KERAS = "keras"
    SAVEDMODEL = "savedmodel"
    PARQUET = "parquet"
    SAFETENSORS = "safetensors"


@command("Jobs", "stretto export ctr --to ctr-model", "stretto export ctr --live --to s3://models/ctr")
def export(
    options: GatewayOptions,
    job: JobArgument,
    to: Annotated[str, typer.Option("--to", help="Folder or URL for the export; it must not exist yet.")],
    format: Annotated[
        Format | None,
        typer.Option(help="keras or savedmodel: one model; parquet: tables of any size beside it. Default: keras."),
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Take the last checkpoint of a job that has not finished.")
    ] = False,
    best: Annotated[
        bool, typer.Option("--best", help="Take the checkpoint after the best evaluation, of a job that states best.")
    ] = False,
    since: Annotated[
        str, typer.Option("--since", help="An earlier export as Parquet: write only the rows that changed since.")
    ] = "",
    path: Annotated[
        str | None, typer.Option("--path", help="Folder with the job's code on this machine, instead of model.path.")
    ] = None,
    argument: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="An argument of the job's code, instead of its own."),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option("--checkpoint", help="URL of a manifest to export, instead of the one that the gateway names."),
    ] = None,
    trust: Annotated[
        bool,
        typer.Option(
            "--trust",
            help="Run the job's code on this machine under your account, even if someone else submitted it.",
        ),
    ] = False,
    python: Annotated[
        str | None,
        typer.Option(
            "--python",
            help="Python in which stretto[train] and the job's code can be imported. Default: that of this command.",
        ),
    ] = None,
) -> None:
    """Export a trained model: your own Keras model with its tables, a SavedModel, Parquet or safetensors.

    The result is loaded by plain Keras, TensorFlow, PyArrow or PyTorch. It has the parameters of the job's last
    checkpoint after the last shard, with --live the parameters of the last stored checkpoint, with --best the
    parameters after the best evaluation.

    This runs the job's model code on this machine, with your rights. For a job that you did not submit to the
    installation in the folder yourself, give --path with the code, which you have read, or --trust. The job's
    environment is not taken: set the variables that its code needs.
    """
    with options.connect() as gateway:
        view = gateway.job(job)
    if not trust:
        check_trusted(view, path, is_own=options.url is None and options.token is None)
    manifest = checkpoint or (best_of(view) if best else manifest_of(view, live))
    command = ["stretto.export", "--json", "--spec", "-", "--checkpoint", manifest, "--to", to]
    given = (("--format", format), ("--since", since), ("--path", path))
    command += [word for name, value in given if value for word in (name, str(value))]
    command += [word for each in argument or () for word in ("--set", each)]
    quiet = options.is_json
    done = run(
        command, json.dumps(view["spec"]), quiet=quiet, what="nothing was exported", python=python or sys.executable
    )
    options.answer(done, lambda: _told(to, done))


def check_trusted(view: Json, path: str | None, is_own: bool) -> None:
    """Refuse to run code that somebody else chose. ``is_own``: the gateway's own token was used. Raises BadInput.

    The names of holders of other tokens are not known here.
    """
    entry = str(view["spec"]["model"]["entry"])
    module = entry.partition(":")[0].partition(".")[0]
    if path is None:
        if not is_own or view["submitted_by"] not in _OWN_NAMES:
            raise BadInput(
                f"{view['name']} was submitted by {view['submitted_by']}, and its code would run here with your "
                "rights: give --path with the code that you have read, or --trust"
            )
    elif not (Path(path) / module).exists() and not (Path(path) / f"{module}.py").exists():
        raise BadInput(
            f"--path {path} has no {module}, of which the job's model.entry is {entry}: name the folder that has it, "
            "or give --trust"
        )


def best_of(view: Json) -> str:
    """Return the URL of the checkpoint after the best evaluation. Raises BadInput if there is none."""
    if found := view.get("best_checkpoint"):
        return str(found["url"])
    name = view["name"]
    if not view["spec"].get("best"):
        raise BadInput(f"{name} does not say which of its models is the best one: `best` is not in its job file")
    raise BadInput(f"{name} has stored no checkpoint after an evaluation: see `stretto watch {name}`")


def manifest_of(view: Json, live: bool) -> str:
    """Return the URL of the checkpoint to export. Raises BadInput if there is none, or not yet."""
    name, status = view["name"], view["status"]
    stored = [
        each["checkpoint"]
        for each in view["checkpoints"]
        if each["stage"] in ("stored", "restored")
        and each["checkpoint"]
        and each["checkpoint"]["url"].rsplit("/", 3)[1] == name  # not the one of another job that it started from
    ]
    final = [each for each in stored if is_final(each["id"])]
    if status == "finished" and final:
        return str(final[-1]["url"])
    if not stored:
        raise BadInput(
            f"{name} is {status} and has no stored checkpoint"
            + (f": {view['reason']}" if status in ENDED_STATES and view.get("reason") else "")
            + ("" if status in ENDED_STATES else f"; take one with `stretto checkpoint {name}`, or wait")
        )
    if not live:
        raise BadInput(f"{name} is {status}: its last checkpoint is {stored[-1]['id']}; export that one with --live")
    return str(stored[-1]["url"])


def _told(to: str, done: dict[str, Any]) -> str:
    tables, checkpoint = done["tables"], done["checkpoint"]
    rows = sum(table["rows"] for table in tables.values())
    size = sum(file["bytes"] for file in done["files"].values())
    changed = f" that changed since {done['since']['checkpoint']}" if done["since"] else ""
    return (
        f"{done['job']} exported to {to} as {done['format']}: {counted(rows, 'row')} in "
        f"{counted(len(tables), 'table')}{changed}, {counted(size, 'byte')}, of checkpoint {checkpoint['id']} "
        f"({counted(checkpoint['samples'], 'sample')} trained)"
    )
