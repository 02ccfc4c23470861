"""The command ``stretto``.

Each command is a module in a room of :mod:`stretto_cli.commands` under its own name, loaded when it is typed: a user
who asks for a status does not wait a second for numeric libraries. Other distributions add commands as entry points of
the group ``stretto.commands``: the name is the command's, the object a module with ``register(app)``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Generator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text
from stretto_installation.errors import InstallationError
from typer.core import TyperGroup
from typer.main import get_group

from .command import register
from .errors import BadInput, CliError, of_installation, of_system
from .options import check_environment, complaints
from .terminal import json_text, write_to_any_terminal

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ROOMS = {
    **dict.fromkeys(("up", "down", "status", "version", "backup", "restore", "clean", "devices"), "installation"),
    **dict.fromkeys(("init", "check", "explain-graph", "run", "schema", "export"), "model"),
    **dict.fromkeys(("submit", "profile", "jobs", "cancel", "checkpoint", "scale", "logs", "data"), "jobs"),
    **dict.fromkeys(("audit", "audit-log", "console", "watch", "explain", "events", "trace", "replay"), "views"),
    **{"whatif": "decisions", "token": "installation", "simulate": "decisions"},
}
"""Rooms of :mod:`stretto_cli.commands` by command, in the order of the help.

Commands of an optional distribution have none, and are listed where it is installed.
"""
COMMANDS = tuple(ROOMS)
ENTRY_POINTS = "stretto.commands"
OURS_ELSEWHERE = {
    **dict.fromkeys(("demo", "chaos"), "stretto-drills"),
    **dict.fromkeys(("explain-graph", "run"), "stretto-programs"),
}
"""Commands that the documentation names and an optional distribution brings, with its name."""
OWN = frozenset(COMMANDS) - OURS_ELSEWHERE.keys()
"""Commands of this distribution."""


def plugged_in() -> dict[str, EntryPoint]:
    """Return the commands that other installed distributions bring, by name. None of them replaces one of OWN."""
    from importlib.metadata import entry_points  # most commands are our own

    return {point.name: point for point in entry_points(group=ENTRY_POINTS) if point.name not in OWN}


def load(name: str) -> Any:
    """Return the click command ``name``, ours or a plug-in's; None if there is none.

    A plug-in that cannot be imported becomes a command that says so: the help of the others still works.
    """
    alone = typer.Typer(rich_markup_mode="rich")
    alone.callback()(stretto)  # Typer makes a group only of two commands, or of one with a callback
    if name in OWN:
        module = import_module(f".commands.{ROOMS[name]}.{name.replace('-', '_')}", __package__)
        register(module.__name__, alone)
    elif (point := plugged_in().get(name)) is not None:
        try:
            point.load().register(alone)
        except ImportError as error:
            _register_refusal(alone, name, f"the command cannot be loaded from {point.value} ({error}): reinstall it")
    elif (package := OURS_ELSEWHERE.get(name)) is not None:
        _register_refusal(alone, name, f"the command comes with {package}, which is not installed: install {package}")
    found = get_group(alone).commands.get(name)
    return found and _in_whole_paragraphs(found)


def _in_whole_paragraphs(command: Any) -> Any:
    """Return the command with a line for each paragraph of its help: Typer keeps line ends in all but the first."""
    command.help = "\n\n".join(" ".join(part.split()) for part in (command.help or "").split("\n\n"))
    for each in getattr(command, "commands", {}).values():
        _in_whole_paragraphs(each)
    return command


def _register_refusal(group: typer.Typer, name: str, reason: str) -> None:
    def refuse() -> None:
        raise CliError(f"{name}: {reason}")

    any_arguments = {"ignore_unknown_options": True, "allow_extra_args": True}
    group.command(name, help=reason, context_settings=any_arguments)(refuse)


class _Group(TyperGroup):
    """Loads commands when needed, and reports errors on stderr with an exit status (see ``EPILOG``)."""

    def list_commands(self, ctx: Any) -> list[str]:
        plugged = plugged_in()
        found = [name for name in COMMANDS if name in OWN or name in plugged]
        return [*found, *sorted(plugged.keys() - {*found})]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands and (found := load(cmd_name)) is not None:
            self.commands[cmd_name] = found
        elif cmd_name not in self.commands:  # click suggests similar names among the loaded commands
            self.commands.update((name, load(name)) for name in self.list_commands(ctx) if name not in self.commands)
        return super().get_command(ctx, cmd_name)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, ["version", *args[1:]] if args[:1] == ["--version"] else args)

    def main(self, *args: Any, **extra: Any) -> Any:
        write_to_any_terminal()
        try:
            return super().main(*args, **extra)
        except OSError as error:  # before any command: --install-completion where HOME cannot be written
            _report(of_system(error), False)
            sys.exit(CliError.status)

    def invoke(self, ctx: Any) -> Any:
        arguments = [*ctx._protected_args, *ctx.args]
        as_json = wants_json(arguments)
        try:
            check_environment(os.environ)
            _check_characters(arguments)
            with interruptible():
                return super().invoke(ctx)
        except CliError as error:
            raise _report(error, as_json) from error
        except InstallationError as error:
            raise _report(of_installation(error), as_json) from error
        except typer.TyperException as error:  # an error of the command line itself; Typer prints it for people
            if not as_json:
                raise
            raise _report(BadInput(error.format_message()), as_json) from error
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        except BrokenPipeError:  # `stretto events | head`
            sys.stderr.close()
            raise typer.Exit(0) from None
        except OSError as error:
            raise _report(of_system(error), as_json) from error


@contextlib.contextmanager
def interruptible() -> Generator[None]:
    """Let SIGTERM, and a terminal that closes, end the block as Ctrl-C does, so that nothing is left running.

    A signal that is ignored or handled already stays so; threads but the main one handle none. Later signals are
    without effect: `timeout` sends two, and the second one would interrupt what the first has the command clean up.
    """
    in_main = threading.current_thread() is threading.main_thread()
    ours = [each for each in (signal.SIGTERM, signal.SIGHUP) if in_main and signal.getsignal(each) is signal.SIG_DFL]

    def interrupted(number: int, frame: object) -> None:
        for each in ours:
            signal.signal(each, lambda *_: None)  # unlike SIG_IGN, not for processes that cleaning up starts
        raise KeyboardInterrupt

    for each in ours:
        signal.signal(each, interrupted)
    try:
        yield
    finally:
        for each in ours:
            signal.signal(each, signal.SIG_DFL)


def _check_characters(arguments: Sequence[str]) -> None:
    """Refuse an argument that is no text with BadInput: no job, address or file of an installation has such a name."""
    for argument in arguments:
        if not argument.isascii() and any("\ud800" <= letter <= "\udfff" for letter in argument):
            raise BadInput(f"{argument}: not in UTF-8; rename the file, or set the terminal to UTF-8")


def _report(error: CliError, as_json: bool) -> typer.Exit:
    if as_json and not error.one_line:
        sys.stderr.write(json_text(error.document(), 2) + "\n")
    else:
        text = Text.assemble(("error:", "red"), " ", str(error))
        complaints.print(text, soft_wrap=not complaints.is_terminal)
    return typer.Exit(error.status)


def wants_json(arguments: Sequence[str]) -> bool:
    """Return whether ``-o json`` stands in a command line, which may have errors elsewhere."""
    pairs = zip(arguments, [*arguments[1:], ""], strict=True)
    return any(
        one in ("-ojson", "-o=json", "--output=json") or (one in ("-o", "--output") and two == "json")
        for one, two in pairs
    )


EPILOG = (
    "Begin with [bold]stretto demo[/bold], or [bold]stretto up[/bold] and [bold]stretto submit job.yaml[/bold].\n\n"
    "Exit status: [bold]0[/bold] done; [bold]1[/bold] failed, or something is not well (status, submit --follow, "
    "watch); [bold]2[/bold] the input cannot be used; [bold]130[/bold] interrupted, by SIGTERM, too. "
    "Errors go to stderr, with -o json as one document."
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
def stretto(
    version: Annotated[bool, typer.Option("--version", help="The same as the command version.")] = False,
) -> None:
    """Take no other options before the command."""
    del version  # it has become the command


if __name__ == "__main__":
    app()
