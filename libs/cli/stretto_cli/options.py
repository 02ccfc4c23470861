"""Options that commands share, and how they answer: a table for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from .client import Gateway, locate


class Output(StrEnum):
    """How a command answers."""

    TABLE = "table"
    JSON = "json"


OutputOption = Annotated[
    Output, typer.Option("--output", "-o", help="table for people; json: one document, or a line each for streams")
]
FolderOption = Annotated[
    Path, typer.Option("--folder", envvar="STRETTO_STATE_FOLDER", help="where `stretto up` keeps its state")
]
UrlOption = Annotated[
    str | None, typer.Option("--url", envvar="STRETTO_CLI_URL", help="a gateway elsewhere, as in http://host:port")
]
TokenOption = Annotated[
    str | None,
    typer.Option("--token", envvar="STRETTO_CLI_TOKEN", help="its bearer token; default: the one in the folder"),
]
DEFAULT_FOLDER = Path(".stretto")

# a pipe has no width: wide enough that no column is cut
console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
complaints = Console(stderr=True, highlight=False)


def connect(folder: Path, url: str | None, token: str | None) -> Gateway:
    """The gateway that these options name."""
    return Gateway(*locate(folder, url, token))


def answer(output: Output, value: Any, table: Callable[[], object]) -> None:
    """One JSON document, or what ``table`` makes of it. ``table`` runs only when it is wanted."""
    if output is Output.JSON:
        print_json(value)
        return
    shown = table()
    if shown is not None:
        console.print(shown)


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


JobArgument = Annotated[str, typer.Argument(metavar="JOB", autocompletion=complete_jobs, help="name of the job")]
