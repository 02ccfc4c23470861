"""`stretto simulate data-workers`: the document that it promises, one line for whatever is wrong, and the page."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from asking import assert_refused, command, titles_on
from stretto_cli.charts import LEFT, TICK_WIDTH, WIDTH, distribution

HEADER = "submit_s,steps,gpus,step_s_ideal,cpus_per_gpu\n"
TRACE = HEADER + "".join(f"{60 * n},{400 + n % 7 * 300},{2 ** (n % 4)},0.5,{(6, 27, 64)[n % 3]}\n" for n in range(20))
simulated, answer = command("simulate data-workers -")


def test_the_document_is_as_promised() -> None:
    found = answer(TRACE, "--policy", "tuned")
    assert list(found) == ["jobs", "mean_completion_s", "mean_queue_s", "gpu_utilisation", "cpu_utilisation"]
    assert found["jobs"] == 20
    assert 0 < found["mean_queue_s"] < found["mean_completion_s"]
    assert 0 < found["gpu_utilisation"] <= 1
    assert 0 < found["cpu_utilisation"] <= 1


def test_the_default_policy_shares_and_says_the_same_again() -> None:
    shared = answer(TRACE)
    assert shared == answer(TRACE, "--policy", "srtf")
    assert shared["mean_completion_s"] < answer(TRACE, "--policy", "fixed")["mean_completion_s"]
    assert shared["mean_queue_s"] == 0


def test_a_trace_of_no_jobs_is_one_to_programs_and_a_mistake_to_people() -> None:
    assert_refused(simulated(HEADER), "one job at least")
    found = answer(HEADER)
    assert found == {
        "jobs": 0, "mean_completion_s": 0, "mean_queue_s": 0, "gpu_utilisation": 0, "cpu_utilisation": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("trace", "options", "named"),
    [
        (HEADER + "0,10,1,nan,4\n", (), "step_s_ideal = nan"),
        (HEADER + "0,10,1,0,4\n", (), "step_s_ideal"),
        (HEADER + "0,10.5,1,1,4\n", (), "steps = 10.5"),
        (HEADER + "0,0,1,1,4\n", (), "steps"),
        (HEADER + "0,10,65,1,4\n", (), "gpus is 65"),
        (HEADER + "0,10,0,1,4\n", (), "gpus"),
        (HEADER + "0,10,1,1,-4\n", (), "cpus_per_gpu"),
        (HEADER + "-1,10,1,1,4\n", (), "submit_s"),
        (HEADER + "1e300,10,1,1,4\n", (), "submit_s is 1e+300"),
        (HEADER + "0,10,1,1e300,4\n", (), "steps is 10"),
        (HEADER + "0,10,1,1,1e300\n", ("--policy", "fixed"), "line 2: cpus_per_gpu is 1e+300"),
        (HEADER + "0,10,1,1,1e-9\n", (), "cpus_per_gpu is 1e-09"),
        (HEADER + "0,10,1,1\n", (), "5 values"),
        ("submit_s,steps\n0,10\n", (), "gpus"),
        ("", (), "submit_s"),
        (TRACE, ("--policy", "best"), "'best'"),
    ],
)
def test_whatever_is_wrong_is_one_line(trace: str, options: tuple[str, ...], named: str) -> None:
    for form in ((), ("-o", "json")):
        assert_refused(simulated(trace, *options, *form), named)


def test_people_get_a_table() -> None:
    assert "GPUs allocated" in simulated(TRACE).stdout


@pytest.mark.parametrize("policy", ["srtf", "tuned"])
def test_the_report_is_one_page_that_needs_nothing_else(tmp_path: Path, policy: str) -> None:
    answer(TRACE, "--policy", policy, "--report", str(tmp_path / "new" / "folder"))
    page = tmp_path / "new" / "folder" / "data-workers.html"
    titles = titles_on(page, ["completion times", "GPUs and CPUs", "data workers by job"], 20)
    assert any("queue" in title for title in titles) == (policy == "tuned")
    answer(HEADER, "--report", str(tmp_path))
    assert "<svg" not in (tmp_path / "data-workers.html").read_text()


@pytest.mark.parametrize("took_s", [[1000.0], [700.0, 3500.0], [0.5, 1e7], [1.0] * 3])
def test_durations_of_any_spread_are_drawn_to_their_end_with_times_to_read(took_s: list[float]) -> None:
    drawn = ElementTree.fromstring(distribution("times", took_s))
    (line,) = (each for each in drawn.iter() if each.get("class") == "speed line")
    places = [float(place) for place in (line.get("points") or "").replace(",", " ").split()]
    assert (places[0], places[-2]) == pytest.approx((LEFT, LEFT + WIDTH), abs=0.1)
    times = [each for each in drawn.iter() if each.tag.endswith("text") and "tick" in (each.get("class") or "")]
    assert times
    across = sorted(float(each.get("x") or 0) for each in times)
    assert all(right - left >= TICK_WIDTH - 0.1 for left, right in pairwise(across))
