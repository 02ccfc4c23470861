"""Output of `watch`, `jobs` and `explain`, on screens of common sizes."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import stretto_wire as wire
from installed_gateway import Installed, write_spec
from rich.console import Console
from stretto_cli import options, render
from stretto_cli.commands.views import explain, watch
from stretto_client import figures
from stretto_gateway.read_model.projection import Projection
from stretto_gateway.read_model.summaries import as_of, summary
from stretto_messages.actuator import PodExited, PodPending, PodStarted
from stretto_messages.arbiter import DataWorkersDecided, PlanDecided
from stretto_messages.base import Message, example_of
from stretto_messages.books import CompletedBooks, GivenUp
from stretto_messages.checkpoints import CheckpointFailed
from stretto_messages.dispatcher import JobProgressed
from stretto_messages.oom import OomForecast
from stretto_messages.planner import DataWorkersProposed
from stretto_messages.pods import DataWorkerReported, PsReported, WorkerReported
from stretto_messages.profiler import ProfileMeasured
from stretto_messages.values import BackgroundReport, Interval, Plan, Round
from stretto_wire import document_of
from stretto_wire.codec import adapter_of
from stretto_wire.rest.summaries import JobSummary
from stretto_wire.rest.views import JobView

from tests.live_bus import completed, finished, submission

ROOT = Path(__file__).parents[4]

GIB = 2**30
WHY = "the number of workers was always 3 in 1 measured configuration: measure 2 of them before anything else"


SOLVE = BackgroundReport(
    algorithm="exact", outcome="adopted", reason="2.05% better", value=1990.0, instead_of=1950.0, gap=0.0, took_s=0.25
)
ROUND = Round(
    algorithm="hull", objective="gain", jobs=12, value=1990.0, bound=2000.0, gap=0.005, term=190.0, background=SOLVE
)


def plan(workers: int) -> Plan:
    return Plan(workers=workers, ps=2, worker_cpu_cores=0.5, ps_cpu_cores=1.5, worker_memory_bytes=GIB,
                  ps_memory_bytes=2 * GIB)  # fmt: skip


def messages(workers: int) -> list[Message]:
    spec = wire.JobSpec.parse({"name": "a", "model": {"entry": "m:M"}, "dataset": {"samples": 4_000_000}})
    told: list[Message] = [wire.JobSubmitted(job="a", spec=spec)]
    for version in (1, 2, 3, 4):
        told.append(
            PlanDecided(
                job="a", version=version, kind="warm-start" if version == 1 else "measure", plan=plan(version),
                previous=plan(1) if version > 1 else None, throughput=37_400.0, throughput_interval=None,
                throughput_before=None, cost_per_hour=0.1, reasons=(WHY,), alternatives=(),
                algorithm="hull", free_cpu_cores=1.0, free_memory_bytes=GIB,
                round=ROUND if version == 3 else None,
            )
        )  # fmt: skip
    pods = [("ps", 2), ("worker", workers)]
    for role, count in pods:
        told += [
            PodStarted(job="a", pod=f"{role}-{n}", role=role, plan_version=4, address="x:1", cpu_cores=0.5,
                         memory_bytes=2 * GIB, took_s=1.0, cause="plan")  # type: ignore[arg-type]
            for n in range(count)
        ]  # fmt: skip
    told.append(JobProgressed(job="a", samples_done=2_172_000, samples_total=4_000_000, epoch=0,
                                samples_per_s=39_157.0, shards_leased=2, shards_requeued_total=1))  # fmt: skip
    return told


def projected(*told: Message) -> Projection:
    projection = Projection()
    for number, message in enumerate(told, start=1):
        projection.apply(replace(message, job="a"), number, float(number))  # type: ignore[call-arg]
    return projection


def view(workers: int = 2, now: float = 0.0) -> JobView:
    found = projected(*messages(workers)).jobs["a"]
    found.pods = {
        name: replace(pod, cpu_used_cores=0.48, memory_used_bytes=814 << 20, cpu_limit_cores=0.5,
                      categories=174_961 if pod.role == "ps" else None, samples_per_s=19_500.0)
        for name, pod in found.pods.items()
    }  # fmt: skip
    return as_of(found, now)


def document(of: JobView) -> dict[str, Any]:
    return adapter_of(JobView).dump_python(of, mode="json")


def shown(made: Any, width: int) -> list[str]:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(made)
    return console.export_text().splitlines()


@pytest.mark.parametrize(("width", "rows"), [(80, 24), (120, 24), (120, 40), (200, 60)])
@pytest.mark.parametrize("workers", [1, 2, 40])
def test_a_job_fits_the_screen_and_nothing_but_reasons_is_cut(width: int, rows: int, workers: int) -> None:
    lines = shown(watch.dashboard(document(view(workers)), width, rows), width)
    assert len(lines) < rows
    assert all(len(line) == width for line in lines)
    cut = [line for line in lines if line.rstrip(" │╮").endswith("…")]
    assert all("Tried, to learn what it brings" in line or "No similar job was completed" in line for line in cut)
    told = "\n".join(lines)
    for words in ("54.3% of 4,000,000", "39,157/s", "46.7 s left", "ps-0", "174,961", "0.48/0.5", "814 MiB/2 GiB",
                  "v4   measure", "37.4k/s → –"):  # fmt: skip
        assert words in told, words
    assert any(re.search("… [0-9]+ more", line) for line in lines) == (workers == 40 and rows < 60)


def test_data_workers_are_shown_with_what_they_bring_and_an_older_view_without() -> None:
    """Goal: the row, a data worker's rate and the decisions say what was decided and measured. Method: real facts."""
    started = {"plan_version": 4, "address": "x:1", "cpu_cores": 1.0, "memory_bytes": 2 * GIB, "took_s": 1.0}
    data = PodStarted(job="a", pod="data-0", role="data", cause="plan", **started)
    examples = (example_of(kind) for kind in (ProfileMeasured, DataWorkersProposed, DataWorkersDecided))
    projection = projected(*messages(1), *examples, data)
    found = document(projection.jobs["a"])
    (row,) = [line for line in shown(watch.dashboard(found, 120, 30), 120) if " feed " in line]
    assert "1 of 2 data workers, 0 of 92 batches/s, workers wait 22%" in row
    projection.report(replace(example_of(DataWorkerReported), job="a"), 99.0)
    measured = example_of(ProfileMeasured)
    assert measured.feed is not None
    feed = replace(measured.feed, enqueued_per_s=70.0, read_share=0.0, lanes=2)
    after = replace(measured, job="a", feed=feed, prepared_elsewhere=0.75)
    projection.apply(after, 100, 100.0)
    found = document(projection.jobs["a"])
    text = "\n".join(shown(watch.dashboard(found, 120, 30), 120))
    assert "70 of 92 batches/s, workers wait 0%, home 25%" in text
    assert "36 batches/s" in text
    (line,) = map(explain.data_workers, found["feeding"]["decisions"])
    assert "2 data workers of 3 wanted of 1 core, 2 GiB: workers wait 22 % of their time for batches; 2 of 3" in line
    del found["feeding"]
    for pod in found["pods"].values():
        del pod["batches_per_s"]
    assert " feed " not in "\n".join(shown(watch.dashboard(found, 120, 30), 120))
    shown(explain.decisions(found, found["decisions"]), 120)


def test_growing_data_and_the_learning_curve_are_shown_where_there_are_any() -> None:
    found = document(view())
    assert not {"data", "quality"} & {line.split()[1] for line in shown(watch.dashboard(found, 80, 24), 80)[1:5]}
    found["data"] |= {
        "growing": True,
        "partitions": {f"day={n}": {"samples": n * 10**6, "priority": 0} for n in (1, 2)},
    }
    point = {"time_s": 1.0, "samples_done_after": 0, "samples": 100, "loss": 0.5}
    found["learning"] = [point | {"samples_done": n * 10**5, "auc": 0.7 + n / 100} for n in (1, 2, 3)]
    lines = shown(watch.dashboard(found, 80, 24), 80)
    assert len(lines) < 24
    told = "\n".join(lines)
    assert "data      2 partitions, growing: day=2 2.0M, day=1 1.0M" in told.replace("  data ", " data ")
    assert "▁▅█  AUC 0.7100 → 0.7300, loss 0.5000 at 300.0k samples" in told
    for n, each in enumerate(found["learning"]):  # a model without probabilities, with a metric of its own
        each["metrics"] = [{"name": "loss", "value": 4.0 - n}, {"name": "mae", "value": 1.5 - n / 10}]
    told = "\n".join(shown(watch.dashboard(found, 120, 24), 120))
    assert "█▅▁  loss 4.0000 → 2.0000, mae 1.3 at 300.0k samples" in told
    found["learning"] = [
        found["learning"][0],
        point | {"samples_done": 9000, "auc": 0.8, "partition": "day=2", "trained_next": True},
    ]
    told = "\n".join(shown(watch.dashboard(found, 120, 24), 120))
    assert "loss 0.50000, AUC 0.80000 on day=2, before it trains, at 9.0k samples" in told


def test_commands_that_are_named_reach_the_same_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    assert options.same_gateway(options.DEFAULT_FOLDER, None) == ""
    assert options.same_gateway(Path("/a b"), "http://h:1") == " --folder '/a b' --url http://h:1"
    monkeypatch.setenv("STRETTO_STATE_FOLDER", "/a b")
    assert options.same_gateway(Path("/a b"), None) == ""
    assert "`stretto submit job.yaml --folder /x`" in shown(render.jobs([], options=" --folder /x"), 100)[0]


def test_one_core_is_a_core() -> None:
    assert (figures.cores(1.0), figures.cores(0.5), figures.cores(2)) == ("1 core", "0.5 cores", "2 cores")


def test_a_stalled_job_shows_no_rate_and_since_when() -> None:
    found = document(view(now=1e6))
    told = "\n".join(shown(watch.dashboard(found, 80, 24), 80))
    assert "0/s  stalled since" in told
    assert "39,157/s" not in told
    assert "left" not in told


def test_the_story_of_decisions_begins_with_the_jobs_name_state_and_plan() -> None:
    found = document(view())
    for width in (80, 120):
        lines = shown(explain.decisions(found, found["decisions"]), width)
        assert " ".join(" ".join(lines[:2]).split()).startswith(
            "a training v4: 4 × worker (0.5 cores, 1 GiB) 2 × ps (1.5 cores, 2 GiB)"
        )
        assert any("╭─ v4 measure" in line for line in lines)
        assert not any("…" in line for line in lines)


def test_a_decision_of_a_round_is_told_with_algorithm_value_bound_and_gap() -> None:
    found = document(view())
    assert [decision["round"] for decision in found["decisions"]] == [None, None, asdict(ROUND), None]
    lines = shown(explain.decisions(found, found["decisions"]), 160)
    told = " ".join("".join(line.strip("│") for line in lines).split())
    said = "hull over 12 jobs: gain 1990, at most 2000 is possible (gap 0.500%); this plan's part 190"
    assert told.count(said) == 1
    beside = "exact, adopted after 250 ms: 2.05% better; 1990 in place of 1950; at most 0.000% below the optimum"
    assert told.count(beside) == 1


@pytest.mark.parametrize(
    ("model", "sizes", "told"),
    [
        ({}, (0, 0), None),
        (
            {"transfer": "bfloat16"}, (0, 0),
            "transfer bfloat16; rounding moves the held-out loss by less than another seed does",
        ),
        (
            {"wire": {"dense_every": 4, "push_every": 8}}, (50, 100),
            "dense_every 4, push_every 8; 50 B a step in place of 100 B, 50% less; dense parameters are up to 3 steps "
            "older; parameter servers make one step with the gradients of 8 batches",
        ),
        (
            {"wire": {"pull": "bfloat16", "push": "int8", "dense_every": 2}}, (3 << 18, 5 << 19),
            "pull bfloat16, push int8, dense_every 2; 768 KiB a step in place of 2.5 MiB, 70% less; rounding moves the "
            "held-out loss by less than another seed does; dense parameters are up to 1 step older",
        ),
    ],
)  # fmt: skip
def test_what_types_of_the_wire_save_and_cost_is_told(
    model: dict[str, Any], sizes: tuple[int, int], told: str | None
) -> None:
    job, pod = submission("a", model={"entry": "m:M", **model}), replace(example_of(PodStarted), job="a", role="worker")
    projection = projected(job, replace(pod, pod="worker-0"), replace(pod, pod="worker-1"))
    report = replace(example_of(WorkerReported), job="a", pod="worker-1")
    projection.report(replace(report, step_bytes=sizes[0], step_bytes_exact=sizes[1]), 2.0)
    lines = shown(explain.decisions(document(projection.jobs["a"]), []), 240)
    assert [line.strip() for line in lines if line.startswith("wire")] == ([f"wire  {told}"] if told else [])


def test_reads_from_disks_are_told_as_they_are_and_as_they_are_predicted_now() -> None:
    said = replace(example_of(OomForecast), job="a")
    grow, move, spill = said.remedies
    read = replace(spill, reads_per_step=190.0, reads_interval=Interval(low=150.0, high=240.0), reads_measured=187.0)
    for ways, told in (
        (
            (grow, move, read),
            "a step read 187 of the fullest server; with 56%, as they are to be, 190 reads a step (150 to 240)",
        ),
        (said.remedies, None),
    ):
        projection = projected(*messages(1), replace(said, remedies=ways))
        text = " ".join(shown(explain.decisions(document(projection.jobs["a"]), []), 240))
        assert (told in text) if told else ("by what was read" not in text)


def test_rounded_rows_and_rows_without_room_are_told() -> None:
    started = replace(example_of(PodStarted), job="a", role="ps")
    projection = projected(*messages(1), replace(started, pod="ps-0"), replace(started, pod="ps-1"))
    report = replace(example_of(PsReported), job="a", categories=6000)
    projection.report(replace(report, pod="ps-0", warm_rows=1200), 2.0)
    projection.report(replace(report, pod="ps-1", warm_rows=800, spill_fault="give the server more memory"), 2.0)
    text = " ".join(shown(explain.decisions(document(projection.jobs["a"]), []), 240))
    assert "2,000 of 12,000 rows of the parameter servers are rounded to bfloat16 for lack of memory" in text
    assert "ps-1 has no room for its rows: give the server more memory" in text


def test_the_list_of_jobs_tells_a_stalled_one_and_whole_reasons() -> None:
    listed = [adapter_of(type(line)).dump_python(line, mode="json") for line in (summary(view(now=1e6), 1e6),)]
    reason = "the model cannot be built: no module 'a.b'; set model.path to the folder that holds it"
    listed.append({**listed[0], "name": "b", "status": "failed", "stalled_since_s": None, "reason": reason})
    for width in (80, 120):
        told = shown(render.jobs(listed, width), width)
        assert told[1].split()[:2] == ["a", "stalled"]
        assert told[1].split()[-(3 if width > 100 else 2) :][0] == "0/s"
        assert told[1].split()[-1] == "27.8", "what stands still costs on"
        assert told[3].startswith("a: no sample since ")
        assert f"b: {reason}" in " ".join(" ".join(told[4:]).split())
        assert not any("…" in line for line in told)


BOOKS: dict[str, Any] = {
    "samples_abandoned": 0,
    "samples_applied": 100,
    "samples_expected": 100,
    "samples_lost": 0,
    "samples_repeated": 0,
}


@pytest.mark.parametrize(
    ("metrics", "told"),
    [
        ([], "held-out loss 0.66000, AUC 0.50070"),
        ([("AUC", 0.50152)], "held-out loss 0.66000, AUC 0.50070; metrics of the model: AUC 0.50152"),
        ([("mae", 0.25), ("loss", 0.7)], "held-out loss 0.70000; metrics of the model: mae 0.25"),
    ],
)
def test_the_users_metrics_are_told_apart_from_those_of_all_jobs(metrics: list[tuple[str, float]], told: str) -> None:
    evaluation = {
        "samples": 10,
        "loss": 0.66,
        "auc": 0.5007,
        "metrics": [{"name": name, "value": value} for name, value in metrics],
    }
    assert render.books({"books": {**BOOKS, "evaluation": evaluation}})[-1] == told
    evaluation["loss_name"] = "log loss"
    if metrics == [("AUC", 0.50152)]:  # as the model of `stretto init` has it
        [shown] = re.findall("^held-out .*", (ROOT / "examples/tutorials/first-job.md").read_text(), re.MULTILINE)
        told_by = render.books({"books": {**BOOKS, "evaluation": evaluation}})[-1]
        assert re.fullmatch(re.escape(shown).replace("…", ".*"), told_by)
    evaluation["loss_name"] = "loss TwoTower.compute_loss"
    named = told.replace("loss", evaluation["loss_name"], 1)
    assert render.books({"books": {**BOOKS, "evaluation": evaluation}})[-1] == named


def test_a_start_that_fails_and_a_result_that_is_not_stored_are_told_wherever_the_job_is() -> None:
    full = CheckpointFailed(job="a", id="a-000002-final", reason="not stored: No space left on device")
    told_by = "final checkpoint not stored: No space left on device; mend the store"
    soon_by = "final checkpoint is not stored: No space left on device; mend the store before the next try, at"
    finishing = (completed("a", 2000), replace(full, next_try_at_s=1_794_998_600.0))
    folder = "gets no folder of its own: [Errno 30] Read-only file system"
    exited = PodExited(job="a", pod="ps-5", role="ps", reason="failed", exit_code=126, detail=f"a/ps-5 {folder}")
    for told, by in (
        ((*messages(2), full, finished("a")), told_by),
        ((*messages(2), *finishing), soon_by),
        ((*messages(2)[:2], exited), f"ps-5 failed: a/ps-5 {folder}"),
    ):
        projection = projected(*told)
        found = document(projection.jobs["a"])
        listed = [adapter_of(JobSummary).dump_python(summary(projection.jobs["a"], 5.0), mode="json")]
        for made in (
            watch.dashboard(found, 80, 40),
            explain.decisions(found, found["decisions"]),
            render.jobs(listed, 80),
            render.job_summary(found),
        ):
            assert by in " ".join(" ".join(line.strip("│ ") for line in shown(made, 80)).split())
    tried = render.gist("checkpoint-failed", {"id": full.id, "reason": full.reason, "next_try_at_s": 1_794_998_600.0})
    watched = {"program": {"command": ["report", "now"], "level": 0}, "dataset": {"samples": 1}}
    assert render.gist("job-submitted", {"spec": watched}) == "report now"
    assert render.gist("history-matched", {"matches": []}) == "no past job is like it"
    assert tried.startswith(f"{full.id}: {full.reason}; the next try is at ")


def test_a_job_whose_stored_events_cannot_be_read_says_that_it_is_incomplete() -> None:
    """Method: the event that decided its only plan is gone, so that its view has none."""
    broken = replace(projected(messages(2)[0], finished("a")).jobs["a"], unreadable=1)
    listed = [adapter_of(JobSummary).dump_python(summary(broken, 5.0), mode="json")]
    found = document(broken)
    for made in (watch.dashboard(found, 100, 40), explain.decisions(found, []), render.jobs(listed, 80)):
        told = " ".join(shown(made, 100))
        assert "1 stored event of a cannot be read: what is told of it is incomplete" in told
        assert "nothing was decided" not in told
    assert render.unreadable({"name": "a"}) == "", "by an older gateway"


@pytest.mark.parametrize(
    ("stages", "told"),
    [
        ((), "a cancelled; no checkpoint of it is stored: the 1,500 samples that it trained are lost"),
        (("cached",), "a cancelled; no checkpoint of it is stored: the 1,500 samples that it trained are lost"),
        (
            ("stored", "failed", "cached"),
            "a cancelled; its last stored checkpoint, a-1, has 1,000 samples: 500 samples trained since are lost; a "
            "job goes on from it with checkpoint.restore_from = file:///a-1",
        ),
    ],
)
def test_cancel_says_what_is_left_of_a_job_and_what_is_lost(stages: tuple[str, ...], told: str) -> None:
    made = [
        {"stage": stage, "checkpoint": {"id": f"a-{number}", "samples": 1000, "url": f"file:///a-{number}"}}
        for number, stage in enumerate(stages, 1)
    ]
    view = {"name": "a", "spec": {}, "progress": {"samples_done": 1500}, "checkpoints": made}
    assert render.cancelled(view) == told


KEPT = "the last checkpoint of its program stays in the store"


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ({"level": 0}, "a cancelled"),
        ({"level": 1}, "a cancelled after 1,500 samples"),
        (
            {"level": 1, "consistent": True},
            f"a cancelled after 1,500 samples; {KEPT}",
        ),
    ],
)
def test_cancel_calls_nothing_lost_that_a_program_may_have_saved(program: dict[str, Any], told: str) -> None:
    view = {"name": "a", "spec": {"program": program}, "progress": {"samples_done": 1500}, "checkpoints": []}
    assert render.cancelled(view) == told


def test_a_finished_job_that_gave_samples_up_is_told_from_one_that_trained_all_wherever_it_is_shown() -> None:
    reason = "column 'price' of part-0003 is missing"
    lost = GivenUp(shard=1, offset=0, epoch=0, start=0, length=1_200_000, reason=reason)
    books = CompletedBooks(fingerprint="0" * 16, given_up=(lost,))
    done = completed("a", 2_800_000, 1_200_000, books=books)
    projection = projected(*messages(2), done, finished("a", 2_800_000))
    found = document(projection.jobs["a"])
    listed = [adapter_of(JobSummary).dump_python(summary(projection.jobs["a"], 5.0), mode="json")]
    made = (
        watch.dashboard(found, 80, 40),
        explain.decisions(found, []),
        render.jobs(listed, 80),
        render.job_summary(found),
    )
    for one in made:
        told = " ".join(" ".join(line.strip("│ ") for line in shown(one, 80)).split())
        assert "finished, 30% given up" in told
        assert "1,200,000 of 4,000,000 samples" in told
        assert reason in told
    assert render.state(found) == "[yellow]finished, 30% given up[/yellow]"
    assert render.fault_of(found) == f"a finished, but {found['reason']}"
    again = {**found, "ending": "90 samples trained again", "complete": True}
    assert (render.state(again), render.fault_of(again)) == ("[green]finished, 90 samples trained again[/green]", "")


def test_a_pod_that_cannot_run_yet_is_shown_with_its_reason() -> None:
    pending = PodPending(job="a", pod="worker-9", role="worker", reason="no-room", detail="2 cores lack")
    projection = projected(*messages(2), pending)
    lines = shown(watch.dashboard(document(projection.jobs["a"]), 100, 40), 100)
    assert any("worker-9" in line and "pending: no-room" in line for line in lines)


def test_a_job_that_has_just_begun_has_no_rate_yet() -> None:
    found = document(view())
    new = {**found, "throughput": [], "progress": {**found["progress"], "samples_per_s": 0.0, "stalled_since_s": None}}
    told = "".join(shown(watch.dashboard(new, 100, 40), 100))
    assert "the first samples are trained; no rate yet" in told
    assert " 0/s" not in told
    listed = adapter_of(JobSummary).dump_python(summary(view(), 0.0), mode="json")
    (_, line) = shown(render.jobs([{**listed, "samples_per_s": 0.0, "stalled_since_s": None}], 100), 100)
    assert "…" in line.split()


def test_teams_are_listed_where_there_are_any() -> None:
    listed = [adapter_of(type(line)).dump_python(line, mode="json") for line in (summary(view(), 0.0),)]
    assert "team" not in "".join(shown(render.jobs(listed), 100))
    (first, second, *_) = shown(render.jobs([*listed, {**listed[0], "name": "b", "team": "ads"}]), 100)
    assert "team" in first
    assert "default" in second
    assert "disk" not in first


def test_the_list_of_jobs_tells_what_checkpoints_take_by_job_and_team() -> None:
    listed = [adapter_of(type(line)).dump_python(line, mode="json") for line in (summary(view(), 0.0),)]
    stored = [{**listed[0], "name": name, "team": team, "stored_bytes": size} for name, team, size in (
        ("a", "ads", 3 << 20), ("b", "ads", None), ("c", "feed", 5 << 20), ("d", "feed", 1 << 20),
    )]  # fmt: skip
    told = shown(render.jobs(stored), 100)
    assert [line.split()[-2:] for line in (told[1], told[3], told[4])] == [["3", "MiB"], ["5", "MiB"], ["1", "MiB"]]
    assert told[2].rstrip().endswith("–")
    assert told[5].strip() == "checkpoints in the store: team feed 6 MiB, team ads 3 MiB"
    alone = [{**one, "team": "default"} for one in stored]
    assert "disk" in shown(render.jobs(alone), 100)[0]
    assert "team" not in "".join(shown(render.jobs(alone), 100))


def test_a_job_that_failed_tells_the_whole_reason_and_the_pod_that_did() -> None:
    width = 80
    reason = "the model cannot be built: model.entry = a.b:C: no module 'a.b'; set model.path to its folder"
    found = document(view())
    found |= {"status": "failed", "reason": reason, "applied_version": 0}
    for pod, why, at_s in (("ps-0", "failed", 1.0), ("worker-0", "stopped", 2.0), ("worker-1", "stopped", 3.0)):
        found["pods"][pod] |= {"state": "exited", "exit_reason": why, "exited_at_s": at_s}
    lines = shown(watch.dashboard(found, width, 24), width)
    assert len(lines) < 24
    told = " ".join(" ".join(line.strip("│ ") for line in lines).split())
    assert reason in told
    assert "ps-0 failed" in told
    assert "being applied" not in told


def test_a_job_that_is_over_tells_all_its_pods_as_far_as_there_is_room() -> None:
    found = document(view(workers=4))
    found["status"] = "finished"
    for number, pod in enumerate(found["pods"].values()):
        pod |= {"state": "exited", "exit_reason": "stopped", "exited_at_s": float(number)}
    told = "\n".join(shown(watch.dashboard(found, 80), 80))
    assert all(f"{pod} " in told for pod in ("ps-0", "ps-1", "worker-0", "worker-1", "worker-2", "worker-3"))
    lines = shown(watch.dashboard(found, 80, 20), 80)
    assert len(lines) < 20
    assert any("before" in line for line in lines)


@pytest.mark.parametrize(
    ("step_s", "said"), [(0.05, "20 ms of it at the same time"), (0.08, "the other 10 ms is in none of these")]
)
def test_the_parts_of_a_step_add_up(step_s: float, said: str) -> None:
    times = {"emb_s": 0.01, "grad_s": 0.03, "upd_s": 0.01, "sync_s": 0.02}
    measured = {
        "times": times, "step_time_s": step_s, "settled": True, "plan_version": 1, "throughput": 1.0, "categories": 1,
    }  # fmt: skip
    told = " ".join("".join(shown(explain._measured(measured), 200)).split())
    parts = "T_emb 10 ms, T_grad 30 ms, T_upd 10 ms, T_sync 20 ms"
    assert f"step {1000 * step_s:.0f} ms: {parts}, together 70 ms, {said}" in told


def test_every_event_says_something_in_a_few_words() -> None:
    events = [channel for channel in wire.CHANNELS if channel.kind == "evt"]
    assert len(events) > 20
    silent = [each.name for each in events if not render.gist(each.name, document_of(example_of(each.message)))]
    assert silent == []


def test_a_job_that_is_over_is_shown_once_also_where_no_terminal_is(installed: Installed, tmp_path: Path) -> None:
    name, file = write_spec(tmp_path)
    installed.stretto("submit", file)
    installed.stretto("cancel", name)
    assert installed.stretto("watch", name).stdout.count(f"{name}  cancelled") == 1


def test_a_loss_says_how_its_columns_came_back() -> None:
    each: dict[str, Any] = {
        "time_s": 0.0, "pod": "ps-0", "version": 2, "checkpoint": "", "columns": 0, "size_bytes": 0,
        "restored_at_s": None, "samples_recomputed": 0, "refused": "", "returned_at_s": None,
    }  # fmt: skip
    assert explain.loss(each).endswith("all workers went on. Its columns are not back yet")
    back = {**each, "checkpoint": "a-3", "columns": 38, "size_bytes": 2**20, "restored_at_s": 2.0}
    assert "Its 38 columns (1 MiB) were back from a-3 after 2.0 s" in explain.loss(back)
    whole = {**each, "checkpoint": "a-3", "returned_at_s": 5.0}
    assert "until all parameters returned to a-3 at" in explain.loss(whole)
    assert explain.loss(whole).endswith("because another server was lost before its columns were back")
