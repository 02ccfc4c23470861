"""``stretto run``: a training program with data workers on this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from stretto_cli.errors import BadInput
from stretto_cli.options import example


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "run",
        rich_help_panel="Your model",
        context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
        epilog=example(
            "stretto run train.py --epochs 3",
            "stretto run --data-workers 4 train.py",
            "stretto run --resume train.py",
            "STRETTO_PIPELINE=off stretto run --exact train.py",
        ),
    )(run)


def run(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="The training program, a Python script.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGUMENTS", help="The script's own arguments and options.")
    ] = None,
    data_workers: Annotated[
        int | None,
        typer.Option(
            "--data-workers",
            metavar="N",
            help="Number of data workers, 1 to 64; default: the number of cores less 1.",
        ),
    ] = None,
    exact: Annotated[
        bool,
        typer.Option(
            "--exact",
            help="Turn off TensorFlow's graph optimizer: results equal a plain run (also without it) bit for bit. "
            "Otherwise they may differ by 1 ulp per operation.",
        ),
    ] = False,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Keep the program's place in its data beside each checkpoint, and go on there after a restore. "
            "Give this option from the first run on.",
        ),
    ] = False,
) -> None:
    """Run a training program; other processes on this machine prepare its batches.

    The program runs as `python SCRIPT` runs it, and no file of it is touched. What depends on samples alone moves to
    data workers: of Keras `fit`, and of training loops over a tf.data data set. The order of samples stays, and so do
    the numbers. Sessions of TensorFlow 1 and programs of PyTorch run as alone. Two lines on stderr tell what moved, or
    why nothing does, and what it brought. STRETTO_PIPELINE=off runs the plain program.

    Output and exit status are the program's own.
    """
    if not script.is_file():
        raise BadInput(f"{script} is no file: name a Python script")
    options = [] if data_workers is None else ["--data-workers", str(data_workers)]
    options += [name for name, is_on in (("--exact", exact), ("--resume", resume)) if is_on]
    command = [sys.executable, "-P", "-m", "stretto_programs.run", *options, str(script), *(arguments or [])]
    os.execv(sys.executable, command)
