"""``stretto data``: convert files for a job, give a growing job more data, or close its dataset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group
from rich.markup import escape
from stretto_client.documents import Json
from stretto_messages.base import counted

from ...command import CommandGroup
from ...options import GatewayOptions, JobArgument, OutputForm, OutputOption, answer
from ...render import table
from ...trainer_process import run

GROUP = CommandGroup(__name__, "data", "Jobs", "Convert files for a job, give a growing job more data, or close it.")


@GROUP.command("stretto data add ctr day=2026-11-21 --samples 1440000 --priority 1")
def add(
    options: GatewayOptions,
    job: JobArgument,
    partition: Annotated[
        str, typer.Argument(metavar="PARTITION", help="Name of the partition, as `read` receives it.")
    ],
    samples: Annotated[
        int, typer.Option(min=1, help="Total number of samples in the partition, including earlier ones.")
    ],
    priority: Annotated[
        int, typer.Option(min=-1000, max=1000, help="Priority: a partition with a higher one is trained first.")
    ] = 0,
) -> None:
    """State how many samples a partition has now. Workers that wait for data start at once.

    The number is a total, so stating it twice changes nothing. The job must have `growing: true` in its dataset.
    """
    part = {"name": partition, "samples": samples, "priority": priority}
    with options.connect() as gateway:
        answered = gateway.data(job, {"partitions": [part]})
    options.answer(answered, lambda: _summary(answered))


@GROUP.command("stretto data close ctr")
def close(options: GatewayOptions, job: JobArgument) -> None:
    """State that no more data will come. The job completes when all its data are trained. This is final."""
    with options.connect() as gateway:
        answered = gateway.data(job, {"close": True})
    options.answer(answered, lambda: _summary(answered))


@GROUP.command(
    "stretto data convert clicks.csv --to clicks",
    "stretto data convert 'spark/*.csv.gz' --to clicks --escape '\\' --lists tags --missing NULL",
)
def convert(
    sources: Annotated[
        list[str], typer.Argument(metavar="FILE…", help="Files, folders, globs or URLs of CSV, TSV or TFRecord.")
    ],
    to: Annotated[Path, typer.Option(help="Folder for the Parquet files; it must not exist yet.")],
    delimiter: Annotated[str | None, typer.Option(help="Character between cells. Default: tab or comma.")] = None,
    quote: Annotated[str | None, typer.Option(help="Character around cells; an empty text for none.")] = None,
    escaped_by: Annotated[str | None, typer.Option("--escape", help="Character before a quote in a cell.")] = None,
    encoding: Annotated[str | None, typer.Option(help="Encoding of the text. Default: by its first bytes.")] = None,
    columns: Annotated[
        str | None, typer.Option(help="Names of the columns, separated by commas, where the first line has none.")
    ] = None,
    missing: Annotated[
        list[str] | None,
        typer.Option(help="A text, or an item of a list, that is no value besides the empty one; may be repeated."),
    ] = None,
    lists: Annotated[
        list[str] | None, typer.Option(help="A column of lists such as [1, 2] or a|b; may be repeated.")
    ] = None,
    newlines: Annotated[bool, typer.Option("--newlines", help="Cells may hold line ends.")] = False,
    bad_rows_max: Annotated[
        int, typer.Option(min=0, help="Rows that may be left out because they cannot be split into cells.")
    ] = 0,
    output: OutputOption = OutputForm.TABLE,
) -> None:
    """Write text and TFRecord files as Parquet, whose samples can be read in any order, and say what they hold.

    A column has one type in all files. Nothing is there before all of it is.
    """
    form = {
        "delimiter": "\t" if delimiter == "\\t" else delimiter,
        "quote": quote,
        "escape": escaped_by,
        "encoding": encoding,
    }
    names = None if columns is None else columns.split(",")
    form |= {"columns": names, "missing": missing or [], "lists": lists or [], "newlines": newlines}
    asked = {"sources": sources, "to": str(to), "form": form, "bad_rows_max": bad_rows_max}
    is_quiet = output is OutputForm.JSON
    report = run(["stretto.trial.convert"], json.dumps(asked), quiet=is_quiet, what="nothing was converted")
    answer(output, report, lambda: _converted(report))


def _converted(report: Json) -> object:
    made = table("column", "type", "missing", "", right=("missing",))
    for each in report["columns"]:
        made.add_row(escape(each["name"]), escape(each["type"]), f"{each['missing']:,}", escape(each["hint"]))
    told = [f"{report['folder']}: {counted(report['rows'], 'row')} of {counted(report['files'], 'file')}"]
    if report["refused_count"]:
        told += [f"left out: {counted(report['refused_count'], 'row')}", *report["refused"]]
    return Group(*map(escape, told), made)


def _summary(answered: Json) -> str:
    more = "still growing" if answered["growing"] else "closed"
    samples, partitions = counted(answered["samples"], "sample"), counted(answered["partitions"], "partition")
    return f"{answered['job']}: {samples} in {partitions}, {more}"
