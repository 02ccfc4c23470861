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

from .. import figures, podlogs, render
from ..errors import BadInput, CliError
from ..options import (
    DEFAULT_FOLDER,
    FolderOption,
    JobArgument,
    JobOption,
    Output,
    OutputOption,
    TokenOption,
    UrlOption,
    answer,
    complaints,
    complete_from,
    complete_pods,
    connect,
    console,
    example,
    print_json,
    repeated,
)
from .watching import OVER, STATES, follow_to_the_end

PANEL = "Jobs"


def register(app: typer.Typer) -> None:
    """Add the commands of this group."""
    app.command(
        rich_help_panel=PANEL,
        epilog=example(
            "stretto submit job.yaml --follow", "sed 's/adagrad/adam/' job.yaml | stretto submit - --name b"
        ),
    )(submit)
    app.command("jobs", rich_help_panel=PANEL, epilog=example("stretto jobs --status training"))(list_jobs)
    app.command(rich_help_panel=PANEL, epilog=example('stretto cancel ctr --reason "wrong data"'))(cancel)
    app.command(rich_help_panel=PANEL, epilog=example("stretto checkpoint ctr"))(checkpoint)
    app.command(rich_help_panel=PANEL, epilog=example("stretto scale ctr --workers 4 --ps 2"))(scale)
    app.command(rich_help_panel=PANEL, epilog=example("stretto logs ctr/worker-0 -n 200"))(logs)
    app.command(rich_help_panel=PANEL, epilog=example("stretto schema > job.schema.json"))(schema)


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
            answer(output, done, lambda: _note(file, done, read_job(text), repeated(folder, url)))
            return
        view = follow_to_the_end(gateway, done["job"], quiet=output is Output.JSON)
    if view["status"] == "finished" or output is Output.JSON:
        answer(output, view, lambda: render.job_summary(view))
    if view["status"] != "finished":
        raise CliError(f"{view['name']} {view['status']}: {view['reason']}")


def _note(file: Path, done: dict[str, Any], spec: JobSpec, options: str = "") -> str:
    job, state = done["job"], done["status"]
    if done["created"]:
        return f"{job} submitted; [bold]stretto watch {job}{options}[/bold] shows it{_start(spec)}"
    if state in OVER:
        return (
            f"nothing was started: {job} was submitted before and is {state}; "
            f"[bold]stretto explain {job}{options}[/bold] tells its story\n"
            f"to train the same again: [bold]stretto submit {file} --name {job[:61]}-2{options}[/bold]"
        )
    return f"{job} was submitted before and is {state}; [bold]stretto watch {job}{options}[/bold] shows it"


def _start(spec: JobSpec) -> str:
    """What a job that starts from a checkpoint trains: nobody is to be surprised by a job that completes at once."""
    if spec.checkpoint.restore_from is None:
        return ""
    if (name := spec.dataset.name) is None:
        return "\nits parameters come from the checkpoint, and it trains every sample: dataset.name is not stated"
    return (
        f"\nits parameters come from the checkpoint; if that is of dataset {name}, cut and ordered alike, it goes on "
        "where that was, else it trains every sample"
    )


def read_spec(file: Path, name: str | None = None) -> str:
    """A specification that would be accepted, as YAML or JSON. Raises BadInput with all that is wrong."""
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text()
    except OSError as error:
        raise BadInput(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{file} is not UTF-8: {error.reason} at byte {error.start}; save it as UTF-8") from error
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
    status: Annotated[
        str | None, typer.Option(autocompletion=complete_from(STATES), help="only jobs in this state, as in training")
    ] = None,
    output: OutputOption = Output.TABLE,
    folder: FolderOption = DEFAULT_FOLDER,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """List all jobs."""
    with connect(folder, url, token) as gateway:
        found = gateway.jobs(status)
    answer(output, found, lambda: render.jobs(found, console.width, repeated(folder, url)))


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


def scale(
    job: JobArgument,
    workers: Annotated[int | None, typer.Option(min=0, help="how many workers it is to have")] = None,
    ps: Annotated[int | None, typer.Option(min=1, help="how many parameter servers; parameters move live")] = None,
    output: OutputOption = Output.TABLE,
    folder: FolderOption = DEFAULT_FOLDER,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Ask for another number of workers or parameter servers, while the job trains.

    It is given if there is room, within the limits of the specification. A job with `resources.fixed` keeps it; of
    any other, Stretto goes on from there to what it finds better.
    """
    wanted = {name: count for name, count in (("workers", workers), ("ps", ps)) if count is not None}
    if not wanted:
        raise BadInput("say what to change: --workers or --ps")
    with connect(folder, url, token) as gateway:
        has = gateway.job(job).get("plan")
        done = gateway.scale(job, wanted)
    asked = "has this plan already" if done["plan"] == has else "asked for"
    answer(output, done, lambda: f"{job}: {asked} {figures.short_plan(done['plan'])}; "
                                 f"[bold]stretto watch {job}{repeated(folder, url)}[/bold] shows it")  # fmt: skip


def logs(
    pod: Annotated[
        str, typer.Argument(metavar="POD", autocompletion=complete_pods, help="as in worker-3, or JOB/worker-3")
    ],
    job: JobOption = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, max=100_000, help="the last lines of it")] = 50,
    everything: Annotated[bool, typer.Option("--all", "-a", help="notes of TensorFlow's C++ too")] = False,
    output: OutputOption = Output.TABLE,
    folder: FolderOption = DEFAULT_FOLDER,
) -> None:
    """Show what a pod wrote. Pods of this machine only: the files are read, not the gateway.

    What TensorFlow's C++ notes at every start is left out; warnings and errors are not.
    """
    path = podlogs.find(folder, pod, job)
    written = path.read_text(errors="replace").splitlines()
    shown = written if everything else podlogs.quiet(written)
    if output is Output.JSON:
        hidden = len(written) - len(shown)
        print_json({"pod": path.parent.name, "path": str(path), "lines": shown[-lines:], "hidden": hidden})
        return
    console.print("\n".join(shown[-lines:]), markup=False, soft_wrap=True)
    if len(shown) < len(written):
        complaints.print(f"[dim]{len(written) - len(shown)} notes of TensorFlow's start are hidden; --all[/dim]")


def schema(output: OutputOption = Output.JSON) -> None:
    """Print the JSON Schema of a job specification; it is JSON in any case."""
    print_json(job_schema())
