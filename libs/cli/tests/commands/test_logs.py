"""``stretto logs``: pods found by name, and TensorFlow's notes hidden."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from installed_gateway import Installed, write_spec
from stretto_bus import Client
from stretto_cli.commands.jobs.logs import PODS_LISTED, find_log
from stretto_cli.errors import BadInput


@pytest.mark.parametrize(("pods", "more"), [(PODS_LISTED, ""), (PODS_LISTED + 3, " and 3 more")])
def test_pods_that_are_not_listed_are_counted(pods: int, more: str, tmp_path: Path) -> None:
    for number in range(pods):
        (tmp_path / "pods" / "job" / f"worker-{number}").mkdir(parents=True)
        (tmp_path / "pods" / "job" / f"worker-{number}" / "log").touch()
    with pytest.raises(BadInput) as refused:
        find_log(tmp_path, "nobody", None)
    told = str(refused.value)
    assert told.count("job/worker-") == PODS_LISTED
    assert told.partition("these pods have one: ")[2].count(" and ") == bool(more)
    assert told.endswith(more)


def test_logs_are_found_by_pod_and_an_ambiguous_pod_is_refused(installed: Installed) -> None:
    for job in ("one", "two"):
        pod = installed.folder / "pods" / job / "worker-7"
        pod.mkdir(parents=True, exist_ok=True)
        (pod / "log").write_text("".join(f"{job} line {number} [x]\n" for number in range(100)))
    assert installed.stretto("logs", "one/worker-7", "-n", "2").stdout.splitlines() == [
        "one line 98 [x]",
        "one line 99 [x]",
    ]
    assert json.loads(installed.stretto("logs", "worker-7", "-j", "two", "-n", "1", "-o", "json").stdout)["lines"] == [
        "two line 99 [x]"
    ]
    refused = installed.stretto("logs", "worker-7")
    assert refused.exit_code == 2
    assert "one, two" in refused.stderr
    assert installed.stretto("logs", "worker-99").exit_code == 2


def test_what_tensorflow_notes_at_its_start_is_hidden_and_warnings_are_not(installed: Installed) -> None:
    pod = installed.folder / "pods" / "noisy" / "worker-3"
    pod.mkdir(parents=True)
    mine = ["I0000 is how my own line begins", "W0000 00:00:1795288302.598583    4727 port.cc:153] low memory"]
    noise = [
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
        "I0000 00:00:1795288302.598583    4727 port.cc:153] oneDNN custom operations are on.",
        "2026-11-21 19:11:42.375000: I tensorflow/core/platform/cpu_feature_guard.cc:210] This TensorFlow binary is",
        "To enable the following instructions: AVX2 AVX512F, in other operations, rebuild TensorFlow",
    ]
    (pod / "log").write_text("\n".join([noise[0], mine[0], *noise[1:], mine[1]]) + "\n")
    told = installed.stretto("logs", "noisy/worker-3")
    assert told.stdout.splitlines() == mine
    assert "4 start-up notes" in told.stderr
    assert len(installed.stretto("logs", "noisy/worker-3", "--all").stdout.splitlines()) == 6
    assert json.loads(installed.stretto("logs", "noisy/worker-3", "-n", "2", "-o", "json").stdout)["lines"] == mine


def with_an_actuator(installed: Installed, job: str, *commands: list[str]) -> list[Any]:
    """Run commands while an actuator elsewhere answers for the log of one pod, worker-0."""

    async def answered() -> list[Any]:
        actuator = await Client.connect(*installed.installation.operator())

        def tell(msg: Any) -> None:
            known = json.loads(msg.data)["pod"] == "worker-0"
            body = {"answer": "ok", "part": "first\nsecond\nthird\n"} if known else {"answer": "unknown"}
            actuator.bus.offer(msg.reply, json.dumps({"job": job, **body}).encode())

        await actuator.bus.subscribe(f"rpc.v1.actuator.get-pod-log.*.{job}", tell)
        await actuator.bus.flush()
        try:
            return [await asyncio.to_thread(installed.stretto, *command) for command in commands]
        finally:
            await actuator.close()

    return asyncio.run(answered())


def test_the_log_of_a_pod_elsewhere_is_the_gateways(installed: Installed, tmp_path: Path) -> None:
    name, file = write_spec(tmp_path)
    installed.stretto("submit", file)
    local = installed.folder / "pods" / name / "worker-0"
    local.mkdir(parents=True)
    (local / "log").write_text("of this machine\n")
    there = installed.elsewhere()

    pod = f"{name}/worker-0"
    two, here, unnamed, absent = with_an_actuator(
        installed,
        name,
        ["logs", pod, "-n", "2", *there],
        ["logs", pod],
        ["logs", "worker-0", *there],
        ["logs", f"{name}/worker-7", *there],
    )
    assert two.stdout.splitlines() == ["second", "third"]
    assert here.stdout.splitlines() == ["of this machine"]
    assert (unnamed.exit_code, "name the job" in unnamed.stderr) == (2, True)
    assert (absent.exit_code, "no log of worker-7" in absent.stderr) == (2, True)


def test_a_log_is_followed_to_its_end(installed: Installed, tmp_path: Path) -> None:
    name, file = write_spec(tmp_path)
    installed.stretto("submit", file)
    installed.stretto("cancel", name)
    followed = ["logs", f"{name}/worker-0", "--follow", "-n", "2"]
    shown, told = with_an_actuator(installed, name, followed, [*followed, "-o", "json"])
    assert shown.stdout.splitlines() == ["second", "third"]
    assert [json.loads(line) for line in told.stdout.splitlines()] == [{"line": "second"}, {"line": "third"}]
