"""Follow a job through the services."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from .. import waterfall
from ..errors import CliError
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
    example,
)


def register(app: typer.Typer) -> None:
    """Add the commands of this group."""
    app.command(rich_help_panel="See", epilog=example("stretto trace ctr --all"))(trace)


def trace(
    job: JobArgument,
    everything: Annotated[bool, typer.Option("--all", "-a", help="every span, not the first few of each kind")] = False,
    output: OutputOption = Output.TABLE,
    folder: FolderOption = DEFAULT_FOLDER,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Show the trace of a job as a waterfall, from its submission on.

    Asks the gateway which trace is the job's, so the installation has to run (after `stretto down`: `stretto up`), and
    reads its spans in the folder; where they go to a collector (OTEL_EXPORTER_OTLP_ENDPOINT), look there.
    """
    with connect(folder, url, token) as gateway:
        trace_id = gateway.job(job)["trace_id"]
    if trace_id is None:
        raise CliError(f"{job} was submitted without a trace")
    spans = waterfall.read(folder, trace_id)
    if not spans:
        raise CliError(
            f"no span of trace {trace_id} is kept in {folder / 'spans'}; with a collector, look for it there"
        )
    roots = waterfall.tree(spans)
    answer(
        output,
        {"job": job, "trace_id": trace_id, "spans": [asdict(root) for root in roots]},
        lambda: waterfall.render(roots, everything),
    )
