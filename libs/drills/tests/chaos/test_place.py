"""The next chaos run removes the leftovers of a killed one, and does not touch those of a live one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from installed_gateway import Installed
from owners import Started, dead
from stretto_cli.errors import CliError
from stretto_drills.chaos import place
from stretto_installation.one_machine import leftovers
from stretto_installation.one_machine.state import write_json
from stretto_runtime.process.pid import ProcessIdentity

from tests.waits import wait_until


def stopped(process: psutil.Process) -> bool:
    return process.is_running() and process.status() == psutil.STATUS_STOPPED


def a_run(tmp_path: Path, name: str, owner: dict[str, Any], service: psutil.Process) -> Path:
    """A folder as a run has it that has frozen a service; its supervisor is gone."""
    folder = tmp_path / f"{place.PREFIX}{name}"
    (folder / "run").mkdir(parents=True)
    (folder / place.MARK).write_text(json.dumps({**owner, "job": "chaos-1"}))
    known = {"oom": {"pid": service.pid, "birth": ProcessIdentity.of(service.pid)}}
    (folder / "run" / "up.json").write_text(json.dumps({"pid": 2**22 - 1, "birth": ["", 1], "processes": known}))
    service.suspend()
    return folder


def test_what_a_killed_run_has_frozen_and_mounted_goes_and_a_living_one_keeps_everything(
    tmp_path: Path, sleeper: Started
) -> None:
    (own := tmp_path / f"{place.PREFIX}killed").mkdir()
    frozen, held = sleeper(own), sleeper()
    killed = a_run(tmp_path, "killed", dead(sleeper), frozen)
    living = a_run(tmp_path, "living", leftovers.owner_entry(), held)
    elsewhere = a_run(tmp_path, "elsewhere", {**dead(sleeper), "namespace": "pid:[1]"}, sleeper())
    (over := tmp_path / f"{place.PREFIX}over").mkdir()  # kept: nobody's any more
    (killed / "memory").mkdir()
    options = ["-t", "tmpfs", "-o", "size=1m", "tmpfs", str(killed / "memory")]
    mounted = os.geteuid() == 0 and subprocess.run(["mount", *options], capture_output=True).returncode == 0
    assert os.path.ismount(killed / "memory") == mounted
    assert place.clear_away(tmp_path) == [killed]
    assert not os.path.ismount(killed / "memory")
    assert sorted(tmp_path.iterdir()) == sorted([living, elsewhere, over])
    assert not frozen.is_running() or frozen.status() == psutil.STATUS_ZOMBIE
    assert stopped(held)


def test_the_next_run_lets_go_what_a_killed_one_has_frozen_in_the_installation_of_the_user(
    installed: Installed, sleeper: Started, tmp_path: Path
) -> None:
    spec = tmp_path / "job.json"
    spec.write_text(json.dumps({"name": "chaos-7-abc", "model": {"entry": "m:M"}, "dataset": {"samples": 5}}))
    installed.stretto("submit", str(spec))
    redis = installed.installation.children["redis"].pid
    assert redis is not None
    mark = installed.folder / place.MARK
    write_json(mark, {**dead(sleeper), "job": "chaos-7-abc"})
    os.kill(redis, signal.SIGSTOP)
    wait_until(lambda: stopped(psutil.Process(redis)))  # the signal acts when the process next runs
    told: list[str] = []
    with place.of_the_user(installed.folder, told.append) as here:
        assert not stopped(psutil.Process(redis))
        assert "1 frozen processes continue, its job chaos-7-abc cancelled" in told[0]
        with (
            pytest.raises(CliError, match=f"process {os.getpid()} is at work in it"),
            place.of_the_user(installed.folder, told.append),
        ):
            pass
        assert here.memory is None
    assert not mark.exists()
    jobs = json.loads(installed.stretto("jobs", "-o", "json").stdout)
    assert [job["status"] for job in jobs if job["name"] == "chaos-7-abc"] == ["cancelled"]


def test_of_two_runs_that_begin_in_one_moment_one_goes_on(installed: Installed) -> None:
    with place.of_the_user(installed.folder, print) as here:
        here.unmark()  # as it is before the mark is written
        with (
            pytest.raises(CliError, match="another chaos run is at work in it"),
            place.of_the_user(installed.folder, print),
        ):
            pass
    with place.of_the_user(installed.folder, print):
        pass


@pytest.mark.slow
@pytest.mark.night
def test_the_installation_of_a_run_that_is_killed_ends_by_itself(tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("stretto")), "chaos", "--undisturbed", "1", "--seed", "1"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STRETTO_")}
    environment |= {"TMPDIR": str(tmp_path)}
    run = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert run.stdout is not None
    with run.stdout as told:
        assert next(line for line in told if "all ready" in line)
        [folder] = tmp_path.glob(f"{place.PREFIX}*")
        run.kill()
        run.wait(60)
    supervisor = psutil.Process(json.loads((folder / "run" / "up.json").read_text())["pid"])
    psutil.wait_procs([supervisor], timeout=60)
    assert [words for process in psutil.process_iter(["cmdline"])
            if str(folder) in (words := " ".join(process.info["cmdline"] or ()))] == []  # fmt: skip
    assert place.clear_away(tmp_path) == [folder]
    assert not folder.exists()
