"""Cards of notebooks: static, escaped, and complete."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
from stretto_client.answers.facts import JobFacts
from stretto_client.answers.reading import promoted
from stretto_client.answers.records import Decision, Forecast, Pareto
from stretto_messages.arbiter import PlanDecided
from stretto_messages.base import example_of
from stretto_messages.oom import OomForecast
from stretto_messages.planner import CandidatesComputed
from stretto_messages.profiler import ProfileMeasured
from stretto_wire import JobSpec
from stretto_wire.rest import views

EVIL = "<script>alert(1)</script>&\"'"


class Checker(HTMLParser):
    """Checks that every tag is closed, and collects tags, attributes and titles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.texts: list[str] = []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def decision() -> Decision:
    found = example_of(PlanDecided)
    named = {name: getattr(found, name) for name in ("version", "kind", "plan", "previous", "throughput",
             "throughput_interval", "throughput_before", "cost_per_hour", "alternatives", "algorithm", "free_cpu_cores",
             "free_memory_bytes")}  # fmt: skip
    return Decision(
        **named, time_s=10.0, seq=1, reasons=(EVIL,), measured=None, fitted=None, front=front(), proposal=None,
        warm_start=None, forecast=None,
    )  # fmt: skip


def front() -> views.Front:
    found = example_of(CandidatesComputed)
    return views.Front(1.0, EVIL, 1_048_576, 100.0, found.candidates)


def forecast() -> Forecast:
    found = example_of(OomForecast)
    return Forecast(
        1.0, found.ps, found.samples_done, found.samples_total, found.horizon_s, found.recommended_ps_memory_bytes,
        found.limit_ps_memory_bytes, found.action, EVIL,
    )  # fmt: skip


def job(**changes: Any) -> JobFacts:
    spec = JobSpec.parse({"name": "x", "model": {"entry": "m:M"}, "dataset": {"samples": 1000}})
    measured = example_of(ProfileMeasured)
    points = [
        views.ThroughputPoint(float(t), 1, 2, 1, measured.throughput + t, measured.step_time_s, True) for t in range(20)
    ]
    view = views.JobView(
        "x", "training", spec, 0.0, "ada", reason=EVIL, decisions=[decision()], throughput=points, front=front(),
        forecast=forecast(), progress=views.Progress(samples_done=250, samples_total=1000),
    )  # fmt: skip
    return JobFacts(replace(view, **changes))


SHOWN: dict[str, Any] = {
    "job": job(),
    "job before anything happened": job(decisions=[], throughput=[], front=None, forecast=None, reason=""),
    "decision": decision(),
    "front": promoted(Pareto, front()),
    "empty front": Pareto(1.0, "a", 0, 0.0, ()),
    "forecast": forecast(),
    "forecast of nothing": replace(forecast(), ps=()),
}


@pytest.mark.parametrize("name", SHOWN)
def test_a_card_is_static_escaped_and_well_formed(name: str) -> None:
    html = SHOWN[name]._repr_html_()
    found = Checker(html)
    assert not found.tags & {"script", "img", "link", "iframe", "a", "object"}
    assert not any(
        attribute.startswith("on") or attribute in ("href", "src", "style") for attribute in found.attributes
    )
    assert not re.search(r"https?:|url\(|@import", html)
    assert "<script>alert" not in html
    assert "currentColor" in html
    assert "prefers-color-scheme: dark" in html


def test_hostile_text_is_still_shown() -> None:
    for name in ("job", "decision", "front", "forecast"):
        assert any("alert(1)" in text for text in Checker(SHOWN[name]._repr_html_()).texts), name


def test_the_front_has_every_candidate_and_marks_the_chosen_plan() -> None:
    made = promoted(Pareto, front())
    drawn = made.drawing(made.candidates[0].plan)
    assert drawn.count("<circle") == len(made.candidates)
    assert drawn.count("chosen:") == sum(one.plan == made.candidates[0].plan for one in made.candidates)
    for candidate in made.candidates:
        assert candidate.id in drawn


def test_a_job_shows_its_share_plan_changes_and_the_predicted_interval() -> None:
    html = job()._repr_html_()
    assert "x: training, 25.0% of 1,000 samples" in html
    assert html.count('class="change-line"') == 1
    assert 'class="band"' in html
    assert 'class="speed line"' in html


def test_an_outcome_that_can_no_longer_be_measured_is_said_to_be_final() -> None:
    first, second = (replace(decision(), version=version) for version in (1, 2))
    applied = replace(second, outcome=views.Outcome(applied_at_s=20.0))
    measured = replace(applied, outcome=views.Outcome(applied_at_s=20.0, throughput=100.0))
    for status, decided, said in (
        ("training", [first, second], ["not measured yet", "not measured yet"]),
        ("training", [first, applied], ["never measured: its plan was not applied", "not measured yet"]),
        ("finished", [first, applied], ["never measured", "never measured: its plan ended before a settled window"]),
        ("failed", [first, measured], ["never measured", "100/s"]),
    ):
        found = job(status=status, decisions=decided).decisions
        assert all(words in one.why() for words, one in zip(said, found, strict=True)), (status, said)


def test_the_forecast_has_a_lane_for_each_server() -> None:
    found = forecast()
    html = found._repr_html_()
    assert html.count('class="limit"') == len(found.ps)
    assert html.count('class="pool"') == len(found.ps)
