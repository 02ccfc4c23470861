"""Output of `watch`, `jobs`, `audit` and `up` about jobs that run programs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import stretto_wire as wire
from rich.console import Console
from stretto_cli import render
from stretto_cli.commands.installation import up
from stretto_cli.commands.views import audit, explain, watch
from stretto_gateway.read_model.projection import Projection
from stretto_gateway.read_model.summaries import summary
from stretto_messages.actuator import PodExited, PodStarted
from stretto_messages.base import EXACT, Message, example_of
from stretto_messages.pods import WorkerReported
from stretto_wire.codec import adapter_of
from stretto_wire.program import PROMISES
from stretto_wire.rest.summaries import JobSummary
from stretto_wire.rest.views import JobView

STARTED = replace(example_of(PodStarted), job="a", pod="worker-1", role="worker")
DIED = PodExited(
    job="a", pod="worker-0", role="worker", reason="failed", exit_code=3, again_in_s=4.0,
    detail="x trace=- exit 3: the program ended with status 1",
)  # fmt: skip


def projection(level: int, *told: Message) -> Projection:
    dataset = {"dataset": {"samples": 900, "batch_size": 10}} if level else {}
    program = {"program": {"command": ["python", "train.py"], "level": level}}
    runs = program if level != EXACT else {"model": {"entry": "m:M"}}
    spec = wire.JobSpec.parse({"name": "a", **runs, **dataset})
    made = Projection()
    for number, message in enumerate((wire.JobSubmitted(job="a", spec=spec), *told), start=1):
        made.apply(message, number, float(number))
    made.jobs["a"].status = "training"
    report = replace(example_of(WorkerReported), job="a", pod="worker-1", cpu_used_cores=0.93)
    made.report(replace(report, memory_used_bytes=3 << 29), 5.0)
    return made


def shown(made: Any, width: int = 100) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(made)
    return console.export_text()


def document(made: Projection) -> dict[str, Any]:
    return adapter_of(JobView).dump_python(made.jobs["a"], mode="json")


def test_a_watched_program_tells_what_it_uses_and_no_share_of_its_one_run() -> None:
    made = projection(0, STARTED)
    screen = shown(watch.dashboard(document(made), 100, 40))
    assert "running, level 0" in screen
    assert "0.93 cores, 1.5 GiB, since" in screen
    assert "shards" not in screen
    assert "progress" not in screen
    line = adapter_of(JobSummary).dump_python(summary(made.jobs["a"], 1e6), mode="json")
    listed = shown(render.jobs([line], 120), 120)
    assert "0.93 cores, 1.5 GiB" in listed
    assert "stalled" not in listed


@pytest.mark.parametrize("level", PROMISES)
def test_each_list_of_a_job_tells_its_level_by_the_same_words(level: int) -> None:
    made = projection(level, STARTED)
    found = document(made)
    assert f"promise   {PROMISES[level]}"[:90] in shown(watch.dashboard(found, 100, 40))
    assert PROMISES[level] in shown(explain.decisions(found, []), 200)
    line = adapter_of(JobSummary).dump_python(summary(made.jobs["a"], 1e6), mode="json")
    told = {0: "running, level 0", 1: "training, level 1", 2: "training, level 2", 3: "training  "}[level]
    assert told in shown(render.jobs([line], 120), 120)


def test_a_program_that_fails_shows_its_last_end_and_when_the_next_one_may_start() -> None:
    found = document(projection(1, DIED, STARTED))
    screen = shown(watch.dashboard(found, 200, 40), 200)
    assert "last end  worker-0 failed 3 at " in screen
    assert "exit 3: the program ended with status 1; another one from " in screen
    over = shown(watch.dashboard({**found, "status": "failed"}, 200, 40), 200)
    assert "another one from" not in over
    assert "last end" not in shown(watch.dashboard(document(projection(1, STARTED)), 200, 40), 200)


def test_an_audit_begins_with_what_the_level_promises() -> None:
    found = dict.fromkeys(
        ("samples_total", "samples_done", "samples_given_up", "samples_in_flight", "samples_waiting",
         "samples_recomputed"), 7,
    ) | {"findings": [], "returns": [], "job": "a", "quiet": True}  # fmt: skip
    assert shown(audit.shown(found, 1, PROMISES[1])).splitlines()[0].startswith(PROMISES[1][:60])
    assert "samples" not in shown(audit.shown(found, 0, "level 0"))
    flying = {**found, "quiet": False}
    assert "7 samples in flight: it still trains. Audit again" in shown(audit.shown(flying, 2, "level 2"))
    assert "it still runs. Audit again" in shown(audit.shown(flying, 0, "level 0"))
    assert "Audit again" not in shown(audit.shown(found, 2, "level 2"))


def test_a_second_start_says_that_nothing_was_started() -> None:
    state = {"gateway_url": "u", "token_file": "t", "nats_url": "n", "folder": "f", "power": "p", "warnings": []}
    told = up._addresses({**state, "ready_s": 5.2, "ran_before": True})
    assert told.splitlines()[0] == "runs already; nothing was started"
    assert up._addresses({**state, "ready_s": 5.2}).splitlines()[0] == "ready after 5.2 s"
