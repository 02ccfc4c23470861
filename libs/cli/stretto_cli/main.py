"""The command ``stretto``. Each group of commands lives in a module of its own below :mod:`stretto_cli.commands`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from .commands import cluster, demonstration, jobs, tracing, watching
from .errors import BadInput, CliError
from .options import complaints


class _Group(TyperGroup):
    """Turns errors into a sentence, or with -o json a document, on stderr, and an exit status (see ``EPILOG``)."""

    def invoke(self, ctx: Any) -> Any:
        as_json = wants_json([*ctx._protected_args, *ctx.args])
        try:
            return super().invoke(ctx)
        except CliError as error:
            if as_json:
                sys.stderr.write(json.dumps(error.document(), indent=2, ensure_ascii=False) + "\n")
            else:
                complaints.print("[red]error:[/red]", end=" ")
                complaints.print(str(error), markup=False, soft_wrap=True)
            raise typer.Exit(error.status) from error
        except typer.TyperException as error:  # of the command line itself; for people it has a form of its own
            if not as_json:
                raise
            sys.stderr.write(json.dumps(BadInput(error.format_message()).document(), indent=2) + "\n")
            raise typer.Exit(error.exit_code) from error
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        except BrokenPipeError:  # `stretto events | head`
            sys.stderr.close()
            raise typer.Exit(0) from None


def wants_json(arguments: Sequence[str]) -> bool:
    """Whether ``-o json`` stands in a command line that may be wrong otherwise."""
    pairs = zip(arguments, [*arguments[1:], ""], strict=True)
    return any(
        one in ("-ojson", "-o=json", "--output=json") or (one in ("-o", "--output") and two == "json")
        for one, two in pairs
    )


EPILOG = (
    "Begin with [bold]stretto demo[/bold], or [bold]stretto up[/bold] and [bold]stretto submit job.yaml[/bold].\n\n"
    "Exit status: [bold]0[/bold] done; [bold]1[/bold] failed, or what was asked about is not well (status, "
    "submit --follow); [bold]2[/bold] what was given cannot be used; [bold]130[/bold] interrupted. Errors are told on "
    "stderr, with -o json as one document."
)

app = typer.Typer(
    cls=_Group,
    name="stretto",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
    help="Keep recommendation-model training jobs at the right size, cheaply, without losing a sample.",
    epilog=EPILOG,
)
cluster.register(app)
jobs.register(app)
watching.register(app)
tracing.register(app)
demonstration.register(app)

if __name__ == "__main__":
    app()
