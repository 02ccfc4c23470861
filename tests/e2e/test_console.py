"""The console beside a real job: workers that stall, a pod that dies, and the books at the end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from stretto_drills.chaos.job import MODELS, SETTINGS, WORKERS, spec
from stretto_gateway.read_model.summaries import STALLED_S

browser_of = pytest.importorskip("playwright.sync_api", reason="needs playwright: `make console-test` installs it")
CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.night,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium, Debian's package chromium"),
]
JOB, SAMPLES, TRAINING_S = "seen", 160_000, 60.0
TOLD_S = STALLED_S + 5.0
"""A stall is told this long after the last sample, as the page asks again only every ten seconds or so."""
LIMIT_S = 240.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An installation in which a job trains."""
    folder = tmp_path_factory.mktemp("console") / "state"
    file = folder.parent / "job.yaml"
    file.write_text(yaml.safe_dump(spec(JOB, next(iter(MODELS)), SAMPLES, TRAINING_S)))
    stretto(folder, "up", "--detach", *(word for pair in SETTINGS.items() for word in ("--set", "=".join(pair))))
    stretto(folder, "submit", str(file))
    yield folder
    stretto(folder, "down")


@pytest.fixture(scope="module")
def page(folder: Path) -> Iterator[Any]:
    """The console, signed in as the admin."""
    place = json.loads((folder / "run" / "gateway.json").read_text())
    token = (folder / "gateway.token").read_text().strip()
    with browser_of.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(base_url=f"http://{place['host']}:{place['port']}")
        page.goto(f"/console/#token={token}")
        page.get_by_text("admin (admin)").wait_for()
        yield page
        browser.close()


def stretto(folder: Path, *words: str) -> str:
    command = [sys.executable, "-m", "stretto_cli.main", *words, "--folder", str(folder)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=LIMIT_S).stdout


def pid_of(folder: Path, pod: str) -> int:
    return int((folder / "pods" / JOB / pod / "pid").read_text())


def test_a_job_is_seen_to_stall_to_lose_a_pod_and_to_end_with_exact_books(page: Any, folder: Path) -> None:
    """Goal: the page tells what the processes do. Method: stop all workers, kill one, wait for the end; read it all."""
    page.goto(f"/console/jobs/{JOB}/pods")
    page.get_by_text("● training").wait_for(timeout=1000 * LIMIT_S)
    workers = [pid_of(folder, f"worker-{number}") for number in range(WORKERS)]
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    stopped_s = time.monotonic()
    try:
        page.get_by_text("no sample since").wait_for(timeout=1000 * 2 * TOLD_S)
        told_s = time.monotonic() - stopped_s
    finally:
        for pid in workers:
            os.kill(pid, signal.SIGCONT)
    page.get_by_text("no sample since").wait_for(state="detached", timeout=1000 * LIMIT_S)

    os.kill(pid_of(folder, "worker-1"), signal.SIGKILL)
    killed = page.locator("tbody tr", has_text="worker-1").filter(has_text="killed")
    killed.wait_for(timeout=1000 * LIMIT_S)
    page.get_by_text("✓ finished").wait_for(timeout=1000 * LIMIT_S)
    killed.get_by_role("button", name="log").click()
    log = page.locator("section[aria-label='Log of worker-1'] pre")
    log.wait_for()
    assert f"worker-1 of job {JOB} joined" in log.inner_text()

    page.goto(f"/console/jobs/{JOB}/books")
    page.get_by_text("✓ exact").wait_for()
    audit = json.loads(stretto(folder, "audit", JOB, "-o", "json"))
    rows = {row.locator("td").nth(0).inner_text(): row.locator("td").nth(1).inner_text() for row in
            page.locator("section[aria-label=Books] tr").all()}  # fmt: skip
    assert rows["trained"] == f"{audit['samples_done']:,}" == f"{SAMPLES:,}"
    assert (rows["lost"], rows["repeated"]) == ("0", "0")
    assert (audit["samples_lost"], audit["samples_repeated"]) == (0, 0)
    assert rows["columns that are exact"] == f"{audit['columns_exact']} of {audit['columns']}"
    assert rows["fingerprint of the ledger"] == audit["fingerprint"]
    assert told_s <= TOLD_S
