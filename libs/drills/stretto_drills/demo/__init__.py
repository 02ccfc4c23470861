"""``stretto demo``: a real job from warm start to exact books, reported while it happens.

The services themselves do everything. The demonstration only chooses the job, the history that warm start reads, and
the two processes that it kills.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from stretto_cli.options import OutputForm, OutputOption, example


class Trainer(StrEnum):
    """Trainers of the demonstration's jobs."""

    STRETTO = "stretto"
    TORCH = "torch"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(rich_help_panel="Installation", epilog=example("stretto demo --folder demo"))(demo)


def demo(
    folder: Annotated[
        Path | None, typer.Option(help="Keep everything in this folder. Default: a new temporary folder.")
    ] = None,
    reference: Annotated[
        bool,
        typer.Option(
            envvar="STRETTO_DEMO_REFERENCE",
            help="Then train the same data at a fixed good configuration, to compare the quality: two minutes more.",
        ),
    ] = False,
    trainer: Annotated[
        Trainer,
        typer.Option(
            help="stretto: a model that Stretto trains. torch: a PyTorch script of several ranks, and a command that "
            "knows nothing of Stretto."
        ),
    ] = Trainer.STRETTO,
    torch_python: Annotated[
        str,
        typer.Option(envvar="TORCH_PYTHON", help="The Python that has PyTorch. Default: the one that runs Stretto."),
    ] = "",
    output: OutputOption = OutputForm.TABLE,
) -> None:
    """Train a real recommendation model elastically, from warm start to exact books, in about four minutes."""
    if trainer is Trainer.TORCH:
        from .torch import acts

        raise typer.Exit(acts.main(folder, torch_python, quiet=output is OutputForm.JSON))
    from . import script

    raise typer.Exit(script.main(folder, reference=reference, quiet=output is OutputForm.JSON))
