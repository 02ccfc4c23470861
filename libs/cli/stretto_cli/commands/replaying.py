"""Decide a past job again."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from ..options import DEFAULT_FOLDER, FolderOption, JobArgument, Output, OutputOption, answer, example


def register(app: typer.Typer) -> None:
    """Add the commands of this group."""
    app.command(
        rich_help_panel="See",
        epilog=example("stretto replay JOB", "stretto replay JOB -s arbiter --set STRETTO_ARBITER_RHO=0"),
    )(replay)


def replay(
    job: JobArgument,
    service: Annotated[list[str] | None, typer.Option("--service", "-s", help="only this one; may be repeated")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="decide under another setting, as in STRETTO_ARBITER_RHO=0")
    ] = None,
    output: OutputOption = Output.TABLE,
    folder: FolderOption = DEFAULT_FOLDER,
) -> None:
    """Decide everything about a job again, from the stream, and compare bit by bit with what was decided.

    The code is the one installed now, the settings are those of then: what comes out otherwise is what this code
    decides otherwise. Exit status 1 if anything does. Works while the job runs, and after `stretto down`.
    """
    from .. import replays

    found = asyncio.run(replays.decide_again(folder, job, service or [], settings or []))
    answer(output, replays.document(job, found), lambda: replays.told(job, found))
    if not replays.well(found):
        raise typer.Exit(1)
