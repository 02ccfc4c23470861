"""`stretto whatif resize`: Jobs of Kueue in a file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from asking import RUNNER, assert_refused, changed, command
from stretto_cli.main import app
from test_whatif_examples import FILES

whatif, document_of = command("whatif resize -f -")
OBJECTS: dict[str, Any] = json.loads(FILES["job.json"])
ANNOTATIONS = "items.0.metadata.annotations"


def decided(document: Any, *options: str) -> Any:
    [found] = document_of(document, *options)["objects"]
    return found


def test_a_job_grows_into_the_room_of_its_queue_up_to_its_plan() -> None:
    found = decided(OBJECTS)
    assert (found["before"], found["size"], found["purpose"], found["room"]) == (1, 4, "grow", 3)
    assert "room for 3 more pods" in found["reason"]
    assert decided(OBJECTS, "--plan", "2")["size"] == 2
    assert decided(OBJECTS, "--plan", "1")["purpose"] == "none"


def test_quota_of_pods_that_still_end_is_not_free() -> None:
    other = changed(OBJECTS["items"][0], "metadata.uid", "another")
    other = changed(changed(other, "metadata.name", "other"), "metadata.annotations", {})
    other["status"] = {"terminating": 2}
    found = decided({"items": [*OBJECTS["items"], other]})
    assert (found["size"], found["room"]) == (2, 1)


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("items.0.status", {"active": 1, "ready": 0}, "a transition is open"),
        ("items.1.status", {}, "my-dlrm-1 of 1 is pending"),
        ("items.3.status.pendingWorkloads", 1, "others wait in its queue"),
        ("items.3.spec", {}, "quota for 0 more"),
    ],
)
def test_nothing_is_written_for_a_reason(path: str, value: object, told: str) -> None:
    found = decided(changed(OBJECTS, path, value))
    assert (found["size"], found["purpose"]) == (1, "none")
    assert told in found["reason"]


@pytest.mark.parametrize(
    ("annotation", "value", "told"),
    [
        ("stretto.dev/max", "many", "stretto.dev/max is 'many'; state a number of pods from 1 to 1000"),
        ("stretto.dev/min", "7", "stretto.dev/min is 7; give at most stretto.dev/max, which is 6"),
        ("stretto.dev/maximum", "7", "stretto.dev/maximum is '7'; leave it out; known are stretto.dev/size, "),
        ("kueue.x-k8s.io/elastic-job", "false", 'state "true"'),
        ("kueue.x-k8s.io/job-min-parallelism", "2", "leave it out"),
    ],
)
def test_a_job_that_cannot_be_sized_is_told_the_field_and_the_remedy(annotation: str, value: str, told: str) -> None:
    annotations = {**OBJECTS["items"][0]["metadata"]["annotations"], annotation: value}
    found = decided(changed(OBJECTS, ANNOTATIONS, annotations))
    assert not found["feasible"]
    assert told in found["reason"]


def test_a_job_that_planner_and_arbiter_could_not_know_is_told_so() -> None:
    named = changed(OBJECTS, "items.0.metadata.name", "My_DLRM")
    assert "name" in decided(named)["reason"]
    assert not decided(named)["feasible"]


def test_a_file_without_such_a_job_is_refused() -> None:
    assert_refused(whatif(changed(OBJECTS, ANNOTATIONS, {})), "stretto.dev/size")
    train_job = {"kind": "TrainJob", "metadata": {"name": "train"}, "spec": {"runtimePatches": []}}
    assert_refused(whatif(train_job), "a TrainJob is sized as the JobSet made of it")
    assert_refused(whatif("kind: {"), "FILE")
    assert_refused(whatif("[1]"), "object 1")


def test_the_page_asks_for_a_size_and_reads_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "pages" / "how-to" / "kueue.md").read_text()
    asked = "---\n".join(re.findall(r"```yaml\n(.*?)```", page, re.DOTALL))
    [typed] = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    Path("objects.yaml").write_text(
        asked.replace("name: my-dlrm", "name: gated").replace("name: gated", "name: my-dlrm", 1)
    )
    program, *arguments = typed.split()
    shown = RUNNER.invoke(app, [*arguments, "-o", "json"])
    assert program == "stretto"
    told = {each["object"]: each for each in json.loads(shown.stdout)["objects"]}
    assert told["Job/default/my-dlrm"]["reason"].startswith("a transition is open")
    assert (told["Job/default/gated"]["purpose"], told["Job/default/gated"]["size"]) == ("fit", 2)
    for name in ("JobSet/default/my-set", "RayCluster/default/my-ray"):
        assert (told[name]["feasible"], told[name]["before"]) == (True, 2)
        assert told[name]["reason"].startswith("a transition is open")
    assert len(told) == 4, "a TrainJob asks for its JobSet"


def test_a_set_grows_to_its_plan_without_a_queue() -> None:
    found = decided(json.loads(FILES["set.json"]))
    assert (found["before"], found["size"], found["purpose"], found["room"]) == (2, 6, "grow", None)


def test_a_ray_cluster_grows_to_its_plan_without_a_queue() -> None:
    group = {"groupName": "cpus", "replicas": 1, "minReplicas": 0, "maxReplicas": 3, "template": {}}
    status = dict.fromkeys(("desiredWorkerReplicas", "availableWorkerReplicas", "readyWorkerReplicas"), 1)
    meta = {"name": "ray", "annotations": {"stretto.dev/size": "auto"}}
    cluster = {"kind": "RayCluster", "metadata": meta, "spec": {"workerGroupSpecs": [group]}, "status": status}
    assert (decided(cluster)["before"], decided(cluster)["size"]) == (1, 3)


def test_a_train_job_is_told_where_to_ask() -> None:
    meta = {"name": "train", "annotations": {"stretto.dev/size": "auto"}}
    found = decided({"kind": "TrainJob", "metadata": meta, "spec": {"runtimeRef": {"name": "torch-distributed"}}})
    assert not found["feasible"]
    assert "spec.runtimePatches" in found["reason"]
