"""`stretto whatif`: the documents that it promises, and one line for whatever is wrong in a file."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from asking import assert_refused, changed, command
from stretto_cli.main import app
from typer.testing import CliRunner

MODEL: dict[str, Any] = {
    "coefficients": {"alpha_grad": 5e-4, "alpha_upd": 0.01, "alpha_sync": 2e-3, "alpha_emb": 1e-6, "constant": 0.01},
    "batch_size": 512,
    "param_mb": 200,
    "bandwidth_mb_s": 1000,
    "embedding_dim": 16,
    "grid": {"workers": [1, 8], "ps": [1, 4], "worker_cpu": [1, 4], "ps_cpu": [2, 2]},
    "cpu_core_price": 0.04,
}
LAYER = {
    "compute_s": [0.4, 0.02],
    "parallel_fraction": [0.99, 0.9],
    "transfer_s": [0.01, 0.01],
    "transfer_parallel_fraction": [0.9, 0.9],
}
LAYERS: dict[str, Any] = {
    "profile_batch": 512,
    "throughput_limit": 20000,
    "samples": 1e9,
    "types": [{"name": "cpu", "price_per_hour": 0.04}, {"name": "v100", "price_per_hour": 2.0, "limit": 8}],
    "layers": [{"name": f"l{i}", "kind": "fc", "input_bytes": 1, "weight_bytes": 2, **LAYER} for i in range(3)],
}
INSTANCE: dict[str, Any] = {
    "nodes": 6,
    "steps": 5,
    "step_hours": 0.0833,
    "sizes": [1, 2, 4, 8, 16],
    "doubling_efficiency": 0.8,
    "jobs": [
        {"id": "j1", "demand_node_hours": 12.5, "min_nodes": 1, "max_nodes": 16},
        {"id": "j2", "demand_node_hours": 0.3, "min_nodes": 1, "max_nodes": 4, "current_nodes": 2, "trained_s": 60},
    ],
}
FILES = {"pareto": MODEL, "place": LAYERS, "allocate": INSTANCE}


def whatif(name: str, document: Any, *options: str) -> Any:
    return command(f"whatif {name} -")[0](document, *options)


def answer(name: str, document: Any, *options: str) -> dict[str, Any]:
    return command(f"whatif {name} -")[1](document, *options)


def test_algorithms_are_listed_default_first() -> None:
    found = json.loads(CliRunner().invoke(app, ["whatif", "algorithms", "-o", "json"]).stdout)
    assert {name: found[name][0] for name in ("allocate", "place", "pareto")} == {
        "allocate": "certified",
        "place": "exact",
        "pareto": "exact",
    }
    assert {"milp", "milp-big-m", "greedy", "greedy-once"} < set(found["allocate"])
    assert {"brute-force", "greedy", "cpu-only", "gpu-only", "heuristic"} < set(found["place"])


def test_the_front_is_what_no_plan_of_the_grid_beats() -> None:
    found = answer("pareto", MODEL)
    points = found["points"]
    assert set(found) == {"points", "solve_s"}
    assert set(points[0]) == {"workers", "ps", "worker_cpu", "ps_cpu", "cost_per_hour", "throughput"}
    every: list[tuple[float, float]] = []
    c = MODEL["coefficients"]
    for w in range(1, 9):
        for p in range(1, 5):
            for lw in range(1, 5):
                step_s = (
                    c["alpha_grad"] * 512 / lw
                    + c["alpha_upd"] * w / (p * 2)
                    + c["alpha_sync"] * (200 / p) / (1000 / w)
                    + c["alpha_emb"] * 512 * 16 / p
                    + c["constant"]
                )
                every.append(((w * lw + p * 2) * 0.04, w * 512 / step_s))

    def beaten(cost: float, speed: float) -> bool:
        """By a plan that is as good in both, and better in one."""
        near, fast = 1e-12, speed * 1e-12
        return any(c <= cost + near and s >= speed - fast and (c < cost - near or s > speed + fast) for c, s in every)

    front = [(cost, speed) for cost, speed in every if not beaten(cost, speed)]
    assert len(points) == len({(round(cost, 9), round(speed, 3)) for cost, speed in front})
    for point, (cost, speed) in zip(points, sorted(set(front)), strict=True):
        assert math.isclose(point["cost_per_hour"], cost)
        assert math.isclose(point["throughput"], speed, rel_tol=1e-9)


def test_a_placement_is_told_with_its_proof() -> None:
    found = answer("place", LAYERS)
    assert found["feasible"]
    assert found["optimal"]
    assert found["bound"] == found["cost"]
    assert found["throughput"] >= 20000
    assert set(found["stages"][0]) == {"type", "first_layer", "last_layer", "units"}
    assert answer("place", LAYERS, "--algorithm", "cpu-only")["bound"] is None
    too_fast = answer("place", changed(LAYERS, "throughput_limit", 1e12))
    assert not too_fast["feasible"]
    assert "samples/s" in too_fast["reason"]


def test_an_allocation_is_told_with_its_gap() -> None:
    found = answer("allocate", INSTANCE)
    assert set(found) == {"feasible", "nodes", "plan", "objective", "bound", "gap", "solve_s"}
    assert found["nodes"] == {job: plan[0] for job, plan in found["plan"].items()}
    assert 0 <= found["gap"] < 1
    greedy = answer("allocate", INSTANCE, "--algorithm", "greedy")
    assert greedy["objective"] <= found["bound"]
    crowded = answer("allocate", changed(INSTANCE, "nodes", 1))
    assert crowded["feasible"] is False
    assert "smallest sizes take 2 nodes" in crowded["reason"]
    empty = answer("allocate", changed(INSTANCE, "jobs", []))
    assert (empty["feasible"], empty["objective"], empty["gap"]) == (True, 0, 0)


def test_the_page_of_a_front_marks_the_plan_to_choose(tmp_path: Path) -> None:
    points = answer("pareto", MODEL, "--report", str(tmp_path))["points"]
    shown = (tmp_path / "pareto.html").read_text()
    assert shown.count("<circle") == len(points)
    frugal = max(points, key=lambda point: point["throughput"] / point["cost_per_hour"])
    assert f"chosen: {frugal['workers']} × {frugal['worker_cpu']} + {frugal['ps']} × {frugal['ps_cpu']} cores" in shown
    dear = points[-1]["cost_per_hour"]
    answer("pareto", MODEL, "--report", str(tmp_path), "--budget-per-hour", str(dear))
    fastest = points[-1]
    assert f"chosen: {fastest['workers']} × {fastest['worker_cpu']}" in (tmp_path / "pareto.html").read_text()
    answer("pareto", MODEL, "--report", str(tmp_path), "--budget-per-hour", "0.001")
    assert "no plan costs at most 0.001 an hour" in (tmp_path / "pareto.html").read_text()


def test_the_page_of_an_allocation_shows_every_job_in_every_step(tmp_path: Path) -> None:
    plan = answer("allocate", INSTANCE, "--report", str(tmp_path / "new"))["plan"]
    shown = (tmp_path / "new" / "allocation.html").read_text()
    for job, sizes in plan.items():
        assert f"{job}, now: {sizes[0]} nodes" in shown
        assert f"{job}, step 5: {sizes[4]} nodes" in shown


@pytest.mark.parametrize("name", FILES)
def test_people_get_a_table(name: str) -> None:
    result = whatif(name, FILES[name])
    assert result.exit_code == 0
    assert not result.stdout.startswith("{")


WRONG = [
    ("pareto", changed(MODEL, "batch_size", 0), "batch_size = 0"),
    ("pareto", changed(MODEL, "coefficients", dict.fromkeys(MODEL["coefficients"], 0)), "coefficients"),
    ("pareto", changed(MODEL, "grid.ps", [4, 1]), "grid.ps = [4, 1]"),
    ("pareto", changed(MODEL, "grid.ps", [1]), "grid.ps = [1]: expected two whole numbers, first and last"),
    ("pareto", changed(MODEL, "grid.workers", [1, 2, 4]), "grid.workers = [1, 2, 4]: expected two whole numbers"),
    ("pareto", changed(MODEL, "grid.workers", [1, 10**9]), "grid = "),
    ("pareto", changed(MODEL, "param_mb", "200"), "param_mb = 200"),
    ("pareto", {key: value for key, value in MODEL.items() if key != "grid"}, "grid is missing"),
    ("place", changed(LAYERS, "layers.1.compute_s", [0.1]), "layers[1].compute_s = [0.1]: expected 2 values"),
    ("place", changed(LAYERS, "layers.2.parallel_fraction", [1.5, 0]), "layers[2].parallel_fraction[0] = 1.5"),
    ("place", changed(LAYERS, "layers.2.name", "l0"), "layers.name = l0: expected every id once"),
    ("place", changed(LAYERS, "types.0.limit", -1), "types[0].limit = -1"),
    ("place", changed(LAYERS, "types.0.limit", 10**400), "types[0].limit = 1000"),
    ("place", json.dumps(LAYERS).replace("512", "1" * 5000), "numbers of at most 4300 digits"),
    ("place", {**LAYERS, "layers": [{**each, "compute_s": [0, 0]} for each in LAYERS["layers"]]}, "layers.compute_s"),
    ("place", changed(LAYERS, "types.0.price_per_hour", 1e308), "types[0].price_per_hour = 1e+308: expected at most 1"),
    ("place", changed(LAYERS, "types.0.limt", 3), "types[0].limt is missing: expected the field's name to be limit"),
    ("allocate", changed(INSTANCE, "jobs.1.id", "j1"), "jobs.id = j1"),
    ("allocate", changed(INSTANCE, "jobs.0.demand_node_hours", 0), "jobs[0].demand_node_hours = 0"),
    ("allocate", changed(INSTANCE, "jobs.0.max_nodes", 0), "jobs[0].min_nodes = 1: expected at most max_nodes, 0"),
    ("allocate", changed(INSTANCE, "nodes", True), "nodes = true"),
    ("allocate", json.dumps(INSTANCE).replace("12.5", "NaN"), "jobs[0].demand_node_hours = NaN: expected a finite"),
    ("allocate", json.dumps(INSTANCE).replace("12.5", "1e999"), "jobs[0].demand_node_hours = Infinity"),
    ("allocate", json.dumps(INSTANCE).replace("12.5", "-Infinity"), "jobs[0].demand_node_hours = -Infinity"),
    ("allocate", changed(INSTANCE, "nodes", math.nan), "nodes = NaN: expected a finite number"),
    ("allocate", changed(INSTANCE, "nodes", 5.5), "nodes = 5.5: expected a whole number"),
    ("allocate", changed(INSTANCE, "nodes", 1e300), "nodes = 1e+300: expected at most 9007199254740992"),
    ("pareto", changed(MODEL, "batch_size", 512.5), "batch_size = 512.5: expected a whole number"),
    ("pareto", changed(MODEL, "coefficients.alpha_upd", math.inf), "coefficients.alpha_upd = Infinity"),
    ("pareto", {**MODEL, "note": [1, math.nan]}, "note[1] = NaN: expected a finite number"),
    ("place", changed(LAYERS, "types.1.limit", math.nan), "types[1].limit = NaN: expected a finite number"),
    ("allocate", '{"nodes": 1, "nodes": 2}', "nodes: expected every field once"),
    ("allocate", '{"nodes": ', "line 1, column"),
    ("allocate", "[]", "[]: expected an object"),
]


@pytest.mark.parametrize(("name", "document", "said"), WRONG, ids=[said for _, _, said in WRONG])
@pytest.mark.parametrize("output", ["json", "table"])
def test_what_is_wrong_is_said_in_one_line(name: str, document: Any, said: str, output: str) -> None:
    assert_refused(whatif(name, document, "-o", output), said)


WHOLE = [
    ("pareto", MODEL, "batch_size", 512),
    ("pareto", MODEL, "grid.workers.1", 8),
    ("place", LAYERS, "types.1.limit", 8),
    ("allocate", INSTANCE, "nodes", 6),
    ("allocate", INSTANCE, "steps", 5),
    ("allocate", INSTANCE, "sizes.2", 4),
    ("allocate", INSTANCE, "jobs.0.min_nodes", 1),
    ("allocate", INSTANCE, "jobs.0.max_nodes", 16),
    ("allocate", INSTANCE, "jobs.1.current_nodes", 2),
]


@pytest.mark.parametrize(("name", "document", "path", "value"), WHOLE, ids=[path for _, _, path, _ in WHOLE])
def test_whole_numbers_may_be_spelled_with_a_fraction(name: str, document: Any, path: str, value: int) -> None:
    """JSON has one kind of number: 512.0 is the integer 512."""
    spelled, plain = (answer(name, changed(document, path, each)) for each in (float(value), value))
    for found in (spelled, plain):
        del found["solve_s"]
    assert spelled == plain


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [("pareto", "--budget-per-hour", "nan"), ("pareto", "--budget-per-hour", "-1"), ("place", "--seed", "-1")],
)
def test_a_wrong_option_is_said_in_one_line_too(name: str, option: str, value: str) -> None:
    assert_refused(whatif(name, FILES[name], option, value), f"{option} = ", "of at least 0")


def test_an_unknown_algorithm_or_file_is_bad_input_too(tmp_path: Path) -> None:
    assert_refused(whatif("place", LAYERS, "--algorithm", "oracle", "-o", "json"), "'oracle'", "brute-force")
    result = CliRunner().invoke(app, ["whatif", "place", str(tmp_path / "none.json")])
    assert result.exit_code == 2
    assert "No such file" in result.stderr
