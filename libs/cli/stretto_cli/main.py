"""The command ``stretto``. Each group of commands lives in a module of its own below :mod:`stretto_cli.commands`,
which is loaded when one of them is typed: numeric libraries take a second that nobody waits for who asks for a status.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import typer
from rich.text import Text
from typer.core import TyperGroup
from typer.main import get_group

from .errors import BadInput, CliError, of_system
from .options import check_environment, complaints

MODULES: dict[str, tuple[str, ...]] = {
    "cluster": ("up", "down", "status"),
    "jobs": ("submit", "jobs", "cancel", "checkpoint", "scale", "logs", "schema"),
    "data": ("data",),
    "audit": ("audit",),
    "watching": ("watch", "explain", "events"),
    "tracing": ("trace",),
    "replaying": ("replay",),
    "demonstration": ("demo",),
    "chaos": ("chaos",),
    "whatif": ("whatif",),
    "tokens": ("token",),
    "simulate": ("simulate",),
}
"""what each module registers, in the order of the help"""


def registered(module: str) -> dict[str, Any]:
    """The commands of a module, by name."""
    alone = typer.Typer(rich_markup_mode="rich")
    alone.callback()(stretto)  # one command alone would be no group
    import_module(f".commands.{module}", __package__).register(alone)
    return dict(get_group(alone).commands)


class _Group(TyperGroup):
    """Turns errors into a sentence, or with -o json a document, on stderr, and an exit status (see ``EPILOG``)."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for names in MODULES.values() for name in names]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        unknown = cmd_name not in self.list_commands(ctx)  # then all are loaded, that what was meant is suggested
        for module, names in MODULES.items():
            if (unknown or cmd_name in names) and names[0] not in self.commands:
                self.commands.update(registered(module))
        return super().get_command(ctx, cmd_name)

    def main(self, *args: Any, **extra: Any) -> Any:
        try:
            return super().main(*args, **extra)
        except OSError as error:  # before any command: --install-completion where HOME cannot be written
            _told(of_system(error), False)
            sys.exit(CliError.status)

    def invoke(self, ctx: Any) -> Any:
        as_json = wants_json([*ctx._protected_args, *ctx.args])
        try:
            check_environment(os.environ)
            return super().invoke(ctx)
        except CliError as error:
            raise _told(error, as_json) from error
        except typer.TyperException as error:  # of the command line itself; for people it has a form of its own
            if not as_json:
                raise
            raise _told(BadInput(error.format_message()), as_json) from error
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        except BrokenPipeError:  # `stretto events | head`
            sys.stderr.close()
            raise typer.Exit(0) from None
        except OSError as error:
            raise _told(of_system(error), as_json) from error


def _told(error: CliError, as_json: bool) -> typer.Exit:
    if as_json and not error.one_line:
        sys.stderr.write(json.dumps(error.document(), indent=2, ensure_ascii=False) + "\n")
    else:
        told = Text.assemble(("error:", "red"), " ", str(error))
        complaints.print(told, soft_wrap=not complaints.is_terminal)
    return typer.Exit(error.status)


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


@app.callback()
def stretto() -> None:
    """What stands before any command: nothing."""


if __name__ == "__main__":
    app()
