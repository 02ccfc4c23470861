"""Options that commands share, and how they answer: a table for people, JSON for programs."""

from __future__ import annotations

import difflib
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from . import podlogs
from .client import Gateway, locate
from .errors import BadInput


class Output(StrEnum):
    """How a command answers."""

    TABLE = "table"
    JSON = "json"


OutputOption = Annotated[
    Output, typer.Option("--output", "-o", help="table for people; json: one document, or a line each for streams")
]
_FOLDER, _URL, _TOKEN, _CA = OWN_VARIABLES = (
    "STRETTO_STATE_FOLDER",
    "STRETTO_CLI_URL",
    "STRETTO_CLI_TOKEN",
    "STRETTO_CLI_CA",
)
FolderOption = Annotated[Path, typer.Option("--folder", envvar=_FOLDER, help="where `stretto up` keeps its state")]
UrlOption = Annotated[
    str | None, typer.Option("--url", envvar=_URL, help="a gateway elsewhere, as in http://host:port")
]
TokenOption = Annotated[
    str | None,
    typer.Option("--token", envvar=_TOKEN, help="its bearer token; default: the one in the folder"),
]
DEFAULT_FOLDER = Path(".stretto")

# a pipe has no width: wide enough that no column is cut
console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
complaints = Console(stderr=True, highlight=False)


def check_environment(environ: Mapping[str, str]) -> None:
    """Refuse a misspelt variable of the command: BadInput. Those of services, they refuse themselves."""
    for name in sorted(environ):
        if name in OWN_VARIABLES or not name.startswith("STRETTO_"):
            continue
        near = difflib.get_close_matches(name, OWN_VARIABLES, n=1, cutoff=0.85)
        if near:
            raise BadInput(f"the environment's {name} is not a variable of the command; did you mean {near[0]}?")
        if name.startswith("STRETTO_CLI_"):
            raise BadInput(f"the environment's {name} is not a variable of the command; known are "
                           f"{', '.join(OWN_VARIABLES)}")  # fmt: skip


def example(*lines: str) -> str:
    """The end of a command's help."""
    return "Example: " + "\n\n".join(f"[bold]{escape(line)}[/bold]" for line in lines)


def repeated(folder: Path, url: str | None) -> str:
    """The options that a command has to be given again, to speak to the same gateway; those of the environment hold."""
    given = (("--folder", _FOLDER, str(folder), str(DEFAULT_FOLDER)), ("--url", _URL, url, None))
    return "".join(
        f" {option} {shlex.quote(value)}"
        for option, variable, value, default in given
        if value and value not in (default, os.environ.get(variable))
    )


def connect(folder: Path, url: str | None, token: str | None) -> Gateway:
    """The gateway that these options name; whose certificate is trusted stands in the environment."""
    authority = os.environ.get(_CA)
    return Gateway(*locate(folder, url, token), Path(authority) if authority else None)


def answer(output: Output, value: Any, table: Callable[[], object]) -> None:
    """One JSON document, or what ``table`` makes of it. ``table`` runs only when it is wanted."""
    if output is Output.JSON:
        print_json(value)
        return
    shown = table()
    if shown is not None:
        console.print(shown, soft_wrap=isinstance(shown, str))


def print_json(value: Any, lines: bool = False) -> None:
    """A document, or one line of a stream of them; flushed, so that a pipe sees it at once."""
    text = json.dumps(value, indent=None if lines else 2, ensure_ascii=False)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def complete_jobs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Shell completion of job names, from the gateway that the options so far name; silent when there is none."""
    folder, url, token = (ctx.params.get(name) for name in ("folder", "url", "token"))
    try:
        with connect(Path(folder or DEFAULT_FOLDER), url, token) as gateway:
            return [job["name"] for job in gateway.jobs() if job["name"].startswith(incomplete)]
    except Exception:
        return []


def complete_pods(ctx: typer.Context, incomplete: str) -> list[str]:
    """Shell completion of pods that have a log: JOB/POD, or POD alone once it has been begun."""
    folder, job = Path(ctx.params.get("folder") or DEFAULT_FOLDER), ctx.params.get("job")
    found = [(path.parent.name, path.name) for path in podlogs.pods(folder) if job in (None, path.parent.name)]
    full = () if job else (f"{of}/{pod}" for of, pod in found)
    return sorted({name for name in (*full, *(pod for _, pod in found)) if name.startswith(incomplete)})


def complete_from(names: Iterable[str]) -> Callable[[str], list[str]]:
    """Shell completion of names that are known."""
    known = sorted(names)
    return lambda incomplete: [name for name in known if name.startswith(incomplete)]


JobArgument = Annotated[str, typer.Argument(metavar="JOB", autocompletion=complete_jobs, help="name of the job")]
JobOption = Annotated[str | None, typer.Option("--job", "-j", autocompletion=complete_jobs, help="only of this job")]
