"""``stretto replay``: which services, which settings, and what is told of a difference."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from asking import assert_refused
from installed_gateway import PLAN, Installed, write_spec
from rich.console import Console
from stretto_bus import Client
from stretto_cli.commands.views.replay import again, report
from stretto_cli.errors import BadInput
from stretto_cli.main import app
from stretto_installation.errors import InstallationError
from stretto_installation.server import keys_of
from stretto_messages.actuator import PlanApplied, PodStarted
from stretto_messages.base import example_of
from stretto_messages.pods import PsReported, WorkerReported
from stretto_profiler.service import Profiler
from stretto_profiler.settings import ProfilerSettings
from stretto_runtime import serve
from stretto_runtime.replay import Replayed, ReplayedDecision
from typer.testing import CliRunner


def decision(verdict: str, then: object, now: object, seq: int = 7) -> ReplayedDecision:
    bodies = (None if body is None else json.dumps(body).encode() for body in (then, now))
    return ReplayedDecision(f"arbiter:{seq}._:0", seq, 0.0, "plan-decided", verdict, 1, *bodies)  # type: ignore[arg-type]


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
    assert text.splitlines()[-1] == "not the same: 2 of 3 decisions differ"
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
    assert shown([done]).splitlines()[-1] == "nothing was compared; 1 decision could not be decided again"
    assert report.reproduced([Replayed("fitter", 2)])  # nothing was decided at all
    assert shown([Replayed("fitter", 2)]).splitlines()[-1] == "nothing was decided yet"
    done.decisions.append(decision("same", {"a": 1}, {"a": 1}))
    told = shown([done]).splitlines()[-1]
    assert told == "the same, byte for byte: 1 decision; 1 decision could not be decided again"


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


def test_a_job_of_an_installation_elsewhere_is_replayed_by_its_gateway_as_by_its_bus(
    installed: Installed, tmp_path: Path
) -> None:
    """Goal: an admin's token is enough, whatever is decided by. Method: a profiler decides by events, ticks and
    telemetry; both documents are compared, decision by decision, under its settings and under others."""
    name, file = write_spec(tmp_path)
    installed.stretto("submit", file)
    asyncio.run(measured(installed, name, tmp_path))
    url, login = installed.installation.operator()
    nowhere = ["replay", name, "-s", "profiler", "-o", "json", "--folder", str(tmp_path / "none")]
    for more in ([], ["--set", "STRETTO_PROFILER_WINDOW_S=0.7"]):
        by_bus = CliRunner().invoke(app, [*nowhere, *more, "--bus", url, "--credentials", str(login.credentials)])
        by_gateway = CliRunner().invoke(app, [*nowhere, *more, *installed.elsewhere()])
        assert by_gateway.exit_code == by_bus.exit_code, by_gateway.output
        (profiler,) = json.loads(by_gateway.stdout)["services"]
        assert json.loads(by_gateway.stdout) == json.loads(by_bus.stdout)
        assert profiler["decisions"] > 1
        assert (profiler["same"] == profiler["decisions"]) == (not more)


async def measured(installed: Installed, job: str, folder: Path) -> None:
    """Let a profiler measure some windows of a worker and a parameter server."""
    client = await Client.connect(*installed.installation.operator())
    login = keys_of(installed.folder / "nats").login("profiler")
    own = {"nats_url": installed.installation.operator()[0], "nats_credentials": login.credentials}
    settings = ProfilerSettings(**own, state_folder=folder, lease_s=1, window_s=0.5)
    stop = asyncio.Event()
    running = asyncio.create_task(serve(Profiler(settings), stop))
    await client.publish(replace(example_of(PlanApplied), job=job, version=1, plan=PLAN))
    for pod, role in (("ps-0", "ps"), ("worker-0", "worker")):
        await client.publish(replace(example_of(PodStarted), job=job, pod=pod, role=role, plan_version=1))
    worker = replace(example_of(WorkerReported), job=job, pod="worker-0", plan_version=1, window_s=0.1, steps=2)
    ps = replace(example_of(PsReported), job=job, pod="ps-0", window_s=0.1)
    async with asyncio.timeout(60):
        for number in itertools.count(1):
            now = time.time()
            counts = {"steps_total": 2 * number, "samples_total": 1024 * number}
            await client.publish(replace(worker, ended_at_s=now, **counts))
            await client.publish(replace(ps, ended_at_s=now))
            await asyncio.sleep(0.1)
            pattern = f"evt.v1.profiler.profile-measured.{job}"
            if len([event async for event in client.events(patterns=(pattern,), follow=False)]) >= 3:
                break
    stop.set()
    await running
    await client.close()


def test_a_replay_has_one_source_and_a_reader_of_it_the_role_of_an_admin(installed: Installed, tmp_path: Path) -> None:
    name, file = write_spec(tmp_path)
    installed.stretto("submit", file)
    both = installed.stretto("replay", name, "--bus", "nats://a", "--url", "http://b")
    assert_refused(both, "--bus nats://a", "--url http://b")
    created = installed.stretto("token", "create", f"v-{name}", "--role", "observer", "-o", "json")
    assert created.exit_code == 0, created.output
    *url, _, _ = installed.elsewhere()
    seen = installed.stretto("replay", name, "-s", "fitter", *url, "--token", json.loads(created.stdout)["token"])
    assert (seen.exit_code, seen.stdout) == (1, "")
    assert "a token of the role admin" in seen.stderr
    unknown = installed.stretto("replay", "nobody", "-s", "fitter", *installed.elsewhere())
    assert unknown.exit_code == 2


def test_a_bus_that_does_not_start_is_a_failure_and_no_bad_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("nats/jetstream", "run"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setattr("stretto_installation.server.binary", lambda: "/bin/false")
    with pytest.raises(InstallationError, match="nats-server did not start") as raised:
        asyncio.run(again.decide_again(tmp_path, "ctr", ["fitter"], []))
    assert raised.value.status == 1
