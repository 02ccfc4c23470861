"""``stretto init``: an example to begin with."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer
from stretto_wire import JobSpec, WireError
from stretto_wire.jobspec.commented import commented

from ...command import command
from ...errors import BadInput
from ...options import OutputForm, OutputOption, answer

MODEL, JOB, TEMPLATE = "my_model.py", "job.yaml", "my_model.template"
SAMPLES, HELD_OUT = 200_000, 20_000
"""Samples of the template's epoch, and of the evaluation after it."""


@command("Your model", "stretto init shop && cd shop")
def init(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder for the two files; it is made if it does not exist.")
    ] = Path(),
    name: Annotated[str, typer.Option(help="Name of the job.")] = "clicks",
    output: OutputOption = OutputForm.TABLE,
) -> None:
    """Write a model that trains as it is, and a job file in which every field is explained. Nothing is overwritten."""
    targets = [folder / MODEL, folder / JOB]
    for target in targets:
        if target.exists():
            raise BadInput(f"{target} exists: name another folder, or move it away")
    stated = {
        "name": name,
        "model": {"entry": "my_model:Clicks", "path": str(folder.resolve()), "metadata": {"family": name}},
        "dataset": {"samples": SAMPLES},
        "evaluate": HELD_OUT,
    }
    try:
        JobSpec.parse(stated)
    except WireError as error:
        raise BadInput(str(error)) from error
    folder.mkdir(parents=True, exist_ok=True)
    targets[0].write_text(files("stretto_cli").joinpath(TEMPLATE).read_text())
    targets[1].write_text(commented(stated))
    answer(
        output,
        {"files": [str(target) for target in targets]},
        lambda: (
            f"{targets[0]} and {targets[1]} are written; [bold]stretto check my_model:Clicks --path {folder}[/bold] "
            f"tries the model, [bold]stretto submit {targets[1]}[/bold] trains it (after `stretto up --detach`)"
        ),
    )
