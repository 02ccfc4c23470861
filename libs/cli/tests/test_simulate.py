"""`stretto simulate`: the document that it promises, the same for a seed, and one line for whatever is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from asking import assert_refused, command, titles_on

HEADER = "submit_s,demand_node_hours,max_nodes\n"
TRACE = HEADER + "".join(f"{60 * n},{0.2 + n % 7 * 0.4:.1f},{2 ** (n % 5)}\n" for n in range(24))
HARSH = ("--eta-noise", "0.1", "--bug-rate", "0.15", "--termination-rate", "0.1", "--scaling-delay-s", "15")
simulated, answer = command("simulate allocation - --nodes 8")


def test_the_document_is_as_promised() -> None:
    found = answer(TRACE, "--allocator", "marginal-doubling")
    assert list(found) == [
        *("jobs", "mean_completion_s", "p90_completion_s", "mean_queue_s", "utilisation", "changes_per_job"),
        "decide_s",
    ]
    assert list(found["decide_s"]) == ["mean", "max"]
    assert found["jobs"] == 24
    assert 0 < found["mean_queue_s"] < found["mean_completion_s"] < found["p90_completion_s"]
    assert 0 < found["utilisation"] <= 1
    assert 0 < found["decide_s"]["mean"] <= found["decide_s"]["max"]


def test_the_same_seed_is_the_same_fate() -> None:
    def without_time(seed: str) -> dict[str, Any]:
        return {**answer(TRACE, "--allocator", "greedy", *HARSH, "--seed", seed), "decide_s": None}

    assert without_time("1") == without_time("1") != without_time("2")


def test_a_trace_of_no_jobs_is_one_to_programs_and_a_mistake_to_people() -> None:
    assert_refused(simulated(HEADER), "one job at least")
    found = answer(HEADER)
    assert found == {
        "jobs": 0,
        "mean_completion_s": 0,
        "p90_completion_s": 0,
        "mean_queue_s": 0,
        "utilisation": 0,
        "changes_per_job": 0,
        "decide_s": {"mean": 0, "max": 0},
    }


@pytest.mark.parametrize(
    ("trace", "options", "named"),
    [
        (HEADER + "0,nan,4\n", (), "demand_node_hours = nan"),
        (HEADER + "0,0,4\n", (), "demand_node_hours"),
        (HEADER + "-1,2,4\n", (), "submit_s"),
        (HEADER + "0,2,1.5\n", (), "max_nodes = 1.5"),
        (HEADER + "0,2,0\n", (), "max_nodes"),
        (HEADER + "0,2\n", (), "3 values"),
        ("submit_s,max_nodes\n0,2\n", (), "demand_node_hours"),
        ("", (), "submit_s"),
        (TRACE, ("--allocator", "best"), "'best'"),
        (TRACE, ("--nodes", "0"), "--nodes is 0"),
        (TRACE, ("--bug-rate", "0.8", "--termination-rate", "0.3"), "--bug-rate 0.8 and --termination-rate 0.3"),
        (TRACE, ("--eta-noise", "nan"), "--eta-noise is nan"),
        (TRACE, ("--scaling-delay-s", "-1"), "--scaling-delay-s is -1"),
        (TRACE, ("--scaling-delay-s", "1e300"), "--scaling-delay-s is 1e+300"),
        (TRACE, ("--seed", "-3"), "--seed is -3"),
    ],
)
def test_whatever_is_wrong_is_one_line(trace: str, options: tuple[str, ...], named: str) -> None:
    for form in ((), ("-o", "json")):
        assert_refused(simulated(trace, *options, *form), named)


def test_people_get_a_table() -> None:
    assert "utilisation" in simulated(TRACE, "--allocator", "greedy").stdout


def test_the_report_is_one_page_that_needs_nothing_else(tmp_path: Path) -> None:
    answer(TRACE, "--allocator", "marginal-doubling", "--report", str(tmp_path / "new" / "folder"))
    page = tmp_path / "new" / "folder" / "allocation.html"
    titles_on(page, ["completion times", "nodes in use", "nodes by job"], 24)
    answer(HEADER, "--report", str(tmp_path))
    assert "<svg" not in (tmp_path / "allocation.html").read_text()


def test_a_report_that_cannot_be_written_names_its_option(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = simulated(TRACE, "--allocator", "greedy", "--report", str(tmp_path / "file" / "below"))
    assert result.exit_code == 1
    assert "choose a --report that is not below a file" in result.stderr
    assert "--folder" not in result.stderr
