"""Options that commands share, and their answers: a table for people, JSON for programs."""

from __future__ import annotations

import difflib
import os
import shlex
import sys
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.markup import escape
from stretto_client import figures, places
from stretto_client.documents import Documents
from stretto_client.places import DEFAULT_FOLDER as DEFAULT_FOLDER

from .errors import BadInput, translated
from .terminal import Terminal, json_text


class OutputForm(StrEnum):
    """Form of a command's answer."""

    TABLE = "table"
    JSON = "json"


OutputOption = Annotated[
    OutputForm,
    typer.Option(
        "--output", "-o", help="Print a table for people, or json: one document, or one line per item of a stream."
    ),
]
OWN_VARIABLES = places.VARIABLES
FolderOption = Annotated[
    Path, typer.Option("--folder", envvar=places.FOLDER, help="Folder in which `stretto up` keeps its state.")
]
UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar=places.URL,
        help="URL of a gateway elsewhere, e.g. http://host:port. Default: the one in the folder.",
    ),
]
TokenOption = Annotated[
    str | None,
    typer.Option("--token", envvar=places.TOKEN, help="Bearer token for the gateway. Default: the one in the folder."),
]

# a pipe has no width: 160 columns cut no table
console = Terminal(highlight=False, width=None if sys.stdout.isatty() else 160)
complaints = Terminal(stderr=True, highlight=False)


def quantity(kind: Literal["bytes", "cores", "seconds"], least: float, most: float) -> Callable[[str], Any]:
    """Return the parser of an option that is a number or has a unit, within bounds."""

    def parse(text: str) -> Any:
        from stretto_wire.quantities import IN_BYTES, IN_CORES, IN_SECONDS

        written = {"bytes": IN_BYTES, "cores": IN_CORES, "seconds": IN_SECONDS}[kind]
        try:
            value = written.parse(text)
        except ValueError as error:
            raise typer.BadParameter(f"{text}: {error}") from error
        if not least <= value <= most:
            is_size = kind == "bytes"
            low, high = (figures.size(each) if is_size else f"{each:,}" for each in (least, most))
            raise typer.BadParameter(f"{text}: at least {low} and at most {high}" + ("" if is_size else f" {kind}"))
        return value

    return parse


def check_environment(environ: Mapping[str, str]) -> None:
    """Refuse a misspelt variable of the command with BadInput. Services check their own variables."""
    for name in sorted(environ):
        if name in OWN_VARIABLES or not name.startswith("STRETTO_"):
            continue
        near = difflib.get_close_matches(name, OWN_VARIABLES, n=1, cutoff=0.85)
        if near:
            raise BadInput(f"the environment's {name} is not a variable of the command; did you mean {near[0]}?")
        if name.startswith("STRETTO_CLI_"):
            known = ", ".join(OWN_VARIABLES)
            raise BadInput(f"the environment's {name} is not a variable of the command; known are {known}")


def example(*lines: str) -> str:
    """Format example command lines for the end of a command's help."""
    return "Example: " + "\n\n".join(f"[bold]{escape(line)}[/bold]" for line in lines)


def same_gateway(folder: Path, url: str | None) -> str:
    """Return the options that make another command use the same gateway; the environment's variables still apply."""
    given = (("--folder", places.FOLDER, str(folder), str(DEFAULT_FOLDER)), ("--url", places.URL, url, None))
    return "".join(
        f" {option} {shlex.quote(value)}"
        for option, variable, value, default in given
        if value and value not in (default, os.environ.get(variable))
    )


def located(folder: Path, url: str | None, token: str | None) -> places.Place:
    """Return the place of the gateway that these options name; STRETTO_CLI_CA names the certificates to trust.

    Raises NotRunning of the client.
    """
    authority = os.environ.get(places.AUTHORITY)
    return replace(places.locate(folder, url, token, "--url"), authority=Path(authority) if authority else None)


@contextmanager
def connect(folder: Path, url: str | None, token: str | None) -> Generator[Documents]:
    """Connect to the gateway that these options name, and turn its errors into the command's."""
    with translated(), Documents(located(folder, url, token)) as documents:
        yield documents


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """The options of every command that asks the gateway, in the order of its help."""

    output: OutputOption = OutputForm.TABLE
    folder: FolderOption = DEFAULT_FOLDER
    url: UrlOption = None
    token: TokenOption = None

    @property
    def is_json(self) -> bool:
        return self.output is OutputForm.JSON

    def connect(self) -> AbstractContextManager[Documents]:
        """Connect to the gateway that these options name, as `connect` does."""
        return connect(self.folder, self.url, self.token)

    def same_gateway(self) -> str:
        """Return the options that make another command use the same gateway."""
        return same_gateway(self.folder, self.url)

    def answer(self, value: Any, table: Callable[[], object]) -> None:
        """Print the answer in the form that these options name, as `answer` does."""
        answer(self.output, value, table)


def answer(output: OutputForm, value: Any, table: Callable[[], object]) -> None:
    """Print ``value`` as one JSON document, or the result of ``table``, which runs only then."""
    if output is OutputForm.JSON:
        print_json(value)
        return
    shown = table()
    if shown is not None:
        console.print(shown, soft_wrap=isinstance(shown, str))


def print_json(value: Any, lines: bool = False) -> None:
    """Print a document, or one line of a stream of documents; flushed, so that a pipe gets it at once."""
    sys.stdout.write(json_text(value, None if lines else 2) + "\n")
    sys.stdout.flush()


def complete_jobs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete job names from the gateway that the options so far name; without a gateway, complete nothing."""
    folder, url, token = (ctx.params.get(name) for name in ("folder", "url", "token"))
    try:
        with connect(Path(folder or DEFAULT_FOLDER), url, token) as gateway:
            return [job["name"] for job in gateway.jobs() if job["name"].startswith(incomplete)]
    except Exception:
        return []


def complete_from(names: Iterable[str]) -> Callable[[str], list[str]]:
    """Complete from a fixed list of names."""
    known = sorted(names)
    return lambda incomplete: [name for name in known if name.startswith(incomplete)]


JobArgument = Annotated[str, typer.Argument(metavar="JOB", autocompletion=complete_jobs, help="Name of the job.")]
JobOption = Annotated[
    str | None, typer.Option("--job", "-j", autocompletion=complete_jobs, help="Restrict to this job.")
]
