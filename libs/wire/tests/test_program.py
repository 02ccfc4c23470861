"""Job files with a program: what is filled in, and what is refused with its remedy."""

from __future__ import annotations

import pytest
from stretto_wire import JobSpec, WireError
from stretto_wire.jobspec.entry_lookup import faults_of_entry
from stretto_wire.jobspec.jobfile import read_job
from stretto_wire.program import promise_of

PROGRAM = "name: a\nprogram: {command: [python, train.py]}\n"
LEASED = PROGRAM + "dataset: {samples: 1000, batch_size: 10}\n"
RANKS = LEASED.replace("]}", "], resize: restart, level: 2}")


def test_a_program_has_no_servers_and_keeps_its_own_parameters() -> None:
    spec = read_job(LEASED)
    assert spec.program is not None
    assert (spec.program.level, spec.resources.least.servers, spec.resources.most.servers) == (1, 0, 0)
    assert (spec.checkpoint.every_s, spec.resources.data.mode, spec.dataset.samples) == (None, "off", 1000)
    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec, "what is filled in is accepted again"


def test_a_program_without_a_dataset_is_one_run_of_one_worker() -> None:
    spec = read_job(PROGRAM)
    assert spec.program is not None
    assert (spec.program.level, spec.dataset.samples, spec.resources.most.workers) == (0, 1, 1)
    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec
    bounded = read_job(PROGRAM + "resources: {workers: {memory: {max: 2Gi}}}").resources.most
    assert (bounded.workers, bounded.worker_memory_bytes) == (1, 2**31), "other limits of workers leave it at one"


def test_a_program_that_takes_samples_may_have_data_workers() -> None:
    spec = read_job(LEASED + "resources: {data: {mode: always, count: 2, cpu_cores: 1}}")
    assert spec.resources.data.always == 2
    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec
    assert read_job(LEASED + "resources: {data: {count: 2}}").resources.data.most == 2
    assert not read_job(LEASED).resources.data.most, "a program that never asks for items has none by itself"


def test_a_program_may_say_what_similar_jobs_are_known_by() -> None:
    spec = read_job(LEASED.replace("]}", "], metadata: {model: dlrm, layers: 3}}"))
    assert spec.model.metadata == {"model": "dlrm", "layers": 3}
    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec


def test_the_workers_of_a_program_may_be_its_ranks() -> None:
    spec = read_job(RANKS + "resources: {workers: {count: {max: 5}}}")
    assert spec.program is not None
    assert (spec.program.together, spec.program.guarantee, spec.resources.most.workers) == (True, 2, 5)
    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec


def test_ranks_of_level_1_are_told_that_their_parameters_are_theirs_to_keep() -> None:
    kept = "keep their parameters by themselves"
    ranks = RANKS + "resources: {workers: {count: {max: 5}}}"
    assert kept in promise_of(read_job(ranks.replace("level: 2", "level: 1")).program)
    assert kept not in promise_of(read_job(ranks).program)
    assert kept not in promise_of(read_job(LEASED).program)


def test_nothing_is_promised_of_pods_that_another_controller_runs() -> None:
    found = promise_of(read_job(PROGRAM.replace("]}", "], object: Job/training/a}")).program)
    assert found.startswith("level 0, watched: another controller runs its pods")
    assert "again" not in found


@pytest.mark.parametrize(
    ("text", "field", "remedy"),
    [
        (LEASED + "model: {entry: 'm:M'}", "program", "leave program out, or model"),
        ("name: a\nmodel: {entry: 'stretto.program:NO_MODEL'}\ndataset: {samples: 5}", "program", "a command, as in"),
        ("name: a\ndataset: {samples: 5}", "model", "or state `program`"),
        ("name: a\nprogram: python train.py", "program", "a mapping with the fields command"),
        ("name: a\nprogram: {command: []}\ndataset: {samples: 5}", "program.command", "the command and its arguments"),
        (PROGRAM.replace("]}", "], progress: 'step ('}"), "program.progress = step (", "a regular expression, as in"),
        (PROGRAM.replace("]}", "], progress: '(?u)(.)'}"), "program.progress", "a regular expression, as in"),
        (PROGRAM.replace("]}", "], progress: '(a{9999999999})'}"), "program.progress", "a regular expression, as in"),
        (PROGRAM.replace("]}", "], progress: step}"), "program.progress", "one group around the number of steps"),
        (LEASED.replace("]}", "], progress: 'step (.)'}"), "program.progress = step (.)", "leave it out from level 1"),
        (LEASED.replace("]}", "], event_files: logs}"), "program.event_files = logs", "stretto.agent.samples tells"),
        (
            PROGRAM.replace("]}", "], progress: '(.)', event_files: logs}"),
            "program.event_files = logs",
            "progress tells the steps",
        ),
        (LEASED.replace("]}", "], resize: never}"), "program.resize", "live, none"),
        (LEASED.replace("]}", "], metadata: {Layers: 3}}"), "program.metadata", "a-z"),
        (PROGRAM.replace("]}", "], resize: restart}"), "program.resize", "live or none at level 0"),
        (RANKS + "resources: {workers: {count: {max: 6}}}", "resources.workers.count.max = 6", "at most 5, half of"),
        (
            RANKS.replace("1000", "962") + "resources: {workers: {count: {max: 3}}}",
            "resources.workers.count.max = 3",
            "at most 2 beside resize restart, the samples of the last shard",
        ),
        (
            LEASED.replace("]}", "], level: 2}") + "resources: {workers: {count: {max: 2}}}",
            "resources.workers.count.max = 2",
            "or program.resize restart, with which they are ranks",
        ),
        (LEASED.replace("]}", "], resize: none}"), "resources.workers.count = absent", "min = max"),
        (PROGRAM.replace("]}", "], level: 1}"), "dataset", "has to be stated"),
        (LEASED.replace("]}", "], level: 3}"), "program.level = 3", "for level 3, state model in place of program"),
        (LEASED.replace("]}", "], level: 0}"), "dataset", "leave dataset out at level 0"),
        (PROGRAM + "resources: {workers: {count: {max: 2}}}", "resources.workers.count.max = 2", "1 at level 0"),
        (LEASED + "resources: {ps: {count: {max: 3}}}", "resources.ps = {'count': {'max': 3}}", "leave ps out"),
        (PROGRAM + "resources: {data: {mode: always, count: 1}}", "resources.data", "leave data out at level 0"),
        (PROGRAM + "resources: {data: {count: 1}}", "resources.data", "leave data out at level 0"),
        (LEASED + "resources: {workers: {dense: group}}", "resources.workers.dense = group", "leave dense out"),
        (LEASED + "checkpoint: {every_s: 5}", "checkpoint", "the program keeps its own parameters"),
        (LEASED + "evaluate: 5", "evaluate", "leave evaluate out beside program"),
        (LEASED + "rows: {admit: 2}", "rows", "leave rows out beside program"),
        (PROGRAM + "dataset: {growing: true}", "dataset.growing = True", "samples in its place"),
        (
            "name: a\nmodel: {entry: 'm:M'}\ndataset: {samples: 5}\n"
            "resources: {ps: {cpu_cores: {min: 1m}, memory: {min: 1Mi}}}",
            "resources.ps",
            "more than 1 MiB for a parameter server",
        ),
        (
            LEASED + "resources: {initial: {workers: 1, ps: 2, worker_cpu_cores: 1, worker_memory_bytes: 1Gi}}",
            "resources.initial.ps = 2",
            "leave ps,",
        ),
    ],
)
def test_what_a_program_cannot_have_is_refused_with_its_remedy(text: str, field: str, remedy: str) -> None:
    with pytest.raises(WireError) as caught:
        read_job(text)
    assert [
        one for one in caught.value.findings if f"{one.field} = {one.value}".startswith(field) and remedy in one.remedy
    ]


def test_a_folder_that_is_not_there_is_told_before_any_pod_looks() -> None:
    spec = read_job(LEASED.replace("]}", "], path: /nowhere/at/all}"))
    assert [str(each) for each in faults_of_entry(spec)] == [
        "program.path = /nowhere/at/all: there is no such folder where the pods run"
    ]
    assert faults_of_entry(read_job(LEASED)) == []
