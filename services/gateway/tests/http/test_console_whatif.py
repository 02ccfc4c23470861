"""Scaling a job from its page: a prediction by the planner's model, a request with its name, or why it is refused."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from stretto_core.model.throughput import Configuration, FittedModel
from stretto_messages.actuator import PlanApplied
from stretto_messages.base import example_of
from stretto_messages.fitter import ModelFitted
from stretto_messages.values import Plan

from ..deciding_cluster import WAIT_S, Cluster
from .test_console_pages import CHROMIUM, browser_of, signed_in

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium, Debian's package chromium"),
    pytest.mark.xdist_group("console"),
]


@pytest.fixture(scope="module")
def chromium(cluster: Cluster) -> Iterator[Any]:
    """A browser, begun after the cluster: its library holds a loop in this thread."""
    with browser_of.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def fitted_job(cluster: Cluster) -> tuple[str, Plan, ModelFitted]:
    """Submit a job, and tell its model; returns both with its plan."""
    job = cluster.submit(resources={"workers": {"count": {"min": 1, "max": 8}}})
    plan = Plan(**cluster.until(f"/jobs/{job}", lambda told: told["plan"] is not None)["plan"])
    model = replace(example_of(ModelFitted), job=job, plan_version=1)
    cluster.publish(PlanApplied(job=job, version=1, plan=plan, took_s=1.0), model)
    deadline = time.monotonic() + WAIT_S
    with cluster.running.http() as http:
        while (answer := http.get(f"/jobs/{job}/whatif")).status_code != 200:
            assert time.monotonic() < deadline, answer.text
    return job, plan, model


def test_a_prediction_is_the_models_and_a_request_has_its_name(chromium: Any, cluster: Cluster) -> None:
    """Method: ask for four workers and two servers; compute the same from the model; send it; read Activity."""
    job, plan, model = fitted_job(cluster)
    wanted = replace(plan, workers=4, ps=2)
    (known,) = FittedModel.of(model).predicted([Configuration.of(wanted, model.batch_size)])
    page = signed_in(chromium, cluster.running)
    page.goto(f"{cluster.running.url}/console/jobs/{job}")
    page.get_by_role("button", name="Scale").click()
    page.get_by_label("workers").fill("4")
    page.get_by_label("servers").fill("2")
    prediction = page.locator("[data-prediction]")
    expected = thousands(4 * model.batch_size / known.step_time_s)
    browser_of.expect(prediction).to_contain_text(f"predicted {expected}")
    browser_of.expect(prediction).to_contain_text("90 % between")
    browser_of.expect(prediction).to_contain_text("fits: it needs")
    browser_of.expect(prediction).to_contain_text("an extrapolation: 4 workers asked, 2 measured, 2 times the most")
    page.get_by_role("button", name="Ask for it").click()
    page.get_by_label("workers").wait_for(state="detached")
    page.goto(f"{cluster.running.url}/console/activity")
    row = page.locator("tbody tr", has_text=job).first.inner_text()
    assert "admin" in row
    assert "done 202" in row
    page.goto(f"{cluster.running.url}/console/jobs/{job}/decisions")
    page.get_by_text("asked by admin").wait_for()


def test_a_request_beyond_the_limits_says_why_it_is_refused(chromium: Any, cluster: Cluster) -> None:
    job, _, _ = fitted_job(cluster)
    page = signed_in(chromium, cluster.running)
    page.goto(f"{cluster.running.url}/console/jobs/{job}")
    page.get_by_role("button", name="Scale").click()
    page.get_by_label("workers").fill("99")
    browser_of.expect(page.locator("[data-prediction]")).to_contain_text("within the job's limits: 8 workers")
    page.get_by_role("button", name="Ask for it").click()
    refusal = page.get_by_role("alert").inner_text()
    assert "workers" in refusal
    assert "99" in refusal
    assert "8" in refusal


def thousands(per_s: float) -> str:
    """Return a rate as the page writes it."""
    assert 1000 <= per_s < 999_500
    digits = 2 if per_s < 9995 else 1 if per_s < 99_950 else 0
    return f"{per_s / 1000:.{digits}f}k/s"
