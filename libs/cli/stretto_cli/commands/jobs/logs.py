"""``stretto logs``: the log of a pod, of this machine or by the gateway, without TensorFlow's notes in workers."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Annotated

import typer

from ...command import command
from ...errors import BadInput, CliError
from ...options import DEFAULT_FOLDER, GatewayOptions, JobOption, OutputForm, complaints, connect, console, print_json

BYTES_MAX = 16 << 20
"""Bytes that are read of a log."""
LINE_MAX = 10_000
"""Characters that are shown of one line."""
PODS_LISTED = 10
"""Names of pods in the error for a pod that has no log."""

# TF_CPP_MIN_LOG_LEVEL, which the pods set, does not reach lines that come before the C++ logging is initialised
_BANNER = re.compile(
    r"WARNING: All log messages before absl::InitializeLog\(\)"
    r"|I\d{4} \S+ +\d+ [\w.-]+\.(cc|cpp|cu|h|mm):\d+\]"
    r"|\d{4}-\d\d-\d\d \S+: I \S+\.(cc|cpp|cu|h|mm):\d+\]"
    r"|To enable the following instructions: "
)


def complete_pods(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete pods that have a log: JOB/POD, or POD alone once its name is begun."""
    folder, job = Path(ctx.params.get("folder") or DEFAULT_FOLDER), ctx.params.get("job")
    found = [(path.parent.name, path.name) for path in pods_with_logs(folder) if job in (None, path.parent.name)]
    full = () if job else (f"{of}/{pod}" for of, pod in found)
    return sorted({name for name in (*full, *(pod for _, pod in found)) if name.startswith(incomplete)})


@command("Jobs", "stretto logs ctr/worker-0 -n 200", "stretto logs ctr/worker-0 --follow")
def logs(
    options: GatewayOptions,
    pod: Annotated[
        str,
        typer.Argument(metavar="POD", autocompletion=complete_pods, help="Name of the pod: worker-3, or JOB/worker-3."),
    ],
    job: JobOption = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, max=100_000, help="Number of last lines to show.")] = 50,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Show the start-up notes of TensorFlow's C++ code too.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with new lines, which the gateway gives, until the pod ends.")
    ] = False,
) -> None:
    """Show the log of a pod that runs or has ended.

    With --url the gateway gives it, also after the job: name the job, as in JOB/worker-3. Otherwise this command reads
    the files of this machine's pods, and asks the gateway about others. It hides the notes that TensorFlow's C++ code
    prints at a worker's start, never a warning or an error.
    """
    if follow:
        of, name = job_and_pod(pod, job)
        with options.connect() as gateway:
            for line in gateway.followed_lines(of, name, lines):
                if everything or not _BANNER.match(line):
                    print_line(line, options.output)
        return
    if options.url is not None:
        path, written = Path("-"), from_gateway(options.folder, pod, job, lines, options.url, options.token)
    else:
        path, written = from_files(options.folder, pod, job, lines, options.token)
    shown = written if everything else without_banner(written)
    if options.is_json:
        hidden = len(written) - len(shown)
        name = pod.rpartition("/")[2]
        print_json({"pod": name, "path": str(path), "lines": shown[-lines:], "hidden": hidden})
        return
    console.print("\n".join(shown[-lines:]), markup=False, soft_wrap=True)
    if len(shown) < len(written):
        complaints.print(f"[dim]{len(written) - len(shown)} start-up notes of TensorFlow are hidden; --all[/dim]")


def from_files(folder: Path, pod: str, job: str | None, lines: int, token: str | None) -> tuple[Path, list[str]]:
    """Return the log of a pod of this machine with its path, or what the gateway of the folder has of another one.

    Raises BadInput if neither has a log.
    """
    try:
        path = find_log(folder, pod, job)
        return path, last_lines(path)
    except BadInput:
        if job or "/" in pod:
            with contextlib.suppress(CliError):
                return Path("-"), from_gateway(folder, pod, job, lines, None, token)
        raise


def last_lines(log: Path) -> list[str]:
    """Return the last lines of a log, of ``BYTES_MAX`` at its end, and say what is left out.

    A pod may write an endless line, or stretch the file.
    """
    with log.open("rb") as file:
        before = max(0, os.fstat(file.fileno()).st_size - BYTES_MAX)
        file.seek(before)
        lines = file.read(BYTES_MAX).decode(errors="replace").splitlines()
    if before:
        complaints.print(f"[dim]only the last {BYTES_MAX >> 20} MiB of the log are read[/dim]")
        lines = lines[1:] or lines  # the first is torn
    if max(map(len, lines), default=0) > LINE_MAX:
        complaints.print(f"[dim]longer lines are cut after {LINE_MAX:,} characters[/dim]")
    return [line if len(line) <= LINE_MAX else f"{line[:LINE_MAX]} … {len(line) - LINE_MAX:,} more" for line in lines]


def from_gateway(folder: Path, pod: str, job: str | None, lines: int, url: str | None, token: str | None) -> list[str]:
    """Return the last lines of a pod as the gateway has them. Raises BadInput, CliError."""
    of, name = job_and_pod(pod, job)
    with connect(folder, url, token) as gateway:
        return gateway.last_lines(of, name, lines).splitlines()


def job_and_pod(pod: str, job: str | None) -> tuple[str, str]:
    """Return the names of job and pod. Raises BadInput if no job is named."""
    named, _, name = pod.rpartition("/")
    if of := named or job:
        return of, name
    raise BadInput(f"{pod}: name the job, as in `stretto logs JOB/{pod}`: the gateway has pods of all jobs")


def print_line(line: str, output: OutputForm) -> None:
    """Print one line of a log, at once."""
    if output is OutputForm.JSON:
        print_json({"line": line}, lines=True)
    else:
        console.print(line, markup=False, soft_wrap=True)


def pods_with_logs(folder: Path) -> list[Path]:
    """Folders of the pods that have a log, ``…/JOB/POD``."""
    return sorted(path.parent for path in folder.glob("pods/*/*/log"))


def find_log(folder: Path, pod: str, job: str | None) -> Path:
    """Return the log of a pod. ``pod`` may be JOB/POD. Raises BadInput when there is none, or more than one."""
    name, _, rest = pod.partition("/")
    if rest:
        job, pod = name, rest
    known = pods_with_logs(folder)
    found = [path for path in known if path.name == pod and job in (None, path.parent.name)]
    if len(found) == 1:
        return found[0] / "log"
    if found:
        jobs = ", ".join(path.parent.name for path in found)
        raise BadInput(f"{pod} is ambiguous ({jobs}): name the job, as in `stretto logs JOB/{pod}`")
    names = [f"{path.parent.name}/{path.name}" for path in known if job in (None, path.parent.name)]
    more = f" and {len(names) - PODS_LISTED} more" if len(names) > PODS_LISTED else ""
    listed = f"these pods have one: {', '.join(names[-PODS_LISTED:])}{more}" if names else "no pod has written one yet"
    raise BadInput(f"no log of {pod}{f' of {job}' if job else ''} below {folder}; {listed}")


def without_banner(lines: list[str]) -> list[str]:
    """Drop the notes of TensorFlow's C++ code below the level of a warning."""
    return [line for line in lines if not _BANNER.match(line)]
