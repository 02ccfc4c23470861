"""``stretto scale`` against a real gateway."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
from installed_gateway import PLAN, Installed, decided, write_spec
from stretto_cli.commands.jobs.scale import prediction


def test_another_number_of_pods_is_asked_for(installed: Installed, tmp_path: Path) -> None:
    name, file = write_spec(tmp_path)
    installed.stretto("submit", file)
    assert "no plan to change" in installed.stretto("scale", name, "--ps", "2").stderr
    installed.publish(decided(name, 1, PLAN, None))
    while (done := installed.stretto("scale", name, "--ps", "2")).exit_code:
        assert "no plan to change" in done.stderr
    assert "asked for 1w×0.5 2ps×0.5" in done.stdout
    assert "--data 2: --dry-run predicts" in installed.stretto("scale", name, "--data", "2", "--dry-run").stderr
    assert "has this plan already" in installed.stretto("scale", name, "--ps", "1").stdout
    assert "--workers, --ps or --data" in installed.stretto("scale", name).stderr


@pytest.mark.parametrize(("workers", "limited"), [(1, ""), (99, ", the nearest size that the job file allows")])
def test_a_dry_run_says_what_a_size_would_bring_and_whether_it_fits(workers: int, limited: str) -> None:
    found = {
        "job": "a", "plan": asdict(PLAN), "throughput": 64237.4,
        "throughput_interval": {"low": 38890.0, "high": 106104.0}, "throughput_now": 23322.0, "cost_per_hour": 0.2822,
        "cost_to_end": None, "ends_at_s": None,
        "room": "fits: it needs 1 core more, 2 cores are free", "measured": "within what was measured: 1 worker, 1 ps",
    }  # fmt: skip
    assert prediction(found, {"workers": workers}).splitlines() == [
        f"a with 1 × worker (0.5 cores, 1 GiB)  1 × ps (0.5 cores, 1 GiB){limited}",
        "speed: 64,237/s predicted, 90 % between 38,890/s and 106,104/s; now 23,322/s",
        "cost: 0.282 an hour",
        "room: fits: it needs 1 core more, 2 cores are free",
        "measured: within what was measured: 1 worker, 1 ps",
        "nothing was requested",
    ]
