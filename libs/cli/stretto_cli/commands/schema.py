"""``stretto schema``: every field of a job file."""

from __future__ import annotations

import typer
from stretto_wire.jobspec.schema import job_schema

from ..options import OutputForm, OutputOption, example, print_json


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(rich_help_panel="Jobs", epilog=example("stretto schema > job.schema.json"))(schema)


def schema(output: OutputOption = OutputForm.JSON) -> None:
    """Print the JSON Schema of a job file. The answer is JSON with either --output."""
    print_json(job_schema())
