"""The demonstration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..options import Output, OutputOption, example


def register(app: typer.Typer) -> None:
    """Add the commands of this group."""
    app.command(rich_help_panel="Installation", epilog=example("stretto demo --folder demo"))(demo)


def demo(
    folder: Annotated[Path | None, typer.Option(help="keep everything in this folder; default: a fresh one")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Train a real recommendation model elastically, from warm start to the exact books, in about five minutes."""
    from ..demo import script

    raise typer.Exit(script.main(folder, quiet=output is Output.JSON))
