"""The command ``stretto``. Each group of commands lives in a module of its own below :mod:`stretto_cli.commands`."""

from __future__ import annotations

import sys
from typing import Any

import typer
from typer.core import TyperGroup

from .commands import cluster, demonstration, jobs, tracing, watching
from .errors import CliError
from .options import complaints


class _Group(TyperGroup):
    """Turns our own errors into one sentence on stderr and an exit status: 2 for bad input, 1 for failures."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except CliError as error:
            complaints.print("[red]error:[/red]", end=" ")
            complaints.print(str(error), markup=False, soft_wrap=True)
            raise typer.Exit(error.status) from error
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        except BrokenPipeError:  # `stretto events | head`
            sys.stderr.close()
            raise typer.Exit(0) from None


app = typer.Typer(
    cls=_Group,
    name="stretto",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
    help="Keep recommendation-model training jobs at the right size, cheaply, without losing a sample.",
    epilog="Begin with [bold]stretto demo[/bold], or [bold]stretto up[/bold] and [bold]stretto submit job.yaml[/bold].",
)
cluster.register(app)
jobs.register(app)
watching.register(app)
tracing.register(app)
demonstration.register(app)

if __name__ == "__main__":
    app()
