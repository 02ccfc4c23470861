"""Findings about a job file: every error, its place, and an acceptable value."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stretto_messages.values import NO_EXTENDED, ExtendedPerPod
from stretto_wire import JobSpec, WireError
from stretto_wire.findings import MOST
from stretto_wire.jobspec.jobfile import read_job
from stretto_wire.jobspec.spec import RulesSpec

GOOD = "name: a\nmodel: {entry: 'm:M'}\ndataset: {samples: 5}\n"
BAD = """\
name: Bad Name
model:
  entry: nocolon
  arguments: {a: [1]}
  optimiser: adam
  embedding_dim: "16"
dataset:
  samples: 1e6
  shuffle: maybe
resources:
  workers: {count: {min: 5, max: 2}, memory: {min: 1Ki}}
environment: {A B: x, C: 3}
checkpoint: {every_s: .inf}
"""


def refused(text: str, form: str = "YAML") -> WireError:
    with pytest.raises(WireError) as caught:
        read_job(text, form)  # type: ignore[arg-type]
    return caught.value


def test_every_finding_is_told_with_its_line_value_and_remedy() -> None:
    error = refused(BAD)
    told = {one.field: one for one in error.findings}
    expected = {
        "name": (1, "Bad Name", "lower-case letters, digits and hyphens"),
        "model.entry": (3, "nocolon", "module:name"),
        "model.arguments.a": (4, "[1]", "text, a number, true or false"),
        "model.optimiser": (5, "adam", "did you mean optimizer?"),
        "model.embedding_dim": (
            6,
            '"16"',
            "at least 1 and at most 4096 (numbers in the vector of one embedding key), written 16",
        ),
        "dataset.samples": (8, "1000000.0", "written 1000000"),
        "dataset.shuffle": (9, "maybe", "true or false"),
        "resources.workers.count": (11, "{'min': 5, 'max': 2}", "min must not be above max"),
        "resources.workers.memory.min": (11, "1024", "at least 1Mi and at most 64Ti"),
        "environment.A B": (12, "A B", "of the form"),
        "environment.C": (12, "3", 'in quotes: "3"'),
        "checkpoint.every_s": (13, "inf", "neither infinite"),
    }
    assert told.keys() == expected.keys()
    for field, (line, value, remedy) in expected.items():
        assert (told[field].line, told[field].value) == (line, value)
        assert remedy in told[field].remedy
    assert [one.line for one in error.findings] == sorted(one.line or 0 for one in error.findings)
    assert str(error) == f"{error.findings[0]} (and {error.count - 1} more)"
    assert not re.search(r"Input should|Extra inputs|valid (integer|string|number)", str(error.findings))


@pytest.mark.parametrize(
    ("extended", "field", "value", "remedy"),
    [
        ("nvidia.com/gpu: 0", "nvidia.com/gpu", "0", "at least 1"),
        ("nvidia.com/gpu: 1.5", "nvidia.com/gpu", "1.5", "a whole number"),
        ("gpu: 1", "gpu", "gpu", "the vendor's domain and a name, as in nvidia.com/gpu"),
        ("Nvidia.com/gpu: 1", "Nvidia.com/gpu", "Nvidia.com/gpu", "the vendor's domain and a name"),
        ("kubernetes.io/gpu: 1", "kubernetes.io/gpu", "kubernetes.io/gpu", "a vendor's domain, as in nvidia.com/gpu"),
        ("a.kubernetes.io/gpu: 1", "a.kubernetes.io/gpu", "a.kubernetes.io/gpu", "a vendor's domain"),
    ],
)
def test_devices_are_whole_numbers_under_names_of_kubernetes(
    extended: str, field: str, value: str, remedy: str
) -> None:
    error = refused(f"{GOOD}resources: {{workers: {{extended: {{{extended}}}}}}}\n")
    assert [one.field for one in error.findings] == [f"resources.workers.extended.{field}"]
    assert (error.findings[0].value, error.findings[0].line) == (value, 4)
    assert remedy in error.findings[0].remedy


def test_devices_are_of_every_pod_of_a_role_and_have_prices() -> None:
    job = read_job(
        f"{GOOD}resources: {{workers: {{extended: {{nvidia.com/gpu: 1, amd.com/gpu: 2}}}}}}\n"
        "prices: {extended_hour: {nvidia.com/gpu: 2.5}}\n",
        "YAML",
    )
    assert job.resources.extended == ExtendedPerPod(worker=(("amd.com/gpu", 2), ("nvidia.com/gpu", 1)))
    assert job.prices.extended_hour == {"nvidia.com/gpu": 2.5}
    assert read_job(GOOD, "YAML").resources.extended == NO_EXTENDED


RULES = "name: a\nmodel: {{entry: 'm:M', optimizer: {rules}}}\ndataset: {{samples: 5}}\n"


@pytest.mark.parametrize(
    "rules", ["ftrl", "{rows: sgd, dense: {name: adam, learning_rate: 0.5}}", "{rows: {name: sgd}, dense: adam}"]
)
def test_an_update_rule_is_one_for_all_or_one_for_rows_and_one_for_dense_parameters(rules: str) -> None:
    job = read_job(RULES.format(rules=rules), "YAML")
    assert JobSpec.parse(job.model_dump(mode="json")) == job
    assert JobSpec.model_validate_json(job.model_dump_json()) == job
    assert job.model.optimizer == ("ftrl" if rules == "ftrl" else RulesSpec.model_validate(job.model.optimizer))


@pytest.mark.parametrize(
    ("rules", "field", "value", "remedy"),
    [
        ("lamb", "", "lamb", "one of adagrad, adam, .*, sgd, or a mapping with the fields rows, dense"),
        ("[adam]", "", r"\['adam'\]", "or a mapping with the fields rows, dense"),
        ("{rows: adam}", ".dense", "absent", "has to be stated"),
        ("{rows: adam, dense: sgd, denes: sgd}", ".denes", "sgd", "did you mean dense"),
        ("{rows: lamb, dense: adam}", ".rows", "lamb", "one of adagrad, .* fields name, learning_rate"),
        ("{rows: {learning_rate: 1}, dense: adam}", ".rows.name", "absent", "one of adagrad"),
        ("{rows: adam, dense: {name: sgd, learning_rate: 0}}", ".dense.learning_rate", "0", "above 0 and at most 100"),
    ],
)
def test_a_wrong_update_rule_is_told_of_in_the_form_that_it_has(
    rules: str, field: str, value: str, remedy: str
) -> None:
    [found] = refused(RULES.format(rules=rules)).findings
    assert found.field == f"model.optimizer{field}"
    assert re.fullmatch(value, found.value)
    assert re.search(remedy, found.remedy)


def test_findings_beyond_the_bound_are_counted() -> None:
    error = refused(GOOD + "environment: {" + ", ".join(f"A{n}: {n}" for n in range(50)) + "}\n")
    assert (len(error.findings), error.count) == (MOST, 50)


@pytest.mark.parametrize(
    ("text", "field", "lines"),
    [
        (GOOD + "priority: 1\nprices: {}\npriority: 2\n", "priority", (4, 6)),
        ("name: a\nmodel: {entry: 'm:M'}\ndataset:\n  samples: 1\n  samples: 2\n", "dataset.samples", (4, 5)),
        (GOOD + "environment:\n  'A': x\n  A: y\n", "environment.A", (5, 6)),
    ],
)
def test_a_name_that_stands_twice_is_refused_with_both_lines(text: str, field: str, lines: tuple[int, int]) -> None:
    error = refused(text)
    assert (error.field, error.value) == (field, f"line {lines[0]} and line {lines[1]}")
    assert "twice" in error.remedy


def test_a_name_that_stands_twice_in_json_is_refused() -> None:
    error = refused('{"name": "a", "model": {"entry": "m:M"}, "dataset": {"samples": 1, "samples": 2}}', "JSON")
    assert (error.field, error.value) == ("samples", "2 times")


@pytest.mark.parametrize("form", ["JSON", "YAML"])
@pytest.mark.parametrize(
    ("part", "field"),
    [
        ('"model": {"entry": "m:M", "metadata": {"a": "x\\ud800"}}', "model.metadata.a"),
        ('"model": {"entry": "m:M", "arguments": {"a": "\\udfff"}}', "model.arguments.a"),
        ('"model": {"entry": "m:M", "metadata": {"\\ud800": 1}}', "model.metadata"),
        ('"model": {"entry": "m:M", "arguments": {"a": ["\\ud83d"]}}', "model.arguments.a.0"),
        ('"model": {"entry": "m:M", "path": "/a\\u0000"}', "model.path"),
        ('"model": {"entry": "m:M"}, "environment": {"A": "\\u0000"}', "environment.A"),
    ],
)
def test_half_a_character_or_none_is_refused_where_it_stands(form: str, part: str, field: str) -> None:
    error = refused(f'{{"name": "a", {part}, "dataset": {{"samples": 1}}}}', form)
    assert error.field == field
    assert error.value.isascii()
    assert ("number 0" if "u0000" in part else "halves of pairs") in error.remedy


def test_a_pair_of_escapes_is_one_character() -> None:
    metadata = '{"a": "\\ud83d\\ude00"}'
    text = f'{{"name": "a", "model": {{"entry": "m:M", "metadata": {metadata}}}, "dataset": {{"samples": 1}}}}'
    assert read_job(text, "JSON").model.metadata == {"a": "\U0001f600"}


@pytest.mark.parametrize(
    ("text", "form", "line", "column"),
    [
        ("name: a\nmodel: [\n", "YAML", 3, 1),
        ("name: a\nmodel:\n\t- b\n", "YAML", 3, 1),
        ("name: a\n  b: c\n", "YAML", 2, 4),
        ("a: &x 1\nb: *x\n", "YAML", 2, 4),
        *(
            (f"name: a\nb: !!{tag}\n", "YAML", 2, 4)
            for tag in ("bool no", 'int "1:30"', "timestamp x", "set {a}", "x y")
        ),
        ("name: a\nb: !x [1]\n", "YAML", 2, 4),
        ('{"name": "a",\n "model" 1}', "JSON", 2, 10),
    ],
)
def test_what_is_not_yaml_or_json_is_told_with_line_and_column(text: str, form: str, line: int, column: int) -> None:
    found = refused(text, form).findings[0]
    assert (found.line, found.column) == (line, column)
    assert str(found).startswith(f"line {line}, column {column}: ")


@pytest.mark.parametrize(
    ("word", "remedy"),
    [
        *((word, "write false, or put it into quotes") for word in ("no", "No", "OFF")),
        *((word, "write true, or put it into quotes") for word in ("yes", "on", "ON")),
        *((word, "such as 90s") for word in ("1:30", "+1:30:00", "1:30.5", "190:20:30")),
        *((word, "leave out the zero") for word in ("010", "-07", "08", "00")),
        *((word, "a decimal number") for word in ("0b11", "0o17")),
    ],
)
def test_a_word_that_two_versions_of_yaml_read_differently_is_refused_where_it_stands(word: str, remedy: str) -> None:
    for at, field in (("arguments", "model.arguments.a"), ("metadata", "model.metadata.a")):
        found = refused(GOOD.replace("'m:M'", f"'m:M', {at}: {{a: {word}}}")).findings[0]
        assert (found.field, found.value, found.line) == (field, word, 2)
        assert remedy in found.remedy
    assert remedy in refused(f"{GOOD}checkpoint: {{every_s: {word}}}\n").findings[0].remedy
    assert remedy in refused(f"{GOOD}environment: {{{word}: x}}\n").findings[0].remedy
    assert read_job(GOOD.replace("'m:M'", f"'m:M', metadata: {{a: '{word}'}}")).model.metadata == {"a": word}


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("worker: no", [("worker", "no", "no such field here; did you mean resources.workers?")]),
        ("batch_size: 010", [("batch_size", "010", "no such field here; did you mean dataset.batch_size?")]),
        ("resources: {ps: {max: 2}}", [("resources.ps.max", "2", "mean resources.ps.count.max or resources.ps.")]),
        ("checkpoint: {every: 9, keep: 010}", [("checkpoint.every", "9", "did you mean every_s?"),
                                               ("checkpoint.keep", "010", "leave out the zero")]),
    ],
)  # fmt: skip
def test_a_field_that_there_is_not_is_told_with_the_word_that_it_has(
    line: str, told: list[tuple[str, str, str]]
) -> None:
    found = refused(f"{GOOD}{line}\n").findings
    assert [(each.field, each.value) for each in found] == [(field, value) for field, value, _ in told]
    assert all(remedy in each.remedy for each, (_, _, remedy) in zip(found, told, strict=True))


def test_rows_that_would_not_outlive_a_batch_are_refused() -> None:
    for rows, field, remedy in (
        (
            "{expire_samples: 100}",
            "rows",
            "expire_samples of at least 512, dataset.batch_size times model.wire.push_every",
        ),
        ("{admit: 0}", "rows.admit", "1"),
        ("{admit: 101}", "rows.admit", "100"),
        ("{warm: bfloat16}", "rows.warm", "bf16"),
    ):
        [found] = refused(f"{GOOD}rows: {rows}\n").findings
        assert found.field == field
        assert remedy in found.remedy
    assert read_job(f"{GOOD}rows: {{admit: 2, expire_samples: 512}}\n").rows.expire_samples == 512
    assert read_job(f"{GOOD}rows: {{warm: bf16}}\n").rows.warm == "bf16"
    rows = read_job(GOOD).rows
    assert (rows.admit, rows.expire_samples, rows.warm) == (1, 0, "none")


def test_a_push_of_more_batches_than_a_shard_or_a_row_outlives_is_refused() -> None:
    merging = GOOD.replace("'m:M'", "'m:M', wire: {push_every: 8}")
    for text, field, remedy in (
        (merging.replace("5}", "5, batches_per_shard: 7}"), "dataset", "of at least model.wire.push_every, 8"),
        (f"{merging}rows: {{expire_samples: 4095}}\n", "rows", "expire_samples of at least 4096"),
        (merging.replace("8}", "1001}"), "model.wire.push_every", "1000"),
    ):
        [found] = refused(text).findings
        assert found.field == field
        assert remedy in found.remedy
    kept = read_job(f"{merging.replace('5}', '5, batches_per_shard: 8}')}rows: {{expire_samples: 4096}}\n")
    assert (kept.model.wire.push_every, kept.dataset.batches_per_shard, kept.rows.expire_samples) == (8, 8, 4096)


def test_other_words_are_what_they_are_in_the_newer_version() -> None:
    told = "{a: 2026-11-21, b: n, c: 1.2.3, d: 1_000, e: 0x1F, f: true, g: 0, h: -0.5, i: '=', j: 12:99}"
    assert read_job(GOOD.replace("'m:M'", f"'m:M', metadata: {told}")).model.metadata == {
        **{"a": "2026-11-21", "b": "n", "c": "1.2.3", "d": 1000, "e": 31, "f": True},
        **{"g": 0, "h": -0.5, "i": "=", "j": "12:99"},
    }  # fmt: skip
    merged = refused(GOOD + "environment: {<<: {A: x}}\n").findings[0]
    assert (merged.field, merged.line) == ("environment.<<", 4)


@pytest.mark.parametrize("form", ["YAML", "JSON"])
@pytest.mark.parametrize("text", ["[" * 100_000, "{a: " * 50_000, '{"a":' * 100_000, "- " * 50_000, "? " * 50_000])
def test_brackets_in_brackets_are_refused(text: str, form: str) -> None:
    assert refused(text, form).findings


@pytest.mark.parametrize(("text", "rate"), [("1e-3", 1e-3), ("1E-3", 1e-3), ("5e-1", 0.5), (".5e+1", 5.0)])
def test_a_learning_rate_is_a_number_as_people_write_it(text: str, rate: float) -> None:
    assert read_job(GOOD.replace("'m:M'", f"'m:M', learning_rate: {text}")).model.learning_rate == rate


def test_an_object_of_kubernetes_is_refused_in_one_line() -> None:
    with pytest.raises(WireError, match="kubectl apply") as refused:
        read_job("apiVersion: stretto.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: a}\nspec: {}\n")
    assert [(each.field, each.line) for each in refused.value.findings] == [("kind", 2)]


def test_an_absent_field_is_told_with_what_it_takes() -> None:
    error = refused("name: a\ndataset: {}\n")
    assert [(one.field, one.value) for one in error.findings] == [("model", "absent"), ("dataset.samples", "absent")]
    assert "samples of one epoch" in error.findings[1].remedy


@pytest.mark.parametrize(
    ("data", "remedy"),
    [
        ("samples: 9, evaluate_first: 2", "0 without partitions"),
        ("partitions: [{name: a, samples: 9}], epochs: 2, evaluate_first: 2", "0 with several epochs"),
        ("growing: true, evaluate_first: -1", "at least 0"),
    ],
)
def test_windows_that_cannot_be_are_refused(data: str, remedy: str) -> None:
    (found,) = refused(f"name: a\nmodel: {{entry: 'm:M'}}\ndataset: {{{data}}}\n").findings
    assert (found.field, remedy in found.remedy) == ("dataset.evaluate_first", True), found


@pytest.mark.parametrize(
    ("more", "field", "remedy"),
    [
        ("samples: 9}, best: {}", "best", "state evaluate_every_samples as well"),
        ("growing: true, held_out: t}, evaluate: 1, evaluate_every_samples: 5, best: {patience: 2}", "best", "growing"),
        ("samples: 9}, evaluate: 1, evaluate_every_samples: 5, best: {patience: 0}", "best.patience", "at least 1"),
    ],
)
def test_a_best_model_that_cannot_be_found_is_refused(more: str, field: str, remedy: str) -> None:
    (found,) = refused(f"{{name: a, model: {{entry: 'm:M'}}, dataset: {{{more}}}\n").findings
    assert (found.field, remedy in found.remedy) == (field, True), found


@given(st.text(max_size=200) | st.binary(max_size=100).map(lambda data: data.decode("latin-1")))
def test_any_text_is_a_job_or_refused(text: str) -> None:
    for form in ("YAML", "JSON"):
        error = refused(text, form)
        assert error.findings
        assert all(str(one).isprintable() for one in error.findings)


def test_a_good_file_is_the_job_that_it_says() -> None:
    assert read_job(GOOD) == JobSpec.parse({"name": "a", "model": {"entry": "m:M"}, "dataset": {"samples": 5}})


@pytest.mark.parametrize(
    ("wrong", "remedy"),
    [
        ("resources: {workers: {stages: 2}}", "state devices as well"),
        ("resources: {workers: {stages: auto, dense: group, devices: [a]}}", "leave dense: group out, or state 1"),
        ("resources: {workers: {stages: 4, devices: [a]}}", "one of 1, 2, 3, auto"),
        ("resources: {workers: {stages: 3, devices: [a]}}", "an initial plan with groups of the stages 1 and 2"),
    ],
)
def test_stages_that_cannot_be_are_refused_with_the_remedy(wrong: str, remedy: str) -> None:
    with pytest.raises(WireError) as caught:
        read_job(GOOD + wrong + "\n")
    assert remedy in str(caught.value)


def test_three_stages_begin_where_a_fixed_plan_says() -> None:
    group = "{device: a, workers: 1, cpu_cores: 1, memory_bytes: 1073741824, stage: %s, first_layer: %s}"
    sizes = "worker_cpu_cores: 1, ps_cpu_cores: 1, worker_memory_bytes: 1Gi, ps_memory_bytes: 1Gi"
    groups = f"groups: [{group % (1, 1)}, {group % (2, 4)}]"
    initial = f"fixed: true, initial: {{workers: 3, ps: 1, {sizes}, {groups}}}"
    job = read_job(f"{GOOD}resources: {{workers: {{stages: 3, devices: [a]}}, {initial}}}\n")
    assert job.resources.initial is not None
    assert [place.first_layer for place in job.resources.initial.worker_places] == [0, 1, 4]
    assert refused(f"{GOOD}resources: {{workers: {{stages: auto, devices: [a]}}, {initial}}}\n").field == "resources"
