"""``stretto submit``: check a job file and hand it to the gateway."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from stretto_client.documents import Documents
from stretto_client.protocol.operations import ENDED_STATES
from stretto_wire import JobSpec, WireError
from stretto_wire.given_file import JOB_BYTES, read_given, text_of
from stretto_wire.jobspec.jobfile import read_job

from ... import render
from ...command import command
from ...errors import BadInput, CliError
from ...options import GatewayOptions, complaints
from ...trainer_process import run, trial_of

LAST_EVENTS = frozenset({"job-finished", "job-failed", "job-cancelled"})


@command("Jobs", "stretto submit job.yaml --follow", "sed 's/adagrad/adam/' job.yaml | stretto submit - --name b")
def submit(
    options: GatewayOptions,
    file: Annotated[Path, typer.Argument(metavar="JOB.YAML", help="File with the job; - reads it from stdin.")],
    name: Annotated[
        str | None, typer.Option("--name", help="Submit under this name instead of the one in the file.")
    ] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            "-f",
            help="Print the job's events until it ends; the command fails if the job does, or its result lacks "
            "something: samples, stored parameters or its evaluation.",
        ),
    ] = False,
) -> None:
    """Submit a job. You need not state any resources; `stretto schema` prints every field that you may state.

    Submitting the same specification again changes nothing; a different one under the same name is refused. A name
    belongs to one job for ever: to train the same job again, give it another name with --name.
    """
    text = read_spec(file, name, here=options.url is None)
    refuse_uncut(file, read_job(text), quiet=options.is_json)
    with options.connect() as gateway:
        done = gateway.submit(text)
        if not follow:
            options.answer(done, lambda: _note(file, done, read_job(text), options.same_gateway()))
            return
        view = follow_to_the_end(gateway, done["job"], quiet=options.is_json)
    if view["status"] == "finished" or options.is_json:
        options.answer(view, lambda: render.job_summary(view))
    if fault := render.fault_of(view):
        raise CliError(fault)


def refuse_uncut(file: Path, spec: JobSpec, *, quiet: bool) -> None:
    """Raise BadInput if a stage of the initial plan cannot begin where it says, in a model that can be built here.

    Two stages are cut behind the rows, which is possible in any model. A relative `model.path` is one beside the file,
    also of a job whose pods run elsewhere.
    """
    plan = spec.resources.initial
    if spec.program is not None or plan is None or plan.stages < 3:
        return
    try:
        path = beside(file, spec) or spec.model.path or ""
        asked = json.dumps(trial_of(spec) | {"path": path, "is_of_cuts": True})
        found = run(["stretto.trial.check"], asked, quiet=quiet, what=f"{spec.model.entry} was not built")["findings"]
    except CliError as error:
        found = [{"where": "model", "text": str(error)}]
    if wrong := next((each["text"] for each in found if each["where"] == "job"), ""):
        raise BadInput(f"{file} is refused: {wrong}")
    if found:
        untried = "whether the stages can begin where they say was not tried here, and their workers will fail if not"
        untried = f"{untried}: {found[0]['text']}"
        complaints.print(untried, markup=False, highlight=False)


def follow_to_the_end(gateway: Documents, job: str, quiet: bool = False) -> dict[str, Any]:
    """Print a job's events until it ends; returns its last view."""
    for event in gateway.events(job):
        if not quiet and event.name not in render.FREQUENT_EVENTS:
            render.print_event(event, with_job=False)
        if event.name in LAST_EVENTS:
            break
    return gateway.ended(job)


def _note(file: Path, done: dict[str, Any], spec: JobSpec, options: str = "") -> str:
    job, state = done["job"], done["status"]
    if done["created"]:
        return f"{job} submitted; [bold]stretto watch {job}{options}[/bold] shows it{_start(spec)}"
    if state in ENDED_STATES:
        return (
            f"nothing was started: {job} was submitted before and is {state}; "
            f"[bold]stretto explain {job}{options}[/bold] shows its decisions\n"
            f"to train the same again: [bold]stretto submit {file} --name {job[:61]}-2{options}[/bold]"
        )
    return f"{job} was submitted before and is {state}; [bold]stretto watch {job}{options}[/bold] shows it"


def _start(spec: JobSpec) -> str:
    """Explain which samples a job trains that starts from a checkpoint: it may complete at once."""
    if spec.checkpoint.restore_from is None:
        return ""
    if (name := spec.dataset.name) is None:
        return "\nits parameters come from the checkpoint, and it trains every sample: dataset.name is not stated"
    return (
        f"\nits parameters come from the checkpoint; if the checkpoint is of dataset {name}, cut and ordered alike, "
        "the job continues where the checkpoint was taken; otherwise it trains every sample"
    )


def read_spec(file: Path, name: str | None = None, here: bool = False) -> str:
    """Return a valid specification as YAML or JSON. Raises BadInput with every error in the file.

    ``here``: pods see the folders of this machine, so that a relative `model.path` is one beside the file, and so is
    `program.path`.
    """
    try:
        text = text_of(read_given(file, JOB_BYTES))
    except OSError as error:
        raise BadInput(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{file} is not UTF-8: {error.reason} at byte {error.start}; save it as UTF-8") from error
    try:
        spec = read_job(text)
        path = beside(file, spec) if here else None
        if name is None and path is None:
            return text
        changed = spec.model_dump(mode="json", exclude_unset=True)
        if path is not None:
            changed["model" if spec.program is None else "program"]["path"] = path
        changed["name"] = name or spec.name
        JobSpec.parse(changed)
        return json.dumps(changed)
    except WireError as error:
        errors = [asdict(finding) for finding in error.findings]
        raise BadInput(f"{file} is refused", errors, error.count) from error


def beside(file: Path, spec: JobSpec) -> str | None:
    """Return the folder of the job's code, seen from the folder of the job file; None if there is no such folder."""
    path = spec.model.path if spec.program is None else spec.program.path
    found = file.parent.absolute() / (path or "")
    return os.path.normpath(found) if path is not None and found.is_dir() else None
