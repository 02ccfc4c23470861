"""`stretto whatif fit`: models from CSV files, with and without all columns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from asking import assert_refused, command

COLUMNS = "batch_size,workers,ps,worker_cpu,ps_cpu,param_mb,bandwidth_mb_s,embedding_dim,step_time_s"
TRUTH = {"alpha_grad": 5e-4, "alpha_upd": 0.01, "alpha_sync": 0.02, "alpha_emb": 1e-5, "constant": 0.03}


def terms(row: tuple[float, ...]) -> list[float]:
    m, w, p, lw, lp, size, bandwidth, dim = row
    inputs = (m / lw, w / (p * lp), size / p / (bandwidth / w), m * dim / p)
    return [a * x for a, x in zip(TRUTH.values(), inputs, strict=False)]


def settings(count: int, seed: int = 0) -> list[tuple[float, ...]]:
    draw = np.random.default_rng(seed)
    return [
        (
            int(draw.choice([256, 512])),
            int(draw.integers(1, 17)),
            int(draw.integers(1, 9)),
            int(draw.integers(1, 9)),
            int(draw.integers(1, 9)),
            200,
            int(draw.choice([500, 1000])),
            int(draw.choice([8, 16])),
        )
        for _ in range(count)
    ]


def csv(rows: list[tuple[float, ...]], parts: bool = False) -> str:
    header = COLUMNS + (",grad_s,upd_s,sync_s,emb_s" if parts else "")
    lines = [header]
    for row in rows:
        found = terms(row)
        values = [*row, sum(found) + TRUTH["constant"], *(found if parts else [])]
        lines.append(",".join(f"{value:.12g}" for value in values))
    return "\n".join(lines) + "\n"


whatif, answer = command("whatif fit -")


@pytest.mark.parametrize("name", ["robust", "rmsle", "least-squares"])
@pytest.mark.parametrize("parts", [False, True])
def test_exact_data_give_the_paper_s_coefficients_back(name: str, parts: bool, tmp_path: Path) -> None:
    others = tmp_path / "plans.csv"
    others.write_text(csv(settings(5, 9)))
    options = ("--form", "paper", "--algorithm", name, "--predict", str(others))
    found = answer(csv(settings(30), parts), *options)
    assert list(found) == [
        "form", "coefficients", "rmsle", "unidentified", "solve_s", "predictions", "intervals_90", "measure_next"
    ]  # fmt: skip
    assert found["form"] == "paper"
    assert found["coefficients"] == pytest.approx(TRUTH, rel=1e-4)
    assert found["unidentified"] == []
    assert found["rmsle"] < 1e-5
    true = [sum(terms(row)) + TRUTH["constant"] for row in settings(5, 9)]
    assert found["predictions"] == pytest.approx(true, rel=1e-4)
    for (low, high), value in zip(found["intervals_90"], true, strict=True):
        assert low < value < high < 2 * value


def test_the_default_form_makes_do_with_few_columns() -> None:
    rows = ["workers,ps,step_time_s"] + [f"{w},{p},{0.1 + 0.02 * w / p + 0.01 * w}" for w in (1, 2, 4) for p in (1, 2)]
    found = answer("\n".join(rows))
    assert found["form"] == "default"
    assert set(found["coefficients"]) == {"a1", "a2", "a3", "a4", "a5", "a6", "a7"}
    assert {"a1", "a2"} <= set(found["unidentified"])
    assert "predictions" not in found
    assert all(set(row) == {"workers", "ps"} for row in found["measure_next"])
    assert all(1 <= row["workers"] <= 8 and 1 <= row["ps"] <= 4 for row in found["measure_next"])


def test_the_fastest_of_the_plans_asked_for_is_to_be_measured_before_it_is_chosen(tmp_path: Path) -> None:
    text = "ps,step_time_s\n" + "".join(f"{p},0.1\n" for p in (1, 2, 4, 8)) * 5
    assert answer(text)["measure_next"] == [], "more PSes bring nothing"
    plans = tmp_path / "plans.csv"
    plans.write_text("ps\n3\n")
    assert answer(text, "--predict", str(plans))["measure_next"] == [{"ps": 3}]
    plans.write_text("ps\n4\n")
    assert answer(text, "--predict", str(plans))["measure_next"] == []


def test_nodes_memory_and_overlap_are_told(tmp_path: Path) -> None:
    header = "workers,nodes,worker_cpu,worker_memory_gib,step_time_s"
    rows = [
        (w, n, c, g, max(0.1 + 0.4 / c, 0.02 * w + 0.2 * (n > 1), 8 / g))
        for w, n in ((1, 1), (4, 1), (4, 2), (16, 4))
        for c in (1, 2, 8)
        for g in (10, 40)
    ]
    text = "\n".join([header, *(",".join(map(str, row)) for row in rows)])
    found = answer(text)
    assert {"a8", "a9", "a10"} <= set(found["coefficients"])
    assert found["overlap"] > 1
    assert found["rmsle"] < 0.15
    assert "overlap" in whatif(text).stdout
    plans = tmp_path / "plans.csv"
    plans.write_text("workers,worker_cpu,worker_memory_gib\n8,2,40\n")
    refused = whatif(text, "--predict", str(plans))
    assert refused.exit_code == 2
    assert "nodes" in refused.stderr


def test_optimus_form_can_be_asked_for() -> None:
    text = "workers,ps,step_time_s\n" + "".join(f"{w},{p},{0.1 + w / p}\n" for w in (1, 2, 4) for p in (1, 2, 4))
    found = answer(text, "--form", "optimus")
    assert found["coefficients"]["theta2"] == pytest.approx(1.0, rel=1e-3)
    assert found["unidentified"] == ["theta0", "theta1"]


def test_what_never_varied_is_to_be_measured_first() -> None:
    found = answer("workers,ps,step_time_s\n" + "".join(f"{w},2,{0.1 + 0.02 * w}\n" for w in range(1, 7)))
    assert found["measure_next"][0]["ps"] != 2


def test_columns_that_are_constant_may_be_left_out_of_what_is_predicted(tmp_path: Path) -> None:
    others = tmp_path / "plans.csv"
    others.write_text("workers,ps\n2,1\n")
    text = "workers,ps,batch_size,step_time_s\n" + "".join(
        f"{w},{p},64,{0.1 + w / p}\n" for w in (1, 2) for p in (1, 2)
    )
    assert answer(text, "--predict", str(others))["predictions"][0] == pytest.approx(2.1, rel=0.1)
    others.write_text("workers\n2\n")
    result = whatif(text, "--predict", str(others), "-o", "json")
    assert result.exit_code == 2
    assert "ps" in result.stderr


def test_people_get_a_table(tmp_path: Path) -> None:
    others = tmp_path / "plans.csv"
    others.write_text(csv(settings(2, 9)))
    result = whatif(csv(settings(20)), "--predict", str(others))
    assert result.exit_code == 0
    assert "RMSLE" in result.stdout


WRONG = [
    (COLUMNS + "\n", (), "FILE"),
    ("workers,ps\n1,1\n", (), "a column step_time_s"),
    ("workers,ps,step_time_s\n1,1\n", (), "line 2"),
    ("workers,ps,step_time_s\n1,1,nan\n", (), "step_time_s = nan"),
    ("workers,ps,step_time_s\n1,1,0\n", (), "step_time_s"),
    ("workers,ps,step_time_s\n0,1,1\n", (), "workers"),
    ("workers,ps,step_time_s\n1.5,1,1\n", (), "workers = 1.5"),
    ("workers,ps,step_time_s\n1,1,1\n", ("--form", "paper"), "batch_size"),
    ("workers,ps,step_time_s\n1,1,1\n", ("--form", "cubic"), "--form = cubic"),
    ("workers,ps,step_time_s\n1,1,1\n", ("--algorithm", "oracle"), "oracle"),
    ("workers,ps,step_time_s\n1,1,1\n", ("--predict", "/none.csv"), "No such file"),
]


@pytest.mark.parametrize(("text", "options", "said"), WRONG, ids=[said for _, _, said in WRONG])
def test_what_is_wrong_is_said_in_one_line(text: str, options: tuple[str, ...], said: str) -> None:
    assert_refused(whatif(text, "-o", "json", *options), said)


@pytest.mark.parametrize("content", ["", "workers,ps\n"])
def test_nothing_to_predict_is_refused_in_one_line(content: str, tmp_path: Path) -> None:
    others = tmp_path / "others.csv"
    others.write_text(content)
    refused = whatif("workers,step_time_s\n1,2\n2,3\n", "--predict", str(others), "-o", "json")
    assert_refused(refused, "--predict", "one row at least below the header")
