"""``stretto data`` against a real gateway on a real bus."""

import json
import uuid
from pathlib import Path

import yaml
from installed_gateway import Installed


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
    assert "500 samples in 1 partitions, closed" in installed.stretto("data", "close", name).stdout
    assert installed.stretto("data", "add", name, "day=2", "--samples", "1").exit_code != 0
