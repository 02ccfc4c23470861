"""Submit jobs and act on them."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from stretto_wire import JobSpec, WireError
from stretto_wire.jobfile import read_job
from stretto_wire.schemas import job_schema

from .. import render
from ..errors import BadInput, CliError
from ..options import (
    DEFAULT_FOLDER,
    FolderOption,
    JobArgument,
    Output,
    OutputOption,
    TokenOption,
    UrlOption,
    answer,
    connect,
    console,
    print_json,
)
from .watching import OVER, follow_to_the_end

PANEL = "Jobs"


def register(app: typer.Typer) -> None:
    """Add the commands of this group."""
    app.command(rich_help_panel=PANEL)(submit)
    app.command("jobs", rich_help_panel=PANEL)(list_jobs)
    app.command(rich_help_panel=PANEL)(cancel)
    app.command(rich_help_panel=PANEL)(checkpoint)
    app.command(rich_help_panel=PANEL)(logs)
    app.command(rich_help_panel=PANEL)(schema)


def submit(
    file: Annotated[Path, typer.Argument(metavar="JOB.YAML", help="specification; - reads it from stdin")],
    name: Annotated[str | None, typer.Option("--name", help="instead of the name in the file")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="stay until it ends; fails if the job does")] = False,
    output: OutputOption = Output.TABLE,
    folder: FolderOption = DEFAULT_FOLDER,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Submit a job. No resources have to be stated; see `stretto schema` for all that can be.

    The same specification again changes nothing; another one under the same name is refused. A name belongs to one
    job for ever: to train the same again, give it another one with --name.
    """
    text = read_spec(file, name)
    with connect(folder, url, token) as gateway:
        done = gateway.submit(text)
        if not follow:
            answer(output, done, lambda: _note(file, done))
            return
        view = follow_to_the_end(gateway, done["job"], quiet=output is Output.JSON)
    answer(output, view, lambda: render.job_summary(view))
    if view["status"] != "finished":
        raise CliError(f"{view['name']} {view['status']}: {view['reason']}")


def _note(file: Path, done: dict[str, Any]) -> str:
    job, state = done["job"], done["status"]
    if done["created"]:
        return f"{job} submitted; [bold]stretto watch {job}[/bold] shows it"
    if state in OVER:
        return (
            f"nothing was started: {job} was submitted before and is {state}; [bold]stretto explain {job}[/bold] tells "
            f"its story\nto train the same again: [bold]stretto submit {file} --name {job[:61]}-2[/bold]"
        )
    return f"{job} was submitted before and is {state}; [bold]stretto watch {job}[/bold] shows it"


def read_spec(file: Path, name: str | None = None) -> str:
    """A specification that would be accepted, as YAML or JSON. Raises BadInput with all that is wrong."""
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot read {file}: {error}") from error
    try:
        spec = read_job(text)
        if name is None:
            return text
        renamed = {**spec.model_dump(mode="json", exclude_unset=True), "name": name}
        JobSpec.parse(renamed)
        return json.dumps(renamed)
    except WireError as error:
        errors = [asdict(finding) for finding in error.findings]
        raise BadInput(f"{file} is refused", errors, error.count) from error


def list_jobs(
    status: Annotated[str | None, typer.Option(help="only jobs in this state, as in training")] = None,
    output: OutputOption = Output.TABLE,
    folder: FolderOption = DEFAULT_FOLDER,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """List all jobs."""
    with connect(folder, url, token) as gateway:
        found = gateway.jobs(status)
    answer(output, found, lambda: render.jobs(found, console.width))


def cancel(
    job: JobArgument,
    reason: Annotated[str, typer.Option(help="kept with the event")] = "",
    output: OutputOption = Output.TABLE,
    folder: FolderOption = DEFAULT_FOLDER,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """End a job. What it has trained stays in its last checkpoint."""
    with connect(folder, url, token) as gateway:
        done = gateway.cancel(job, reason)
    answer(output, done, lambda: f"{job} cancelled")


def checkpoint(
    job: JobArgument,
    output: OutputOption = Output.TABLE,
    folder: FolderOption = DEFAULT_FOLDER,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Take a checkpoint now. Training goes on while it is written."""
    with connect(folder, url, token) as gateway:
        done = gateway.checkpoint(job)
    answer(output, done, lambda: f"checkpoint {done['id']} of {job} begun")


def logs(
    pod: Annotated[str, typer.Argument(metavar="POD", help="as in worker-3, or JOB/worker-3")],
    job: Annotated[str | None, typer.Option("--job", "-j", help="needed when several jobs have such a pod")] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, max=100_000, help="the last lines of it")] = 50,
    output: OutputOption = Output.TABLE,
    folder: FolderOption = DEFAULT_FOLDER,
) -> None:
    """Show what a pod wrote. Pods of this machine only: the files are read, not the gateway."""
    name, _, rest = pod.partition("/")
    if rest:
        job, pod = name, rest
    found = sorted(
        path
        for path in folder.glob("**/log")
        if path.parent.name == pod and (job is None or job in path.relative_to(folder).parts)
    )
    if not found:
        raise BadInput(f"no log of {pod}{f' of {job}' if job else ''} below {folder}; `stretto watch JOB` shows pods")
    if len(found) > 1:
        jobs = ", ".join(sorted(str(path.parent.parent.name) for path in found))
        raise BadInput(f"{pod} is ambiguous ({jobs}): name the job, as in `stretto logs JOB/{pod}`")
    text = found[0].read_text(errors="replace").splitlines()[-lines:]
    if output is Output.JSON:
        print_json({"pod": pod, "path": str(found[0]), "lines": text})
    else:
        console.print("\n".join(text), markup=False, soft_wrap=True)


def schema(output: OutputOption = Output.JSON) -> None:
    """Print the JSON Schema of a job specification; it is JSON in any case."""
    print_json(job_schema())
