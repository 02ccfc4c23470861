"""Bytes, cores and durations in a job file, as people write them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from stretto_messages.values import WorkerGroup
from stretto_wire import JobSpec, WireError
from stretto_wire.jobspec.jobfile import read_job
from stretto_wire.jobspec.schema import job_schema
from stretto_wire.quantities import parse_bytes, parse_cores, parse_seconds

JOB = "name: a\nmodel: {entry: 'm:M'}\ndataset: {samples: 5}\n"
FULL = (
    JOB
    + """\
deadline_s: 2h
checkpoint: {every_s: 5m}
resources:
  workers: {cpu_cores: {min: 500m, max: 4}, memory: {min: 1Gi, max: 2Gi}}
  ps: {spill: auto, spill_limit: 64Gi}
  initial:
    {workers: 2, ps: 1, worker_cpu_cores: 1500m, ps_cpu_cores: "1", worker_memory_bytes: 1Gi, ps_memory_bytes: 256Mi}
"""
)


def test_a_job_file_takes_units_wherever_it_takes_bytes_cores_or_durations() -> None:
    job = read_job(FULL)
    assert (job.deadline_s, job.checkpoint.every_s) == (7200, 300)
    workers, plan = job.resources.workers, job.resources.initial
    assert (workers.cpu_cores.min, workers.memory.max, job.resources.ps.spill_limit) == (0.5, 2**31, 2**36)
    assert plan is not None
    assert (plan.worker_cpu_cores, plan.ps_cpu_cores) == (1.5, 1.0)
    assert (plan.worker_memory_bytes, plan.ps_memory_bytes) == (2**30, 2**28)


def test_the_schema_takes_what_the_reader_takes() -> None:
    import yaml

    check = Draft202012Validator(job_schema())
    assert list(check.iter_errors(yaml.safe_load(FULL))) == []
    wrong = yaml.safe_load(FULL.replace("1500m", "1500 cores"))
    assert list(check.iter_errors(wrong))


GROUPS = "ps_memory_bytes: 256Mi, groups: [{device: a, workers: 1, cpu_cores: 2, memory_bytes: 1073741824}]"


def test_a_first_plan_may_have_workers_on_types_of_devices() -> None:
    import yaml

    text = FULL.replace("ps_memory_bytes: 256Mi", GROUPS)
    plan = read_job(text).resources.initial
    assert plan is not None
    assert plan.groups == (WorkerGroup("a", 1, 2.0, 2**30),)
    assert JobSpec.model_validate_json(read_job(text).model_dump_json()).resources.initial == plan
    assert list(Draft202012Validator(job_schema()).iter_errors(yaml.safe_load(text))) == []
    sized = text.replace("cpu_cores: 2, memory_bytes: 1073741824", "cpu_cores: 2000m, memory_bytes: 1Gi")
    assert read_job(sized).resources.initial == plan
    assert list(Draft202012Validator(job_schema()).iter_errors(yaml.safe_load(sized))) == []
    with pytest.raises(WireError, match=r"memory_bytes = 1Xi: .*512Mi"):
        read_job(text.replace("1073741824", "1Xi"))
    for wrong, told in (("cpu_cores: 0", "at least"), ("cores: 2", "give each device, workers, cpu_cores, memory_")):
        with pytest.raises(WireError, match=told):
            read_job(text.replace("cpu_cores: 2,", f"{wrong},"))
    with pytest.raises(WireError, match=r"state workers\.stages: 2, or leave its groups out"):
        read_job(text.replace("{device: a", "{stage: 1, first_layer: 1, device: a"))


@pytest.mark.parametrize(
    ("wrong", "field", "value", "remedy"),
    [
        ("deadline_s: 2 hours", "deadline_s", "2 hours", "seconds, or a duration such as 90s, 5m, 1h30m or 2d"),
        ("deadline_s: 5m2h", "deadline_s", "5m2h", "seconds, or a duration"),
        ("checkpoint: {every_s: 10ms}", "checkpoint.every_s", "0.01", "at least 1"),
        ("resources: {ps: {cpu_cores: {min: 5Mi}}}", "resources.ps.cpu_cores.min", "5Mi", "thousandths of one"),
        ("resources: {ps: {memory: {min: 1Xi}}}", "resources.ps.memory.min", "1Xi", "512Mi"),
        ("resources: {ps: {spill: auto, spill_limit: 1Xi}}", "resources.ps.spill_limit", "1Xi", "512Mi"),
    ],
)
def test_a_quantity_that_is_none_is_refused_with_its_field_value_and_remedy(
    wrong: str, field: str, value: str, remedy: str
) -> None:
    with pytest.raises(WireError) as caught:
        read_job(JOB + wrong + "\n")
    assert (caught.value.field, caught.value.value) == (field, value)
    assert remedy in caught.value.remedy


def test_a_wrong_quantity_of_the_plan_is_named() -> None:
    with pytest.raises(WireError) as caught:
        read_job(FULL.replace("worker_memory_bytes: 1Gi", "worker_memory_bytes: much"))
    assert caught.value.field == "resources.initial"
    assert "worker_memory_bytes = much: bytes, or a size such as" in caught.value.remedy


@given(st.integers(0, 2**46))
def test_bytes_cores_and_seconds_say_what_they_say(number: int) -> None:
    assert parse_bytes(f"{number}Ki") == number * 1024
    assert parse_bytes(f"{number}") == number
    assert parse_cores(f"{number}m") == number / 1000
    assert parse_seconds(f"{number}m{number % 60}s") == number * 60 + number % 60
    assert [parse(number) for parse in (parse_bytes, parse_cores, parse_seconds)] == [number] * 3


@given(st.text(max_size=12))
def test_any_text_is_a_quantity_or_refused(text: str) -> None:
    for parse in (parse_bytes, parse_cores, parse_seconds):
        with contextlib.suppress(ValueError):
            assert parse(text) >= 0


def test_every_field_of_a_job_file_is_described() -> None:
    def undescribed(title: str, node: dict[str, object]) -> list[str]:
        fields = node.get("properties", {})
        assert isinstance(fields, dict)
        found = [f"{title}.{name}" for name, field in fields.items() if not field.get("description")]
        return found + [each for name, field in fields.items() for each in undescribed(f"{title}.{name}", field)]

    schema = job_schema()
    parts = {"job": schema, **schema["$defs"]}
    assert [each for title, part in parts.items() for each in undescribed(title, part)] == []
