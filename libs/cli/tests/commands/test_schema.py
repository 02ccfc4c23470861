"""``stretto schema``."""

from __future__ import annotations

import json

from stretto_cli.main import app
from typer.testing import CliRunner


def test_the_schema_needs_no_installation() -> None:
    schema = json.loads(CliRunner().invoke(app, ["schema"]).stdout)
    assert schema["required"] == ["name"], "a program may stand for model and dataset"
