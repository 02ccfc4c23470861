"""`stretto simulate cluster`: the document, the same for a seed, both kinds of traces, one line for what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from asking import assert_refused, command, titles_on
from stretto_cli.main import app
from typer.testing import CliRunner

ARRIVALS = "submit_s,duration_s,gpus\n"
TRACE = ARRIVALS + "".join(f"{300 * n},{600 + n % 5 * 500},{2 ** (n % 3)}\n" for n in range(10))
SHORT = "".join(TRACE.splitlines(keepends=True)[:5])
FULL = (
    "submit_s,samples,alpha_grad,alpha_upd,alpha_sync,alpha_emb,constant,workers,ps,worker_cpu,ps_cpu,"
    "worker_memory_gib,ps_memory_gib,embedding_gib,growth\n"
)
JOB = "0,1024000,0.0003125,0.04,0.005,0.0000390625,0.01,4,2,4,4,2,8"
HARSH = ("--pod-failures-per-day", "2", "--straggler-rate", "0.3", "--hot-rate", "0.3", "--bug-rate", "0.1")
simulated, answer = command("simulate cluster - --nodes 8")


def test_the_document_is_as_promised() -> None:
    found = answer(TRACE, "--policy", "static", *HARSH)
    assert list(found) == [
        *("jobs", "completion_rate", "mean_completion_s", "median_completion_s", "p90_completion_s", "mean_queue_s"),
        *("cpu_utilisation", "memory_utilisation", "allocated", "changes_per_job", "failures"),
    ]
    assert list(found["failures"]) == ["out of memory", "pod failure", "scheduling", "own fault"]
    assert found["jobs"] == 10
    assert found["completion_rate"] == pytest.approx(1 - sum(found["failures"].values()) / 10)
    assert 0 < found["median_completion_s"] < found["p90_completion_s"]
    shares = [*found["cpu_utilisation"].values(), *found["memory_utilisation"].values(), *found["allocated"].values()]
    assert all(0 < share < 1 for share in shares)


def test_the_default_is_stretto_and_the_same_seed_the_same_course() -> None:
    first = answer(SHORT, *HARSH, "--seed", "1")
    assert first == answer(SHORT, *HARSH, "--seed", "1", "--policy", "stretto")
    assert first != answer(SHORT, *HARSH, "--seed", "2")
    assert first["changes_per_job"] > 0


def test_a_job_that_says_all_takes_what_it_says() -> None:
    """0.0003125 x 512 / 4 + 0.04 x 4 / 8 + 0.005 x 2 + 0.0000390625 x 256 + 0.01 = 0.09 s; 500 steps of 4 workers."""
    found = answer(FULL + JOB + ",0,0.7\n", "--policy", "static", "--pod-start-s", "30")
    assert found["mean_completion_s"] == pytest.approx(30 + 500 * 0.09)
    assert found["cpu_utilisation"]["workers"] == pytest.approx(45 / 75 * 0.04 / 0.09)
    full = answer(FULL + JOB + ",40,1\n", "--policy", "static")
    assert full["failures"] == {"out of memory": 1, "pod failure": 0, "scheduling": 0, "own fault": 0}


def test_a_trace_of_no_jobs_is_one_to_programs_and_a_mistake_to_people() -> None:
    for header in (ARRIVALS, FULL):
        assert_refused(simulated(header), "one job at least")
        found = answer(header)
        assert (found["jobs"], found["completion_rate"], found["mean_completion_s"]) == (0, None, None)
        assert set(found["failures"].values()) == {0}


def test_the_services_decide_by_the_algorithms_that_are_named() -> None:
    """Memory that grows ever slower: along the line more is asked for, and a change takes time."""
    usual, lines = (
        answer(FULL + JOB.replace("1024000", "40960000") + ",40,0.5\n", *options)
        for options in ((), ("--oom", "linear"))
    )
    assert usual["jobs"] == lines["jobs"] == 1
    assert usual != lines


def test_no_job_that_completed_is_no_completion_time(tmp_path: Path) -> None:
    """Nothing took 0 seconds: also the page says that there is nothing to say."""
    options = ("--bug-rate", "1", "--report", str(tmp_path))
    found = answer(TRACE, *options)
    assert found["completion_rate"] == 0
    assert [found[f"{figure}_completion_s"] for figure in ("mean", "median", "p90")] == [None] * 3
    assert "0 ms" not in (tmp_path / "cluster.html").read_text().partition("<details")[0]
    assert "–" in simulated(TRACE, *options).stdout


@pytest.mark.parametrize(
    ("trace", "options", "named"),
    [
        (ARRIVALS + "0,nan,4\n", (), "duration_s = nan"),
        (ARRIVALS + "0,0,4\n", (), "line 2.duration_s"),
        (ARRIVALS + "0,60,0\n", (), "line 2.gpus"),
        (ARRIVALS + "-1,60,1\n", (), "submit_s"),
        (ARRIVALS + "1e12,60,1\n", (), "submit_s is 1000000000000.0"),
        (ARRIVALS + "0,1e300,1\n", (), "duration_s is 1e+300"),
        (FULL + JOB.replace("0.0003125", "1e300") + ",1,1\n", (), "samples is 1.024e+06"),
        (FULL + JOB + ",1e300,1\n", (), "embedding_gib = 1e+300"),
        (TRACE, ("--nodes", "10000000000"), "--nodes is 10000000000"),
        (ARRIVALS + "0,60\n", (), "3 values"),
        (ARRIVALS + "0,60,0\n", (), "leave out jobs that had none"),
        ("submit_s,gpus\n0,2\n", (), "duration_s is missing"),
        ("duration_s,gpus\n60,2\n", (), "submit_s"),
        ("", (), "submit_s"),
        ("submit_s,sample\n0,2\n", (), "samples"),
        (FULL + JOB + ",1,0\n", (), "growth"),
        (FULL + JOB + ",1,1.5\n", (), "growth is 1.5"),
        (FULL + JOB.replace(",4,2,4,", ",0,2,4,") + ",1,1\n", (), "line 2.workers"),
        (TRACE, ("--policy", "best"), "'best'"),
        (TRACE, ("--oom", "oracle"), "'oracle'"),
        (TRACE, ("--objective", "speed"), "efficiency, gain, completion, cost"),
        (TRACE, ("--policy", "static", "--objective", "cost"), "--policy stretto beside it"),
        (TRACE, ("--policy", "static", "--detect", "threshold"), "--policy stretto beside it"),
        (TRACE, ("--nodes", "0"), "--nodes is 0"),
        (TRACE, ("--node-memory-gib", "nan"), "--node-memory-gib = NaN"),
        (TRACE, ("--hot-rate", "1.2"), "--hot-rate is 1.2"),
        (TRACE, ("--pod-start-s", "inf"), "--pod-start-s is inf"),
        (TRACE, ("--seed", "-3"), "--seed is -3"),
    ],
)
def test_whatever_is_wrong_is_one_line(trace: str, options: tuple[str, ...], named: str) -> None:
    for form in ((), ("-o", "json")):
        assert_refused(simulated(trace, *options, *form), named)


def test_people_get_a_table_and_help_names_the_columns() -> None:
    assert "completed" in simulated(TRACE, "--policy", "es").stdout
    told = CliRunner().invoke(app, ["simulate", "cluster", "--help"]).stdout
    assert all(name in told for name in ("submit_s", "duration_s", "gpus", "alpha_grad", "embedding_gib"))


def test_the_report_is_one_page_that_needs_nothing_else(tmp_path: Path) -> None:
    answer(TRACE, "--policy", "static", *HARSH, "--report", str(tmp_path / "new" / "folder"))
    labels = ["completion times", "cores over time", "memory over time", "failures by cause", "cores by job"]
    titles_on(tmp_path / "new" / "folder" / "cluster.html", labels, 10)
    answer(ARRIVALS, "--report", str(tmp_path))
    assert "<svg" not in (tmp_path / "cluster.html").read_text()


def test_the_report_on_cost_compares_with_what_users_stated_and_names_what_no_plan_goes_below() -> None:
    found = answer(SHORT, "--policy", "tuned", "--report", "cost")["cost"]
    assert list(found) == ["policy", "as_stated", "saved", "least_per_million_samples", "gap"]
    ours, stated = found["policy"], found["as_stated"]
    assert found["least_per_million_samples"] < ours["per_million_samples"] < stated["per_million_samples"]
    assert found["saved"] == pytest.approx(1 - ours["per_million_samples"] / stated["per_million_samples"])
    dearer = answer(
        SHORT, "--policy", "tuned", "--report", "cost", "--cpu-core-hour", "0.08", "--memory-gib-hour", "0.01"
    )["cost"]
    assert dearer["policy"]["cost"] == pytest.approx(2 * ours["cost"])
    assert dearer["gap"] == pytest.approx(found["gap"], abs=1e-6)
    assert "as stated" in simulated(SHORT, "--policy", "tuned", "--report", "cost").output
    assert_refused(
        simulated(SHORT, "--policy", "tuned", "--report", "cost", "--cpu-core-hour", "-1"), "--cpu-core-hour"
    )
    assert "cost" not in answer(ARRIVALS, "--report", "cost"), "nothing was trained"
