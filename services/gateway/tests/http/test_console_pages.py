"""The console in a real browser, against a real gateway: what a person sees, and what the API says."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stretto_core.actuator.ending import given_up
from stretto_installation.server import free_port
from stretto_messages.arbiter import PlanDecided
from stretto_messages.base import Message, example_of
from stretto_messages.books import CompletedBooks, GivenUp, Shortfall
from stretto_messages.gateway import CallerRole
from stretto_messages.oom import OomForecast
from stretto_messages.planner import CandidatesComputed
from stretto_messages.pods import PsReported
from stretto_messages.values import Evaluation

from tests.live_bus import completed, finished

from ..gateway_process import Running, installed, start_gateway
from ..job_events import MIB, decided, plan, profile, started, submitted
from ..token_holders import given
from .test_console import CONSOLE

browser_of = pytest.importorskip("playwright.sync_api", reason="needs playwright: `make console-test` installs it")
CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium, Debian's package chromium"),
    pytest.mark.xdist_group("console"),
]
JOB = "a"
"""the job of the examples' helpers"""
ROLES: tuple[CallerRole, ...] = ("viewer", "submitter")
CONTENT = "main :is(table, section, article, form, p:not([role=status]))"
PAGES = (
    "jobs", "submit", f"submit?from={JOB}", "alerts/StrettoStreamFull", "events", "activity",
    f"compare?a={JOB}&b={JOB}",
    *(f"jobs/{JOB}/{tab}" for tab in (
        "overview", "decisions", "memory", "pods", "data", "checkpoints", "events", "trace", "books", "spec"
    )),
)  # fmt: skip
AXE = CONSOLE / "node_modules" / "axe-core" / "axe.min.js"
GRAVE = ("serious", "critical")
MANY, FIRST_ROW_S = 2_000, 1.0
FILTERED_S = 0.5
LINE_PX = 40
"""Measured: 0.46 s to the first row, 0.11 s for the filter with the way of the browser's library."""
DAY_WINDOWS, DAY_DECISIONS = 1_024, 200
DAY_S, DAY_BYTES = 1.5, 400_000
"""Bounds of the first view of a job that has trained for a day: time until it is drawn, and bytes on the way."""
TOKEN_READ_S = 10.0
"""The gateway reads its file of tokens again every second."""
TABS = 7
"""More than the connections that a browser opens to a host over HTTP/1.1."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    settings = {"STRETTO_GATEWAY_PORT": str(free_port())}
    with installed(tmp_path_factory.mktemp("console"), settings) as running:
        running.publish(
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
    page.on("console", lambda message: _is_fault(message) and faults.append(message.text + message.location["url"]))
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
    page.locator("section[aria-label=Throughput]").get_by_role("button", name="Table").click()
    rows = page.locator("section[aria-label=Throughput] tbody tr")
    rows.first.wait_for()
    before = rows.count()
    running.publish(profile(2, example_of(PlanDecided).plan, 4321.0))
    page.get_by_text("4.32k/s").first.wait_for(timeout=3000)
    assert rows.count() == before + 1


def test_the_plans_and_the_reasons_are_those_of_the_api(chromium: Any, running: Running) -> None:
    page = signed_in(chromium, running)
    page.goto(f"{running.url}/console/jobs/{JOB}")
    page.locator("[data-candidate]").first.wait_for()
    last = api(running, f"/jobs/{JOB}")["decisions"][-1]
    shown = {point.get_attribute("data-candidate") for point in page.locator("[data-candidate]").all()}
    assert shown == {candidate["id"] for candidate in last["front"]["candidates"]}
    why = page.locator("[aria-label='Why this size']")
    assert last["in_words"] in why.inner_text()
    why.get_by_text("How this was computed").click()
    text = why.inner_text()
    assert all(reason in text for reason in last["reasons"])
    page.get_by_text("considered and not chosen").first.click()
    why = page.locator("[data-why-not]").all_inner_texts()
    assert why == [alternative["why_not"] for alternative in explained(running)["alternatives"]]


def explained(running: Running) -> Any:
    """The last decision as `stretto explain` tells it."""
    command = [sys.executable, "-m", "stretto_cli.main", "explain", JOB, "-o", "json", "--url", running.url]
    environment = {**os.environ, "STRETTO_CLI_TOKEN": running.token}
    told = subprocess.run(command, capture_output=True, check=True, timeout=60, env=environment).stdout
    return json.loads(told)["decisions"][-1]


def test_a_plan_that_was_not_chosen_says_why(chromium: Any, running: Running) -> None:
    """Goal: numbers and reason of each point, by mouse and by keys. Method: each candidate; compare with the API."""
    last = api(running, f"/jobs/{JOB}")["decisions"][-1]
    reasons = {json.dumps(one["plan"]): one["why_not"] for one in explained(running)["alternatives"]}
    page = signed_in(chromium, running)
    page.goto(f"{running.url}/console/jobs/{JOB}/decisions")
    detail = page.locator("[data-selected]")
    for candidate in last["front"]["candidates"]:
        page.locator(f"[data-candidate='{candidate['id']}']").click()
        text = detail.inner_text()
        assert f"{candidate['plan']['workers']} worker" in text
        assert money(candidate["cost_per_hour"]) in text
        if candidate["plan"] == last["plan"]:
            assert "It was chosen." in text
        elif (why := reasons.get(json.dumps(candidate["plan"]))) is not None:
            assert detail.locator("[data-why]").inner_text() == why
    seen = {detail.get_attribute("data-selected")}
    for _ in range(20):
        page.keyboard.press("ArrowRight")
        seen.add(detail.get_attribute("data-selected"))
    assert len(seen) == page.locator("[data-plan]").count() > 2
    page.get_by_role("button", name="Table of the plans").click()
    rows = {row.get_attribute("data-row"): row.inner_text() for row in page.locator("tr[data-row]").all()}
    assert rows.keys() == {candidate["id"] for candidate in last["front"]["candidates"]}
    for candidate in last["front"]["candidates"]:
        assert money(candidate["cost_per_hour"]) in rows[candidate["id"]]


def test_the_page_on_memory_tells_rows_as_trained_rounded_and_on_the_disk(chromium: Any, running: Running) -> None:
    rows = {"categories": 600_000, "warm_rows": 200_000, "cold_rows": 300_000, "row_bytes": 160.0}
    sizes = {"warm_bytes": 14 * MIB, "log_bytes": 50 * MIB}
    running.publish(
        replace(example_of(OomForecast), job=JOB), replace(example_of(PsReported), job=JOB, pod="ps-0", **rows, **sizes)
    )
    page = signed_in(chromium, running)
    page.goto(f"{running.url}/console/jobs/{JOB}/memory")
    page.get_by_role("columnheader", name="rounded rows").wait_for()
    heads, cells = (page.locator(f"table >> nth=0 >> {each}").all_inner_texts() for each in ("th", "td"))
    told = list(zip(heads, cells, strict=True))[-6:]
    assert told == [
        ("rows in memory", "100k"), ("their size", "15.3 MiB"), ("rounded rows", "200k"),
        ("their size", "14.0 MiB"), ("rows on disk", "300k"), ("file", "50.0 MiB"),
    ]  # fmt: skip


def money(per_hour: float) -> str:
    return f"{per_hour:.3g}/h"


def test_a_decision_shows_the_job_as_it_was_at_that_moment(chromium: Any, running: Running) -> None:
    page = signed_in(chromium, running)
    page.goto(f"{running.url}/console/jobs/{JOB}/decisions")
    page.locator("#v1").get_by_role("link", name="the job at this moment").click()
    moment = page.locator("[aria-label=Moment]")
    moment.get_by_text("As it was at v1 initial").wait_for()
    assert page.locator("article").count() == 1
    assert page.get_by_role("button", name=re.compile("Scale|Cancel")).count() == 0
    moment.get_by_role("button", name="Compare with what is shown now").click()
    moment.get_by_text("the same, byte for byte").wait_for()
    moment.get_by_role("button", name="v2 ▶").click()
    page.locator("article#v2").wait_for()
    seq = api(running, f"/jobs/{JOB}")["decisions"][1]["seq"]
    assert page.url.endswith(f"/decisions?at={seq}")
    moment.get_by_role("button", name="Now", exact=True).click()
    moment.wait_for(state="detached")
    assert "at=" not in page.url


def test_a_gateway_that_dies_is_told_and_no_event_is_missed(chromium: Any, running: Running) -> None:
    page = signed_in(chromium, running)
    page.goto(f"{running.url}/console/events")
    page.locator("tr[data-seq]").first.wait_for()
    running.process.send_signal(signal.SIGKILL)
    running.process.wait(60)
    page.get_by_text("reconnecting").wait_for(timeout=8000)
    running.publish(*(profile(2, example_of(PlanDecided).plan, 5000.0 + number) for number in range(5)))
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
    page.get_by_text("What it trained after its last stored checkpoint is lost.").wait_for()
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


def test_a_finished_job_that_lacks_something_is_told_from_a_whole_one_in_the_list_and_on_its_pages(
    chromium: Any, running: Running
) -> None:
    lost = GivenUp(shard=7, offset=0, epoch=0, start=700, length=4, reason="column 'price' of part-3 is missing")
    books = CompletedBooks(fingerprint="0" * 16, given_up=(lost,))
    done = completed("half", 996, 4, books=books)
    again = Shortfall(kind="trained-again", words="64 samples trained again", detail="ps-1 was lost", lacking=False)
    found = given_up(done)
    assert found is not None
    quality = Evaluation(samples=50, loss=5.5449, auc=0.5, loss_name="log loss")
    running.publish(submitted("half"), done, finished("half", 996, shortfalls=(found, again), evaluation=quality))
    running.publish(submitted("whole"), completed("whole", 1000), finished("whole", 1000))
    page = signed_in(chromium, running)
    page.goto(f"{running.url}/console/jobs")
    rows = page.locator("tbody tr")
    half = rows.filter(has_text="half").first
    half.get_by_text("! finished, 0.4% given up, 64 samples trained again").wait_for()
    assert "column 'price' of part-3 is missing" in half.inner_text()
    assert rows.filter(has_text="whole").first.locator("td").nth(1).inner_text() == "✓ finished"
    half.get_by_role("link", name="half").click()
    page.get_by_label("How it ended").get_by_text("samples 700 to 703 in epoch 0").wait_for()
    figures = page.get_by_label("In figures").inner_text()
    assert "log loss 5.5449\nAUC 0.5000\non 50 samples" in figures
    assert page.title() == "half · overview · Stretto"
    page.get_by_role("link", name="data", exact=True).click()
    page.get_by_label("Given up").get_by_text("column 'price' of part-3 is missing").wait_for()


def test_a_clone_of_a_job_is_a_file_that_is_accepted(chromium: Any, running: Running) -> None:
    page = signed_in(chromium, running)
    page.goto(f"{running.url}/console/jobs/{JOB}")
    page.get_by_role("link", name="Clone").click()
    area = page.locator("#job-file")
    browser_of.expect(area).to_have_value(re.compile("a-2"))
    assert "batch_size" not in area.input_value(), "what has its default is left out"
    page.get_by_role("button", name="Submit", exact=True).click()
    page.get_by_role("heading", name="a-2").wait_for()
    specs = [api(running, f"/jobs/{name}")["spec"] | {"name": ""} for name in (JOB, "a-2")]
    assert specs[0] == specs[1]


def test_two_jobs_are_compared_by_what_differs(chromium: Any, running: Running) -> None:
    other = submitted("other")
    changed = other.spec.model_copy(update={"priority": 3.0})
    running.publish(replace(other, spec=changed))
    page = signed_in(chromium, running)
    page.goto(f"{running.url}/console/compare?a={JOB}&b=other")
    rows = page.locator("table[aria-label=Specifications] tbody tr")
    rows.first.wait_for()
    assert rows.all_inner_texts() == ["priority\t1\t3"]


def test_activity_has_who_asked_for_what(chromium: Any, running: Running) -> None:
    token = given(running.folder, "ada", "submitter")
    with running.http() as http:
        headers = {"Authorization": f"Bearer {token}"}
        deadline_s = time.monotonic() + TOKEN_READ_S
        while http.get("/me", headers=headers).status_code == 401:
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        assert http.post(f"/jobs/{JOB}/plan", json={"workers": 2}, headers=headers).status_code == 403
        assert http.post(f"/jobs/{JOB}/plan", json={"workers": 2}).status_code == 202
    page = signed_in(chromium, running)
    page.goto(f"{running.url}/console/activity")
    newest = page.locator("tbody tr").nth(0)
    newest.wait_for()
    assert "admin" in newest.inner_text()
    assert "done 202" in newest.inner_text()
    refused = page.locator("tbody tr").nth(1).inner_text()
    assert "ada" in refused
    assert "refused 403" in refused


def test_the_alerts_page_says_what_fires_and_what_to_do(chromium: Any, running: Running) -> None:
    page = signed_in(chromium, running)
    page.goto(f"{running.url}/console/alerts")
    page.locator("[data-firing]").first.wait_for()
    firing = {one["alert"] for one in api(running, "/alerts")["firing"]}
    assert {one.get_attribute("data-firing") for one in page.locator("[data-firing]").all()} == firing
    page.get_by_role("link", name="StrettoServiceGone").first.click()
    text = page.locator("section[aria-label=Runbook]").inner_text()
    assert "No replica runs" in text
    assert "**" not in text


def test_a_trace_is_folded_by_service_and_everything_in_it_is_reached(chromium: Any, running: Running) -> None:
    asked = {"name": "traced", "model": {"entry": "models:Clicks"}, "dataset": {"samples": 1000}}
    with running.http() as http:
        assert http.post("/jobs", json=asked).status_code == 201
    trace = api(running, "/jobs/traced/trace")
    names = [one["event"] for one in trace["events"]] + [one["name"] for one in trace["spans"]]
    assert names
    page = signed_in(chromium, running)
    page.goto(f"{running.url}/console/jobs/{JOB}/trace")
    page.get_by_text("Nothing was traced yet").wait_for()
    page.goto(f"{running.url}/console/jobs/traced/trace")
    page.get_by_text(f"{len(names)} of {len(names)} over").wait_for()
    groups = page.locator("details")
    assert groups.count() == len({name.removeprefix("stretto-") for name in services_of(trace)})
    shown: list[str] = []
    for group in groups.all():
        if group.get_attribute("open") is None:
            group.locator("summary").click()
        while group.get_by_role("button").count():
            group.get_by_role("button").click()
        shown += [one.split(" ")[0] for one in group.locator(".name").all_inner_texts()]
    assert sorted(shown) == sorted(name.split(" ")[0] for name in names)
    page.get_by_role("searchbox").fill("job-submitted")
    page.get_by_text(f"{sum('job-submitted' in name for name in names)} of {len(names)} over").wait_for()


def services_of(trace: Any) -> set[str]:
    return {one["service"] or "unknown" for one in [*trace["events"], *trace["spans"]]}


def test_the_console_works_below_a_path_of_a_proxy(chromium: Any, running: Running) -> None:
    """Method: the browser's own proxy, which strips `/stretto`; what is asked for beside it is an escape."""
    context, escaped = chromium.new_context(), list[str]()
    below = f"{running.url}/stretto/"

    def proxied(route: Any) -> None:
        address = route.request.url
        if not address.startswith(below):
            escaped.append(address)
        if not address.startswith(below) or "/events?" in address:  # a stream never ends
            route.abort()
        else:
            route.fulfill(response=route.fetch(url=address.replace(below, f"{running.url}/")))

    context.route("**/*", proxied)
    page = context.new_page()
    page.goto(f"{below}console/jobs/{JOB}/decisions#token={running.token}")
    page.locator("article#v1").wait_for()
    page.get_by_role("link", name="Jobs", exact=True).click()
    page.get_by_role("link", name=JOB, exact=True).click()
    page.get_by_role("heading", name=JOB, exact=True).wait_for()
    assert page.url == f"{below}console/jobs/{JOB}"
    assert page.get_by_role("link", name="Documentation").get_attribute("href") == "/stretto/console/docs/"
    assert escaped == []


def test_more_tabs_than_connections_all_show_what_happens(chromium: Any, running: Running) -> None:
    """Method: tabs that are hidden as the browser hides them; each is looked at in turn and must show a new point."""
    hide = "Object.defineProperty(document, 'hidden', {get: () => window.isBehind === true})"
    context = chromium.new_context()
    context.add_init_script(hide)
    tabs: list[Any] = []

    def look_at(tab: Any) -> None:
        for one in tabs:
            one.evaluate(
                "isBehind => { window.isBehind = isBehind; document.dispatchEvent(new Event('visibilitychange')) }",
                one is not tab,
            )

    for _ in range(TABS):
        tabs.append(context.new_page())
        look_at(tabs[-1])
        tabs[-1].goto(f"{running.url}/console/#token={running.token}")
        tabs[-1].get_by_text("admin (admin)").wait_for()
        tabs[-1].goto(f"{running.url}/console/jobs/{JOB}")
        look_at(tabs[-1])
        tabs[-1].get_by_role("button", name="Table of Throughput").click()
    for number, tab in enumerate(tabs):
        look_at(tab)
        running.publish(profile(2, example_of(PlanDecided).plan, 7001.0 + 10 * number))
        tab.get_by_text(f"{7001 + 10 * number:,}"[:1] + f".{(7001 + 10 * number) // 10 % 100:02}k/s").first.wait_for(
            timeout=5000
        )


def test_by_keys_alone_a_job_is_cancelled(chromium: Any, running: Running) -> None:
    running.publish(submitted("by-keys"))
    page = signed_in(chromium, running)
    page.goto(f"{running.url}/console/jobs?q=by-keys")
    page.get_by_role("link", name="by-keys").wait_for()

    def press_until(text: str) -> None:
        for _ in range(60):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.textContent.trim()") == text:
                return
        raise AssertionError(f"Tab never reaches {text}")

    press_until("by-keys")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="by-keys").wait_for()
    press_until("Cancel")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    while page.evaluate("document.activeElement.tagName") != "INPUT":
        page.keyboard.press("Tab")
    page.keyboard.type("by-keys")
    press_until("Cancel the job")
    page.keyboard.press("Enter")
    page.get_by_text("cancelled").first.wait_for()


@pytest.mark.skipif(not AXE.exists(), reason="needs axe-core, a package of Node: `make console` installs it")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_shuts_anybody_out(chromium: Any, running: Running, scheme: str) -> None:
    page = signed_in(chromium, running, color_scheme=scheme)
    found: list[str] = []
    for path in ("cluster", *PAGES):
        page.goto(f"{running.url}/console/{path}")
        page.get_by_text("admin (admin)").wait_for()
        page.locator(CONTENT).first.wait_for()
        page.evaluate(AXE.read_text())
        told = [one for one in page.evaluate("axe.run()")["violations"] if one["impact"] in GRAVE]
        found += [f"{path}: {one['id']} {one['nodes'][0]['html'][:150]}" for one in told]
    assert found == []


def test_thousands_of_jobs_are_listed_at_once(chromium: Any, tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as thread, contextlib.ExitStack() as closing:
        running = thread.submit(closing.enter_context, installed(tmp_path)).result()
        running.publish(*(submitted(f"job-{number:04}") for number in range(MANY)))
        page = signed_in(chromium, running)
        took_s: list[float] = []
        for _ in range(3):
            begin_s = time.monotonic()
            page.goto(f"{running.url}/console/jobs")
            page.locator("tbody tr").first.wait_for()
            took_s.append(time.monotonic() - begin_s)
        page.get_by_text(f"100 of {MANY}").wait_for()
        begin_s = time.monotonic()
        page.get_by_role("searchbox").fill("job-0042")
        page.get_by_text("1 of 1").wait_for()
        filtered_s = time.monotonic() - begin_s
        page.get_by_role("searchbox").fill("")
        page.get_by_text(f"of {MANY}").wait_for()
        assert page.locator("tbody tr").first.bounding_box()["height"] < LINE_PX
        page.get_by_role("button", name="job").click()
        while page.locator("tbody tr").count() < MANY:
            page.keyboard.press("End")
            page.wait_for_timeout(50)
        names = page.locator("tbody tr td:first-child").all_inner_texts()
        assert names == [f"job-{number:04}" for number in range(MANY)]
        thread.submit(closing.close).result()
    assert min(took_s) <= FIRST_ROW_S
    assert filtered_s <= FILTERED_S


def test_a_job_of_a_day_opens_at_once(chromium: Any, tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as thread, contextlib.ExitStack() as closing:
        running = thread.submit(closing.enter_context, installed(tmp_path)).result()
        running.publish(*a_day())
        page = signed_in(chromium, running)
        took_s: list[float] = []
        sizes: list[int] = []
        answers: list[Any] = []
        page.on("response", lambda answer: answers.append(answer))
        for _ in range(3):
            answers.clear()
            begin_s = time.monotonic()
            page.goto(f"{running.url}/console/jobs/{JOB}")
            page.locator("section[aria-label=Throughput] canvas").first.wait_for()
            page.locator("[data-candidate]").first.wait_for()
            took_s.append(time.monotonic() - begin_s)
            plain = [each.request for each in answers if "text/event-stream" not in each.headers["content-type"]]
            sizes.append(sum(each.sizes()["responseBodySize"] for each in plain))
        assert len(api(running, f"/jobs/{JOB}")["decisions"]) == DAY_DECISIONS
        page.context.close()
        thread.submit(closing.close).result()
    assert min(took_s) <= DAY_S
    assert max(sizes) <= DAY_BYTES


def a_day() -> Iterator[Message]:
    """The events of a job that was resized all day long."""
    yield submitted(JOB)
    yield started("worker-0")
    yield started("ps-0")
    considered, decision = replace(example_of(CandidatesComputed), job=JOB), replace(example_of(PlanDecided), job=JOB)
    for version in range(1, DAY_DECISIONS + 1):
        yield considered
        yield replace(decision, version=version)
        for window in range(DAY_WINDOWS // DAY_DECISIONS + 1):
            yield profile(version, decision.plan, 1000.0 + 10 * version + window)
