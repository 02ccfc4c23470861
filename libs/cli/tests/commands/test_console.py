"""``stretto console``: the file that signs a browser in."""

from __future__ import annotations

import json
import re
from pathlib import Path

from installed_gateway import Installed


def test_the_file_forwards_to_the_console_with_the_token_and_only_its_owner_reads_it(installed: Installed) -> None:
    answer = installed.stretto("console", "--no-browser", "-o", "json")
    assert answer.exit_code == 0, answer.output
    report = json.loads(answer.output)
    door = Path(report["file"])
    assert door.stat().st_mode & 0o777 == 0o600
    target = json.loads(re.findall(r"location\.replace\((.*?)\)<", door.read_text())[0])
    token = (installed.folder / "gateway.token").read_text().strip()
    assert target == f"{report['url']}#token={token}"
    assert report["opened"] is False
    again = json.loads(installed.stretto("console", "--no-browser", "-o", "json").output)
    assert again["file"] == report["file"]


def test_a_wrong_token_is_told_before_a_browser_opens(installed: Installed) -> None:
    url = installed.elsewhere()[1]
    answer = installed.stretto("console", "--no-browser", "--url", url, "--token", "wrong")
    assert answer.exit_code == 1
    assert "token" in answer.output
