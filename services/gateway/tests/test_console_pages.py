"""The console in a real browser, against a real gateway: what a person sees, and what the API says."""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from stretto_messages.arbiter import PlanDecided
from stretto_messages.base import Message, example_of
from stretto_messages.planner import CandidatesComputed
from stretto_runtime.access.tokens import Role
from stretto_runtime.server import free_port

from .conftest import Running, installed, start_gateway
from .test_callers import given
from .test_projection import decided, plan, profile, started, submitted

browser_of = pytest.importorskip("playwright.sync_api", reason="needs playwright: `make console-test` installs it")
CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium, Debian's package chromium"),
    pytest.mark.xdist_group("console"),
]
JOB = "a"
"""the job of the examples' helpers"""
ROLES: tuple[Role, ...] = ("viewer", "submitter")
CONTENT = "main :is(table, section, article, form, p:not([role=status]))"
PAGES = ("jobs", "submit", "events", "activity", *(f"jobs/{JOB}/{tab}" for tab in (
    "overview", "decisions", "memory", "pods", "data", "events", "trace", "books", "spec"
)))  # fmt: skip


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    settings = {"STRETTO_GATEWAY_PORT": str(free_port())}
    with installed(tmp_path_factory.mktemp("console"), settings) as running:
        publish(
            running,
            submitted(JOB),
            decided(1, "initial", plan(), None),
            started("worker-0"),
            started("ps-0"),
            *(profile(1, plan(), 1000.0 + number) for number in range(5)),
            replace(example_of(CandidatesComputed), job=JOB),
            replace(example_of(PlanDecided), job=JOB, version=2),
        )
        yield running


@pytest.fixture(scope="module")
def chromium(running: Running) -> Iterator[Any]:
    """A browser. Its library holds a loop in this thread, so what begins another comes first."""
    with browser_of.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def publish(running: Running, *messages: Message) -> None:
    async def send() -> None:
        client = await running.operator()
        for message in messages:
            await client.publish(message)
        await client.close()

    with ThreadPoolExecutor(1) as thread:  # the browser's library holds a loop in this one
        thread.submit(asyncio.run, send()).result()


def signed_in(chromium: Any, running: Running, token: str = "", caller: str = "admin (admin)", **options: Any) -> Any:
    page = chromium.new_context(**options).new_page()
    page.goto(f"{running.url}/console/#token={token or running.token}")
    page.get_by_text(caller).wait_for()
    return page


def _is_fault(message: Any) -> bool:
    """Return whether the browser complains: of all but the audit, which asks services that do not run here."""
    return message.type in ("error", "warning") and not message.location["url"].endswith("/audit")


def api(running: Running, path: str) -> Any:
    with running.http() as http:
        return http.get(path).json()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_loads_nothing_from_elsewhere_and_breaks_no_rule(
    chromium: Any, running: Running, scheme: str
) -> None:
    page = signed_in(chromium, running, color_scheme=scheme)
    faults: list[str] = []
    page.on("request", lambda request: request.url.startswith(running.url) or faults.append(request.url))
    page.on("console", lambda message: _is_fault(message) and faults.append(message.text))
    page.on("pageerror", lambda error: faults.append(str(error)))
    for path in PAGES:
        page.goto(f"{running.url}/console/{path}")
        page.get_by_text("admin (admin)").wait_for()
        page.locator(CONTENT).first.wait_for()
    assert faults == []


def test_a_narrow_screen_scrolls_no_page_sideways(chromium: Any, running: Running) -> None:
    page = signed_in(chromium, running, viewport={"width": 390, "height": 800})
    for path in PAGES:
        page.goto(f"{running.url}/console/{path}")
        page.locator(CONTENT).first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path


def test_a_wrong_token_is_refused_with_the_way_to_a_right_one(chromium: Any, running: Running) -> None:
    page = chromium.new_context().new_page()
    page.goto(f"{running.url}/console/jobs/{JOB}")
    page.get_by_label("Token").fill("wrong")
    page.get_by_role("button", name="Sign in").click()
    page.get_by_text("The token is not accepted").wait_for()
    assert "stretto token create" in page.locator("main").inner_text()
    page.get_by_label("Token").fill(running.token)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("heading", name=JOB, exact=True).wait_for()  # the address was kept


def test_a_profile_becomes_a_point_and_a_decision_a_line_without_reloading(chromium: Any, running: Running) -> None:
    page = signed_in(chromium, running)
    page.goto(f"{running.url}/console/jobs/{JOB}")
    page.get_by_role("button", name="Table").click()
    rows = page.locator("section[aria-label=Throughput] tbody tr")
    rows.first.wait_for()
    before = rows.count()
    publish(running, profile(2, example_of(PlanDecided).plan, 4321.0))
    page.get_by_text("4.32k/s").first.wait_for(timeout=3000)
    assert rows.count() == before + 1


def test_the_plans_and_the_reasons_are_those_of_the_api(chromium: Any, running: Running) -> None:
    page = signed_in(chromium, running)
    page.goto(f"{running.url}/console/jobs/{JOB}")
    page.locator("[data-candidate]").first.wait_for()
    last = api(running, f"/jobs/{JOB}")["decisions"][-1]
    shown = {point.get_attribute("data-candidate") for point in page.locator("[data-candidate]").all()}
    assert shown == {candidate["id"] for candidate in last["front"]["candidates"]}
    text = page.locator("[aria-label='Why this size']").inner_text()
    assert all(reason in text for reason in last["reasons"])
    page.get_by_text("plans were considered and not chosen").first.click()
    why = page.locator("[data-why-not]").all_inner_texts()
    assert why == [alternative["why_not"] for alternative in last["alternatives"]]


def test_a_gateway_that_dies_is_told_and_no_event_is_missed(chromium: Any, running: Running) -> None:
    page = signed_in(chromium, running)
    page.goto(f"{running.url}/console/events")
    page.locator("tr[data-seq]").first.wait_for()
    running.process.send_signal(signal.SIGKILL)
    running.process.wait(10)
    page.get_by_text("reconnecting").wait_for(timeout=8000)
    publish(running, *(profile(2, example_of(PlanDecided).plan, 5000.0 + number) for number in range(5)))
    (running.folder / "run" / "gateway.json").unlink()
    running.process, running.url = start_gateway(running.server, running.folder, running.settings)
    page.get_by_text("reconnecting").wait_for(state="detached", timeout=15000)
    newest = [event["seq"] for event in api(running, "/events/newest?limit=50")["events"]]
    page.locator(f"tr[data-seq='{newest[0]}']").wait_for()
    listed = [int(row.get_attribute("data-seq")) for row in page.locator("tr[data-seq]").all()]
    assert listed[: len(newest)] == newest


def test_a_viewer_is_offered_no_change_and_a_submitter_none_of_others_jobs(chromium: Any, running: Running) -> None:
    tokens = {role: given(running.folder, f"one-{role}", role) for role in ROLES}
    for role, token in tokens.items():
        page = signed_in(chromium, running, token, f"one-{role} ({role})")
        page.goto(f"{running.url}/console/jobs/{JOB}")
        page.get_by_role("heading", name=JOB, exact=True).wait_for()
        assert page.get_by_role("button", name=re.compile("Scale|Cancel")).count() == 0
        assert page.get_by_role("link", name="Submit").count() == (role == "submitter")
        assert page.get_by_role("link", name="Activity").count() == 0


def test_a_job_is_cancelled_only_by_its_name(chromium: Any, running: Running) -> None:
    page = signed_in(chromium, running)
    page.goto(f"{running.url}/console/jobs/{JOB}")
    page.get_by_role("button", name="Cancel").click()
    button = page.get_by_role("button", name="Cancel the job")
    assert button.is_disabled()
    page.get_by_label("to cancel the job for good").fill(JOB)
    assert button.is_enabled()


def test_what_is_wrong_in_a_job_file_is_told_at_its_line_before_it_is_submitted(
    chromium: Any, running: Running
) -> None:
    page = signed_in(chromium, running)
    page.goto(f"{running.url}/console/submit")
    area = page.locator("#job-file")
    area.fill("name: Not A Name\nmodel:\n  entry: models:Clicks\ndataset: {samples: -1, batch_size: 0}\n")
    page.get_by_role("button", name="Check").click()
    page.locator("[data-finding]").first.wait_for()
    fields = {finding.get_attribute("data-finding") for finding in page.locator("[data-finding]").all()}
    assert fields == {"name", "dataset.samples", "dataset.batch_size"}
    area.fill("name: from-the-page\nmodel:\n  entry: models:Clicks\ndataset: {samples: 1000, batch_size: 100}\n")
    page.get_by_role("button", name="Submit", exact=True).click()
    page.get_by_role("heading", name="from-the-page").wait_for()
    assert api(running, "/jobs/from-the-page")["submitted_by"] == "admin"
