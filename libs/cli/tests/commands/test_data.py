"""``stretto data`` against a real gateway on a real bus, and in a real process of the trainer."""

import json
import uuid
from pathlib import Path

import yaml
from installed_gateway import Installed
from stretto_cli.main import app
from typer.testing import CliRunner


def test_data_are_added_and_closed_from_the_command_line(installed: Installed, tmp_path: Path) -> None:
    name = f"job-{uuid.uuid4().hex[:12]}"
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump({"name": name, "model": {"entry": "m:M"}, "dataset": {"growing": True}}))
    assert installed.stretto("submit", str(file)).exit_code == 0
    for _ in range(2):
        added = installed.stretto("data", "add", name, "day=1", "--samples", "500", "--priority", "2", "-o", "json")
        assert json.loads(added.stdout) == {"job": name, "growing": True, "samples": 500, "partitions": 1}
    fewer = installed.stretto("data", "add", name, "day=1", "--samples", "400")
    assert fewer.exit_code != 0
    assert "at least 500" in fewer.stderr
    assert "500 samples in 1 partition, closed" in installed.stretto("data", "close", name).stdout
    assert installed.stretto("data", "add", name, "day=2", "--samples", "1").exit_code != 0


def test_text_is_converted_and_its_columns_are_listed(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n\ttags\n1\t[1 2]\nNULL\t[]\n3\n")
    command = ["data", "convert", str(tmp_path / "a.csv"), "--to", str(tmp_path / "out"), "--lists", "tags"]
    command += ["--delimiter", "\\t"]  # as a shell passes it
    refused = CliRunner().invoke(app, command)
    assert refused.exit_code == 2
    assert "row 2: 1 cells, expected 2" in " ".join(refused.stderr.split())
    done = CliRunner().invoke(app, [*command, "--bad-rows-max", "1", "--missing", "NULL", "-o", "json"])
    report = json.loads(done.stdout)
    assert (report["rows"], report["refused_count"]) == (2, 1)
    assert [(each["name"], each["missing"]) for each in report["columns"]] == [("n", 1), ("tags", 0)]
