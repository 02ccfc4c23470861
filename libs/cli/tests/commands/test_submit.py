"""``stretto submit``: what is accepted, refused and said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from installed_gateway import Installed, write_spec
from stretto_cli.commands.jobs.submit import read_spec
from stretto_cli.main import app
from stretto_messages.actuator import JobFailed
from stretto_messages.checkpoints import CheckpointFailed
from stretto_wire import JobSpec
from stretto_wire.jobspec.jobfile import read_job
from typer.testing import CliRunner

from tests.live_bus import finished


def test_submit_says_what_a_job_that_starts_from_a_checkpoint_trains() -> None:
    from stretto_cli.commands.jobs.submit import _note

    def note(dataset: dict[str, Any], **checkpoint: str) -> str:
        document = {"name": "b", "model": {"entry": "m:M"}, "dataset": {"samples": 10, **dataset}}
        spec = JobSpec.parse({**document, "checkpoint": checkpoint})
        return _note(Path("b.yaml"), {"job": "b", "status": "submitted", "created": True}, spec)

    assert "\n" not in note({"name": "clicks/1"})
    assert "trains every sample: dataset.name is not stated" in note({}, restore_from="file:///a/manifest.json")
    assert "if the checkpoint is of dataset clicks/1" in note(
        {"name": "clicks/1"}, restore_from="file:///a/manifest.json"
    )


def test_the_example_jobs_are_valid() -> None:
    import yaml

    examples = Path(__file__).parents[3] / "trainer" / "stretto" / "examples"
    files = sorted(examples.glob("*.yaml"))
    assert files
    for file in files:
        spec = JobSpec.parse(yaml.safe_load(file.read_text()))
        assert spec.model.entry.startswith("stretto.examples.")


def test_a_job_from_submission_to_cancellation(installed: Installed, tmp_path: Path) -> None:
    name, file = write_spec(tmp_path)
    done = installed.stretto("submit", file, "-o", "json")
    assert done.exit_code == 0, done.stderr
    seq = json.loads(done.stdout)["seq"]
    assert json.loads(done.stdout) == {"job": name, "created": True, "seq": seq, "status": "submitted"}
    assert json.loads(installed.stretto("submit", file, "-o", "json").stdout)["created"] is False

    listed = json.loads(installed.stretto("jobs", "-o", "json").stdout)
    assert name in [job["name"] for job in listed]
    assert name in installed.stretto("jobs").stdout

    cancelled = installed.stretto("cancel", name, "--reason", "enough", "-o", "json")
    assert json.loads(cancelled.stdout)["status"] == "cancelled"
    followed = installed.stretto("submit", file, "--follow", "-o", "json")
    assert followed.exit_code == 1
    assert json.loads(followed.stdout)["status"] == "cancelled"
    assert f"{name} cancelled by admin: enough" in followed.stderr
    assert f"{name}: cancelled by admin: enough" in installed.stretto("jobs").stdout
    again = installed.stretto("cancel", name)
    assert f"{name} cancelled; no checkpoint of it is stored: it had trained nothing" in again.stdout


def test_following_a_job_whose_result_was_not_stored_fails_with_reason_and_remedy(
    installed: Installed, tmp_path: Path
) -> None:
    name, file = write_spec(tmp_path)
    installed.stretto("submit", file)
    full = CheckpointFailed(job=name, id=f"{name}-000001-final", reason="not stored: No space left on device")
    installed.publish(full, finished(name))
    followed = installed.stretto("submit", file, "--follow")
    assert followed.exit_code == 1
    told = " ".join(followed.stderr.split())
    assert f"{name} finished, but the trained parameters are lost" in told
    assert "No space left on device; mend the store and submit the job under another name" in told
    assert installed.stretto("watch", name).exit_code == 1
    assert installed.stretto("watch", name, "--once").exit_code == 0


def test_a_job_is_read_from_a_pipe(installed: Installed) -> None:
    text = yaml.safe_dump({"name": "piped", "model": {"entry": "m:M"}, "dataset": {"samples": 1}})
    assert json.loads(installed.stretto("submit", "-", "-o", "json", input=text).stdout)["job"] == "piped"


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("name: x\nmodel: {entry: 'm:M'}\ndataset: {samples: 0}\n", "dataset.samples"),
        ("name: x\nmodel: {entry: 'm:M'}\ndataset: {samples: 1}\npirority: 3\n", "pirority"),
        ("name: [", "line 1, column 8: (document) = name: [: not YAML"),
        ("just words", "(document) = just words: a mapping with the fields"),
        ("name: x\nname: y\n", "name = line 1 and line 2: stated twice"),
        (
            "name: x\nmodel: {entry: 'm:M'}\ndataset: {samples: 1}\nenvironment: {AWS_SECRET_ACCESS_KEY: k}\n",
            "environment.AWS_SECRET_ACCESS_KEY = (not shown)",
        ),
    ],
)
def test_bad_input_is_exit_2_with_the_field_on_stderr_and_nothing_on_stdout(
    installed: Installed, tmp_path: Path, text: str, field: str
) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    refused = installed.stretto("submit", str(file))
    assert refused.exit_code == 2
    assert refused.stdout == ""
    assert field in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_file_that_cannot_be_read_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9\n")
    endless = ("/dev/zero", "larger than 4 MiB, the most that is read")
    for file, words in (("none.yaml", "No such file"), ("", "Is a directory"), ("latin.yaml", "not UTF-8"), endless):
        refused = CliRunner().invoke(app, ["submit", str(tmp_path / file)])
        assert refused.exit_code == 2
        assert words in refused.stderr
        assert "Errno" not in refused.stderr


def test_all_that_is_wrong_is_told_at_once_and_in_json_as_a_document(installed: Installed, tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("name: x\nmodel: {entry: 'm:M', optimiser: adam}\ndataset: {samples: 0}\npriority: -1\n")
    told = installed.stretto("submit", str(file)).stderr
    assert "3 things are wrong" in told
    assert [line.partition(" = ")[0].strip() for line in told.splitlines()[1:]] == [
        "line 2, column 23: model.optimiser",
        "line 3, column 11: dataset.samples",
        "line 4, column 1: priority",
    ]
    error = json.loads(installed.stretto("submit", str(file), "-o", "json").stderr)["error"]
    assert (error["status"], error["count"]) == (2, 3)
    assert [(one["field"], one["line"]) for one in error["errors"]] == [
        ("model.optimiser", 2),
        ("dataset.samples", 3),
        ("priority", 4),
    ]


def test_who_submits_a_job_that_is_over_is_told_so_and_how_to_train_it_again(
    installed: Installed, tmp_path: Path
) -> None:
    name, file = write_spec(tmp_path)
    installed.stretto("submit", file)
    assert f"{name} was submitted before and is submitted" in installed.stretto("submit", file).stdout
    installed.publish(JobFailed(job=name, reason="over"))
    again = installed.stretto("submit", file)
    assert (again.exit_code, "nothing was started" in again.stdout) == (0, True)
    assert "is failed" in again.stdout
    assert f"--name {name}-2" in " ".join(again.stdout.split())
    renamed = json.loads(installed.stretto("submit", file, "--name", f"{name}-2", "-o", "json").stdout)
    assert (renamed["job"], renamed["created"]) == (f"{name}-2", True)
    assert installed.stretto("submit", file, "--name", "Not A Name").exit_code == 2
    _, other = write_spec(tmp_path, name, priority=2)
    assert "has failed" in installed.stretto("submit", other).stderr


def test_a_name_that_is_taken_is_exit_2_with_the_remedy(installed: Installed, tmp_path: Path) -> None:
    name, file = write_spec(tmp_path)
    installed.stretto("submit", file)
    _, other = write_spec(tmp_path, name, priority=2)
    refused = installed.stretto("submit", other)
    assert refused.exit_code == 2
    assert "choose another name" in refused.stderr


def test_a_relative_path_of_the_model_is_one_beside_the_file_where_pods_see_it(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    model = {"entry": "m:M", "path": "src"}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({"name": "a", "model": model, "dataset": {"samples": 1}}))
    sent = {here: read_job(read_spec(tmp_path / "job.yaml", here=here)).model.path for here in (True, False)}
    assert sent == {True: str(tmp_path / "src"), False: "src"}
    (tmp_path / "src").rmdir()
    assert read_job(read_spec(tmp_path / "job.yaml", here=True)).model.path == "src", "the gateway says what is wrong"
