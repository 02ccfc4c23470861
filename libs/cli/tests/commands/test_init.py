"""`stretto init`: what it writes can be checked as it is, and nothing of the user's is overwritten."""

from __future__ import annotations

from pathlib import Path

from stretto_cli.main import app
from stretto_wire.jobspec.jobfile import read_job
from typer.testing import CliRunner


def test_what_init_writes_is_a_model_that_trains_and_a_job_that_can_be_submitted(tmp_path: Path) -> None:
    shop = tmp_path / "shop"
    assert CliRunner().invoke(app, ["init", str(shop), "--name", "shop-1"]).exit_code == 0
    job = read_job((shop / "job.yaml").read_text())
    assert (job.name, job.model.path, job.evaluate) == ("shop-1", str(shop), 20_000)
    assert job.model.metadata == {"family": "shop-1"}, "its jobs are similar to each other, and not to those of others"
    checked = CliRunner().invoke(app, ["check", job.model.entry, "--path", str(shop), "-o", "json"])
    assert checked.exit_code == 0, checked.output
    assert f"samples: {job.dataset.samples}" in checked.output


def test_init_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("mine")
    done = CliRunner().invoke(app, ["init", str(tmp_path)])
    assert done.exit_code == 2
    assert "job.yaml exists" in done.output
    assert (tmp_path / "job.yaml").read_text() == "mine"
    assert not (tmp_path / "my_model.py").exists()
