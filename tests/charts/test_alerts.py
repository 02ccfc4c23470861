"""Alerts ask for what is shown, have a page each, and fire when they should and at no other time."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from stretto_gateway.read_model.summaries import START_BOUNDS_S
from stretto_wire.contract.registry import PARTITIONS, SERVICES

from tests.charts.rendering import CHART, EVERYTHING, of_kind, rendered
from tests.charts.test_dashboards import is_answered, shown

ALERTS = CHART / "alerts.yaml"
RULES: list[dict[str, Any]] = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
NAMES = [rule["alert"] for rule in RULES]
RUNBOOK = CHART.parent / "runbook"
CASES = Path(__file__).with_name("alerts_cases.yaml")


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_an_alert_asks_for_what_is_shown_and_says_who_is_woken(rule: dict[str, Any]) -> None:
    is_answered(rule["expr"])
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert rule["annotations"]["summary"]


def test_each_alert_has_a_page_of_cause_look_and_act_and_no_page_is_left_over() -> None:
    assert sorted(path.stem for path in RUNBOOK.glob("*.md")) == sorted([*NAMES, "README"])
    for name in NAMES:
        assert re.findall(r"^\*\*(\w+)\.\*\*", (RUNBOOK / f"{name}.md").read_text(), re.M) == ["Cause", "Look", "Act"]


@pytest.mark.parametrize("name", NAMES)
def test_a_page_names_metrics_that_are_shown_and_lines_that_are_logged(name: str) -> None:
    text = (RUNBOOK / f"{name}.md").read_text()
    assert set(re.findall(r"`(stretto_[a-z_]+)`", text)) <= set(shown())
    quoted = re.findall(r"[Ll]og[^.`]{0,12} `([^`]+)`", " ".join(text.split()))
    assert [line for line in quoted if line not in logged()] == []


@cache
def logged() -> str:
    """Return the source of everything that logs."""
    folders = (CHART.parents[1] / "libs/runtime/stretto_runtime", *CHART.parents[1].glob("services/*/stretto_*"))
    return "\n".join(path.read_text() for folder in folders for path in sorted(folder.rglob("*.py")))


def test_each_objective_asks_for_what_is_shown() -> None:
    rows = re.findall(r"^\|[^|]*\|[^|]*\| (.*) \|$", (RUNBOOK / "README.md").read_text(), re.M)[2:]
    assert len(rows) == 4
    for row in rows:
        if not row.startswith("no metric: "):
            is_answered(row.strip("`"))
    bounds = {f"{bound_s:g}" for bound_s in START_BOUNDS_S}
    assert set(re.findall(r'start_seconds_bucket{le="(\d+)"}', rows[2])) <= bounds


def test_partitions_are_those_of_the_wire() -> None:
    text = ALERTS.read_text()
    assert f"expr: {PARTITIONS} - sum" in text
    assert f"of {PARTITIONS} partitions" in text
    assert f"4 * {PARTITIONS}" in text


def test_the_chart_makes_one_rule_object_of_them() -> None:
    (made,) = of_kind(rendered(EVERYTHING), "PrometheusRule")
    assert made["spec"] == yaml.safe_load(ALERTS.read_text())


def test_each_alert_fires_where_it_should_and_no_other_with_it(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool: Debian's package prometheus has it")
    cases: dict[str, dict[str, Any]] = yaml.safe_load(CASES.read_text())
    assert {name.partition(" ")[0] for name in cases} == {"quiet", *NAMES}
    tests = [_test(name, case) for name, case in cases.items()]
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump({"rule_files": [str(ALERTS)], "tests": tests}))
    command = [promtool, "test", "rules", str(tmp_path / "tests.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _test(name: str, case: dict[str, Any]) -> dict[str, Any]:
    """Make a test for promtool: the series of a sound installation, but for those of the case, and all that fires."""
    series = {each["series"]: each for each in [*_sound(), *case["series"]]}
    firing = {name.partition(" ")[0], *case.get("also", [])} - {"quiet"}
    samples = [{"labels": f'{{alertname="{each}"}}', "value": 1} for each in sorted(firing)]
    asked = {"expr": 'group by (alertname) (ALERTS{alertstate="firing"})', "eval_time": "40m", "exp_samples": samples}
    return {"name": name, "interval": "1m", "input_series": list(series.values()), "promql_expr_test": [asked]}


def _sound() -> list[dict[str, str]]:
    owners = sorted(set(SERVICES) - {"gateway", "forwarder"})
    return [
        *({"series": f'stretto_partitions{{service="{name}"}}', "values": f"{PARTITIONS}+0x60"} for name in owners),
        {"series": "stretto_gateway_ready", "values": "1+0x60"},
        {"series": 'stretto_certificate_end_seconds{service="oom"}', "values": "+Inf+0x60"},
    ]
