"""Refusals of a chaos run, and its traces in an installation that it did not start."""

import asyncio
import json

import pytest
from installed_gateway import Installed
from stretto_cli.main import app
from stretto_drills.chaos.place import PlaceUnderFire
from stretto_drills.chaos.schedule import Intensity
from stretto_drills.chaos.script import Wish, _Runs
from stretto_drills.chaos.target import until
from stretto_drills.story import Story
from typer.testing import CliRunner


def status_of(installed: Installed, prefix: str) -> str:
    jobs = json.loads(installed.stretto("jobs", "-o", "json").stdout)
    return next((job["status"] for job in jobs if job["name"].startswith(prefix)), "")


async def test_a_run_that_is_interrupted_ends_its_job_in_the_installation_of_the_user(installed: Installed) -> None:
    wish = Wish(7, 1, 1, Intensity.CALM, (), (), "wide_deep", None, installed.folder, None)
    place = PlaceUnderFire(installed.folder, installed.folder / "chaos.html")
    running = asyncio.create_task(_Runs(wish, place, Story(quiet=True))._one(81, None))
    assert await until(lambda: asyncio.to_thread(lambda: status_of(installed, "calm-81-") == "submitted"), 20)
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()
    assert status_of(installed, "calm-81-") == "cancelled"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "deepfm"], "--model deepfm"),
        (["--only", "ps-kill", "--without", "ps-kill"], "--without takes away every fault"),
        (["--report", "/tmp"], "--report /tmp: it is a folder; name a file, e.g. /tmp/chaos.html"),
        (["--report", "fire.json"], "give fire.html"),
        (["--report", "/proc/version/below/fire.html"], "/proc/version is not a writable folder"),
    ],
)
def test_what_chaos_cannot_use_is_refused_before_anything_is_asked_or_started(
    installed: Installed, arguments: list[str], words: str
) -> None:
    refused = installed.stretto("chaos", *arguments)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert words in refused.stderr


def test_a_running_installation_is_not_hurt_unasked_nor_by_a_misspelt_fault(installed: Installed) -> None:
    unasked = installed.stretto("chaos")
    assert (unasked.exit_code, unasked.stdout) == (2, "")
    assert "--yes" in unasked.stderr
    misspelt = CliRunner().invoke(app, ["chaos", "--only", "worker-kil"])
    assert misspelt.exit_code == 2
    assert "worker-kill-migrating" in misspelt.stderr
