"""``stretto replay``: which services, which settings, and what is told of a difference."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from installed_gateway import Installed, write_spec
from rich.console import Console
from stretto_cli.commands.replay import again, report
from stretto_cli.errors import BadInput, CliError
from stretto_cli.main import app
from stretto_runtime.replay import Decision, Replayed
from typer.testing import CliRunner


def decision(verdict: str, then: object, now: object, seq: int = 7) -> Decision:
    bodies = (None if body is None else json.dumps(body).encode() for body in (then, now))
    return Decision(f"arbiter:{seq}._:0", seq, 0.0, "plan-decided", verdict, 1, *bodies)  # type: ignore[arg-type]


def shown(found: list[Replayed]) -> str:
    console = Console(width=120)
    with console.capture() as capture:
        console.print(report.for_people("ctr-1", found))
    return capture.get()


def test_every_service_with_machines_is_found_under_its_name(tmp_path: Path) -> None:
    assert [again.service_named(name, tmp_path).name for name in again.MACHINES] == list(again.MACHINES)
    with pytest.raises(BadInput, match="--service gateway: give one of profiler"):
        again.service_named("gateway", tmp_path)


def test_settings_are_checked_as_the_service_checks_them(tmp_path: Path) -> None:
    arbiter, planner = (again.service_named(name, tmp_path) for name in ("arbiter", "planner"))
    given = ["STRETTO_ARBITER_RHO=0", "STRETTO_PLANNER_WINDOW_S=3"]
    assert again.overrides(arbiter, given) == {"rho": 0.0}
    assert again.overrides(planner, given) == {"window_s": 3.0}
    for wrong, said in (
        ("STRETTO_ARBITER_RHO=much", "STRETTO_ARBITER_RHO"),
        ("STRETTO_ARBITER_ROH=1", "did you mean STRETTO_ARBITER_RHO"),
        ("RHO=1", "give NAME=VALUE"),
    ):
        with pytest.raises(BadInput, match=said):
            again.overrides(arbiter, [wrong])


def test_the_first_difference_is_told_field_by_field() -> None:
    done = Replayed("arbiter", 2, inputs=1234)
    done.decisions = [
        decision("same", {"a": 1}, {"a": 1}, 5),
        decision("differs", {"plan": {"workers": 2}, "reasons": ["x"]}, {"plan": {"workers": 3}, "reasons": []}, 6),
        decision("not decided now", {"a": 1}, None, 9),
    ]
    text = shown([done])
    assert "1 of 3" in text
    assert "plan-decided" in text
    assert "(input 6) differs by this code, and 1 more after it" in text
    assert [line.split() for line in text.splitlines() if "workers" in line] == [["plan.workers", "2", "3"]]
    assert "reasons[0]" in text
    assert not report.reproduced([done])
    told = report.document("ctr-1", [done])
    assert (told["reproduced"], told["services"][0]["same"]) == (False, 1)
    assert told["services"][0]["differences"][1]["fields"] == [{"field": "a", "then": 1, "now": None}]


def test_what_could_not_be_replayed_is_no_success() -> None:
    done = Replayed("profiler", 2, missing=["telemetry before 12:00 is not kept any longer"])
    done.decisions = [decision("not replayed", {"a": 1}, None)]
    assert done.reproduced
    assert not report.reproduced([done])
    assert "not kept any longer" in shown([done])
    assert report.reproduced([Replayed("fitter", 2)])  # nothing was decided at all


def test_a_job_that_never_was_is_bad_input(installed: Installed) -> None:
    answer = installed.stretto("replay", "nobody", "-s", "fitter")
    assert answer.exit_code == 2
    assert "no submission of 'nobody'" in answer.stderr


def test_a_job_of_an_installation_elsewhere_is_replayed_by_its_bus(installed: Installed, tmp_path: Path) -> None:
    """Method: the operator's credentials, from a folder without an installation; and without them."""
    name, file = write_spec(tmp_path)
    installed.stretto("submit", file)
    url, login = installed.installation.operator()
    assert login.credentials is not None
    command = ["replay", name, "-s", "fitter", "-o", "json", "--folder", str(tmp_path / "none"), "--bus", url]
    done = CliRunner().invoke(app, [*command, "--credentials", str(login.credentials)])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["services"][0]["service"] == "fitter"
    refused = CliRunner().invoke(app, command)
    assert refused.exit_code == 1
    assert f"the stream of {url} cannot be read" in refused.stderr


def test_a_bus_that_does_not_start_is_a_failure_and_no_bad_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("nats/jetstream", "run"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setattr("stretto_runtime.server.binary", lambda: "/bin/false")
    with pytest.raises(CliError, match="nats-server did not start") as raised:
        asyncio.run(again.decide_again(tmp_path, "ctr", ["fitter"], []))
    assert raised.value.status == 1
