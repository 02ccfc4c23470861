"""The command against a real gateway on a real bus."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from stretto_cli.main import app
from stretto_messages.actuator import JobFailed, PlanApplied
from stretto_messages.arbiter import PlanDecided
from stretto_messages.fitter import ModelFitted
from stretto_messages.planner import CandidatesComputed, HistoryMatched
from stretto_messages.profiler import ProfileMeasured
from stretto_messages.values import Alternative, Candidate, Interval, Match, Plan, StepTimes
from typer.testing import CliRunner

from .conftest import Installed

PLAN = Plan(workers=1, ps=1, worker_cpu_cores=0.5, ps_cpu_cores=0.5, worker_memory_bytes=2**30, ps_memory_bytes=2**30)


def write_spec(folder: Path, name: str | None = None, **more: object) -> tuple[str, str]:
    name = name or f"job-{uuid.uuid4().hex[:12]}"
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump({"name": name, "model": {"entry": "m:M"}, "dataset": {"samples": 1000}, **more}))
    return name, str(file)


def decided(job: str, version: int, plan: Plan, previous: Plan | None) -> PlanDecided:
    return PlanDecided(
        job=job, version=version, kind="improve" if previous else "warm-start", plan=plan, previous=previous,
        throughput=180.0, throughput_interval=Interval(low=150.0, high=210.0), throughput_before=100.0,
        cost_per_hour=0.06, reasons=("a reason with [brackets] in it",), algorithm="weighted-greedy",
        free_cpu_cores=1.0, free_memory_bytes=2**30,
        alternatives=(
            Alternative(plan=PLAN, throughput=90.0, cost_per_hour=0.1, efficiency=0.2, why_not="too dear"),
        ),
    )  # fmt: skip


def test_a_job_from_submission_to_cancellation(installed: Installed, tmp_path: Path) -> None:
    name, file = write_spec(tmp_path)
    done = installed.stretto("submit", file, "-o", "json")
    assert done.exit_code == 0, done.stderr
    seq = json.loads(done.stdout)["seq"]
    assert json.loads(done.stdout) == {"job": name, "created": True, "seq": seq, "status": "submitted"}
    assert json.loads(installed.stretto("submit", file, "-o", "json").stdout)["created"] is False

    listed = json.loads(installed.stretto("jobs", "-o", "json").stdout)
    assert name in [job["name"] for job in listed]
    assert name in installed.stretto("jobs").stdout

    cancelled = installed.stretto("cancel", name, "--reason", "enough", "-o", "json")
    assert json.loads(cancelled.stdout)["status"] == "cancelled"
    followed = installed.stretto("submit", file, "--follow", "-o", "json")
    assert followed.exit_code == 1
    assert json.loads(followed.stdout)["status"] == "cancelled"
    assert "enough" in followed.stderr


def test_a_job_is_read_from_a_pipe(installed: Installed) -> None:
    text = yaml.safe_dump({"name": "piped", "model": {"entry": "m:M"}, "dataset": {"samples": 1}})
    assert json.loads(installed.stretto("submit", "-", "-o", "json", input=text).stdout)["job"] == "piped"


def test_explain_tells_what_was_measured_fitted_considered_and_brought(installed: Installed, tmp_path: Path) -> None:
    name, file = write_spec(tmp_path)
    installed.stretto("submit", file)
    times = StepTimes(emb_s=0.01, grad_s=0.02, upd_s=0.001, sync_s=0.002)
    wider = replace(PLAN, workers=2)

    def profile(version: int, plan: Plan, rate: float) -> ProfileMeasured:
        return ProfileMeasured(
            job=name, plan_version=version, plan=plan, batch_size=512, window_s=3.0, step_time_s=0.05, times=times,
            throughput=rate, samples_total=1, categories=4321, settled=True, workers=(), ps=(),
        )  # fmt: skip

    candidate = Candidate(
        id="c1", plan=wider, cost_per_hour=0.06, throughput=180.0,
        throughput_interval=Interval(low=150.0, high=210.0), gain=75.0, overhead_s=5.0,
    )  # fmt: skip
    installed.publish(
        HistoryMatched(
            job=name, metadata={}, smoothing=0.5, plan=PLAN,
            matches=(Match(job="past-1", similarity=0.9, weight=1.0, plan=PLAN, throughput=99.0),),
        ),
        decided(name, 1, PLAN, None),
        profile(1, PLAN, 100.0),
        ModelFitted(
            job=name, form="default", coefficients={"a1": 0.5}, log_sd=0.1, rmsle=0.023, points=3, configurations=1,
            unidentified=("a2",), plan_version=1, plan=PLAN, batch_size=512, measured_step_time_s=0.05,
            predicted_step_time_s=0.051, predicted_interval_s=Interval(low=0.04, high=0.06),
        ),
        CandidatesComputed(
            job=name, plan_version=1, plan=PLAN, throughput=100.0, algorithm="exact", plans_considered=123,
            candidates=(candidate,),
        ),
        decided(name, 2, wider, PLAN),
        PlanApplied(job=name, version=2, plan=wider, took_s=4.0),
        profile(2, wider, 171.0),
    )  # fmt: skip
    document = json.loads(installed.stretto("explain", name, "-o", "json").stdout)
    first, second = document["decisions"]
    assert first["warm_start"]["matches"][0]["job"] == "past-1"
    assert second["measured"]["throughput"] == 100.0
    assert second["fitted"]["rmsle"] == 0.023
    assert second["front"]["plans_considered"] == 123
    assert second["outcome"]["throughput"] == 171.0
    assert second["outcome"]["inside_interval"] is True
    told = " ".join(installed.stretto("explain", name, "-d", "2").stdout.replace("│", "").split())
    for words in (
        "RMSLE 0.023", "cannot be told apart yet: a2", "4,321 categories", "c1", "too dear", "[brackets]", "180/s",
        "171/s = 1.71 × before", "-5% off, inside the interval",
    ):  # fmt: skip
        assert words in told, words
    shown = installed.stretto("watch", name, "--once").stdout
    for words in ("v2", "2 × worker", "171/s", "█"):
        assert words in shown, words


def test_a_job_that_is_over_is_shown_once_also_where_no_terminal_is(installed: Installed, tmp_path: Path) -> None:
    name, file = write_spec(tmp_path)
    installed.stretto("submit", file)
    installed.stretto("cancel", name)
    assert installed.stretto("watch", name).stdout.count(f"{name}  cancelled") == 1


def test_events_are_one_json_line_each_and_can_be_resumed(installed: Installed, tmp_path: Path) -> None:
    name, file = write_spec(tmp_path)
    installed.stretto("submit", file)
    installed.publish(decided(name, 1, PLAN, None), JobFailed(job=name, reason="over"))
    lines = [json.loads(line) for line in installed.stretto("events", "--job", name, "-o", "json").stdout.splitlines()]
    assert [line["event"] for line in lines] == ["job-submitted", "change-audited", "plan-decided", "job-failed"]
    assert lines[0]["data"]["spec"]["name"] == name
    rest = installed.stretto("events", "-j", name, "--after", str(lines[2]["seq"]), "-o", "json").stdout.splitlines()
    assert [json.loads(line)["seq"] for line in rest] == [lines[3]["seq"]]
    people = installed.stretto("events", "--job", name, "-e", "job-failed").stdout
    assert "job-failed" in people
    assert "plan-decided" not in people


def test_the_trace_of_a_job_begins_at_its_submission(installed: Installed, tmp_path: Path) -> None:
    name, file = write_spec(tmp_path)
    installed.stretto("submit", file)
    document = json.loads(installed.stretto("trace", name, "-o", "json").stdout)
    assert [span["name"] for span in document["spans"]] == ["publish job-submitted"]
    assert "publish job-submitted" in installed.stretto("trace", name).stdout


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


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("name: x\nmodel: {entry: 'm:M'}\ndataset: {samples: 0}\n", "dataset.samples"),
        ("name: x\nmodel: {entry: 'm:M'}\ndataset: {samples: 1}\npirority: 3\n", "pirority"),
        ("name: [", "line 1, column 8: (document) = name: [: not YAML"),
        ("just words", "(document) = just words: a mapping with the fields"),
        ("name: x\nname: y\n", "name = line 1 and line 2: stated twice"),
    ],
)
def test_bad_input_is_exit_2_with_the_field_on_stderr_and_nothing_on_stdout(
    installed: Installed, tmp_path: Path, text: str, field: str
) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    refused = installed.stretto("submit", str(file))
    assert refused.exit_code == 2
    assert refused.stdout == ""
    assert field in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_file_that_cannot_be_read_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9\n")
    for file, words in (("none.yaml", "No such file"), ("", "Is a directory"), ("latin.yaml", "not UTF-8")):
        refused = CliRunner().invoke(app, ["submit", str(tmp_path / file)])
        assert refused.exit_code == 2
        assert words in refused.stderr
        assert "Errno" not in refused.stderr


def test_all_that_is_wrong_is_told_at_once_and_in_json_as_a_document(installed: Installed, tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("name: x\nmodel: {entry: 'm:M', optimiser: adam}\ndataset: {samples: 0}\npriority: -1\n")
    told = installed.stretto("submit", str(file)).stderr
    assert "3 things are wrong" in told
    assert [line.partition(" = ")[0].strip() for line in told.splitlines()[1:]] == [
        "line 2, column 23: model.optimiser",
        "line 3, column 11: dataset.samples",
        "line 4, column 1: priority",
    ]
    error = json.loads(installed.stretto("submit", str(file), "-o", "json").stderr)["error"]
    assert (error["status"], error["count"]) == (2, 3)
    assert [(one["field"], one["line"]) for one in error["errors"]] == [
        ("model.optimiser", 2),
        ("dataset.samples", 3),
        ("priority", 4),
    ]


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["watch", "no-such-job"], 2, "no-such-job"),
        (["jobs", "--status", "done"], 2, "refused by the gateway"),
        (["jobs", "--no-such-option"], 2, "--no-such-option"),
        (["submit"], 2, "JOB.YAML"),
        (["submt"], 2, "submit"),
        (["logs", "worker-99"], 2, "worker-99"),
        (["jobs", "--url", "http://127.0.0.1:1"], 1, "stretto up"),
    ],
)
def test_with_json_errors_are_documents_too(
    installed: Installed, arguments: list[str], status: int, words: str
) -> None:
    for form in (["-o", "json"], ["--output=json"]):
        refused = installed.stretto(*arguments, *form)
        assert (refused.exit_code, refused.stdout) == (status, "")
        error = json.loads(refused.stderr)["error"]
        assert error["status"] == status
        assert words in error["message"]


def test_who_submits_a_job_that_is_over_is_told_so_and_how_to_train_it_again(
    installed: Installed, tmp_path: Path
) -> None:
    name, file = write_spec(tmp_path)
    installed.stretto("submit", file)
    assert f"{name} was submitted before and is submitted" in installed.stretto("submit", file).stdout
    installed.publish(JobFailed(job=name, reason="over"))
    again = installed.stretto("submit", file)
    assert (again.exit_code, "nothing was started" in again.stdout) == (0, True)
    assert "is failed" in again.stdout
    assert f"--name {name}-2" in " ".join(again.stdout.split())
    renamed = json.loads(installed.stretto("submit", file, "--name", f"{name}-2", "-o", "json").stdout)
    assert (renamed["job"], renamed["created"]) == (f"{name}-2", True)
    assert installed.stretto("submit", file, "--name", "Not A Name").exit_code == 2
    _, other = write_spec(tmp_path, name, priority=2)
    assert "has failed" in installed.stretto("submit", other).stderr


def test_unknown_jobs_are_exit_2_and_a_missing_installation_is_exit_1(installed: Installed, tmp_path: Path) -> None:
    for command in ("watch", "explain", "cancel", "checkpoint", "trace"):
        refused = installed.stretto(command, "no-such-job")
        assert refused.exit_code == 2, command
        assert "no-such-job" in refused.stderr
    for command in (["jobs"], ["status"], ["down"], ["watch", "x"]):
        refused = CliRunner().invoke(app, [*command, "--folder", str(tmp_path / "nothing")])
        assert refused.exit_code == 1, command
        assert "stretto up" in refused.stderr


def test_a_name_that_is_taken_is_exit_2_with_the_remedy(installed: Installed, tmp_path: Path) -> None:
    name, file = write_spec(tmp_path)
    installed.stretto("submit", file)
    _, other = write_spec(tmp_path, name, priority=2)
    refused = installed.stretto("submit", other)
    assert refused.exit_code == 2
    assert "choose another name" in refused.stderr


@pytest.mark.parametrize("by", ["option", "environment"])
def test_job_names_are_completed_from_the_folder_that_is_named(installed: Installed, tmp_path: Path, by: str) -> None:
    name, file = write_spec(tmp_path)
    installed.stretto("submit", file)
    named = f"--folder {installed.folder} " if by == "option" else ""
    environment = {**os.environ, "_STRETTO_COMPLETE": "complete_bash", "COMP_CWORD": str(4 if named else 2)}
    environment |= {"COMP_WORDS": f"stretto watch {named}{name[:8]}"}
    environment |= {} if named else {"STRETTO_STATE_FOLDER": str(installed.folder)}
    command = [str(Path(sys.executable).with_name("stretto"))]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert name in done.stdout.split(), done.stderr[-2000:]


def completed(folder: Path, *words: str) -> list[str]:
    """What bash would be offered for the last word."""
    environment = {**os.environ, "_STRETTO_COMPLETE": "complete_bash", "COMP_CWORD": str(len(words))}
    environment |= {"COMP_WORDS": " ".join(["stretto", *words]), "STRETTO_STATE_FOLDER": str(folder)}
    command = [str(Path(sys.executable).with_name("stretto"))]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout.split()


def test_pods_states_and_events_are_completed(tmp_path: Path) -> None:
    for pod in ("one/worker-0", "two/worker-0", "two/ps-0"):
        (tmp_path / "pods" / pod).mkdir(parents=True)
        (tmp_path / "pods" / pod / "log").write_text("")
    assert completed(tmp_path, "logs", "two/") == ["two/ps-0", "two/worker-0"]
    assert completed(tmp_path, "logs", "wor") == ["worker-0"]
    assert completed(tmp_path, "logs", "--job", "one", "w") == ["worker-0"]
    assert completed(tmp_path, "jobs", "--status", "fin") == ["finished", "finishing"]
    assert completed(tmp_path, "events", "-e", "plan-a") == ["plan-applied"]


def test_an_event_that_does_not_exist_is_refused_with_the_nearest(installed: Installed) -> None:
    refused = installed.stretto("events", "-e", "plan-decide")
    assert refused.exit_code == 2
    assert "did you mean plan-decided?" in refused.stderr


@pytest.mark.parametrize(
    ("name", "near"), [("STRETTO_CLI_ULR", "STRETTO_CLI_URL"), ("STRETTO_STATE_FOLDR", "STRETTO_STATE_FOLDER")]
)
def test_a_misspelt_variable_of_the_command_is_refused_with_the_nearest(
    monkeypatch: pytest.MonkeyPatch, name: str, near: str
) -> None:
    monkeypatch.setenv(name, "x")
    refused = CliRunner().invoke(app, ["schema"])
    assert refused.exit_code == 2
    assert f"{name} is not a variable of the command; did you mean {near}?" in refused.stderr
    monkeypatch.delenv(name)
    monkeypatch.setenv("STRETTO_ARBITER_SETTLE_S", "3")  # of a service
    assert CliRunner().invoke(app, ["schema"]).exit_code == 0


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
    assert "4 notes" in told.stderr
    assert len(installed.stretto("logs", "noisy/worker-3", "--all").stdout.splitlines()) == 6
    assert json.loads(installed.stretto("logs", "noisy/worker-3", "-n", "2", "-o", "json").stdout)["lines"] == mine


def test_another_number_of_pods_is_asked_for(installed: Installed, tmp_path: Path) -> None:
    name, file = write_spec(tmp_path)
    installed.stretto("submit", file)
    assert "no plan to change" in installed.stretto("scale", name, "--ps", "2").stderr
    installed.publish(decided(name, 1, PLAN, None))
    while (done := installed.stretto("scale", name, "--ps", "2")).exit_code:
        assert "no plan to change" in done.stderr
    assert "asked for 1w×0.5 2ps×0.5" in done.stdout
    assert "has this plan already" in installed.stretto("scale", name, "--ps", "1").stdout
    assert "--workers or --ps" in installed.stretto("scale", name).stderr


def test_a_running_installation_is_not_hurt_unasked_nor_by_a_misspelt_fault(installed: Installed) -> None:
    unasked = installed.stretto("chaos")
    assert (unasked.exit_code, unasked.stdout) == (2, "")
    assert "--yes" in unasked.stderr
    misspelt = CliRunner().invoke(app, ["chaos", "--only", "worker-kil"])
    assert misspelt.exit_code == 2
    assert "worker-kill-migrating" in misspelt.stderr


def test_the_schema_needs_no_installation() -> None:
    schema = json.loads(CliRunner().invoke(app, ["schema"]).stdout)
    assert {"name", "model", "dataset"} <= set(schema["required"])


def test_status_shows_every_process(installed: Installed) -> None:
    report = json.loads(installed.stretto("status", "-o", "json").stdout)
    assert report["ready"] is True
    assert [row["name"] for row in report["processes"]] == ["nats", "redis", "gateway"]
    assert all(row["resident_bytes"] > 0 for row in report["processes"])
    assert "ready" in installed.stretto("status").stdout
