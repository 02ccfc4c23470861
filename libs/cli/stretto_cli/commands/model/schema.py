"""``stretto schema``: every field of a job file."""

from __future__ import annotations

from stretto_wire.jobspec.schema import job_schema

from ...command import command
from ...options import OutputForm, OutputOption, print_json


@command("Jobs", "stretto schema > job.schema.json")
def schema(output: OutputOption = OutputForm.JSON) -> None:
    """Print the JSON Schema of a job file. The answer is JSON with either --output."""
    print_json(job_schema())
