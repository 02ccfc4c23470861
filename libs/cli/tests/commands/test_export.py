"""``stretto export``: the checkpoint that is taken, and the errors of the process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from installed_gateway import Installed, write_spec
from stretto_cli.commands.model.export import best_of, check_trusted, manifest_of
from stretto_cli.errors import BadInput
from stretto_messages.checkpoints import CheckpointFlushed
from stretto_messages.values import CheckpointRef

from tests.waits import wait_until


def checkpoint(id: str, stage: str = "stored", job: str = "ctr") -> dict[str, Any]:
    return {"id": id, "stage": stage, "checkpoint": {"id": id, "url": f"s3://store/{job}/{id}/manifest.json"}}


def view(status: str, *checkpoints: dict[str, Any]) -> dict[str, Any]:
    return {"name": "ctr", "status": status, "checkpoints": [*checkpoints]}


def test_a_finished_job_gives_its_final_checkpoint() -> None:
    found = view("finished", checkpoint("ctr-000003-final"), checkpoint("ctr-000002"))
    assert manifest_of(found, live=False).endswith("/ctr-000003-final/manifest.json")
    assert manifest_of(found, live=True).endswith("/ctr-000003-final/manifest.json")


def test_a_job_that_trains_gives_the_last_one_that_is_stored_and_its_own_when_asked() -> None:
    found = view(
        "training",
        checkpoint("old-000009-final", "restored", job="old"),
        checkpoint("ctr-000001"),
        checkpoint("ctr-000002", "restored"),
        checkpoint("ctr-000003", "cached"),
        checkpoint("ctr-000004", "failed"),
    )
    assert manifest_of(found, live=True).endswith("/ctr-000002/manifest.json")
    with pytest.raises(
        BadInput, match="ctr is training: its last checkpoint is ctr-000002; export that one with --live"
    ):
        manifest_of(found, live=False)


def test_the_best_model_is_that_of_its_checkpoint_and_who_has_none_is_told_why() -> None:
    found = view("training") | {"spec": {"best": None}, "best_checkpoint": None}
    with pytest.raises(BadInput, match="does not say which of its models is the best one"):
        best_of(found)
    with pytest.raises(BadInput, match="ctr has stored no checkpoint after an evaluation"):
        best_of(found | {"spec": {"best": {"metric": "auc"}}})
    assert best_of(found | {"best_checkpoint": checkpoint("ctr-000002")["checkpoint"]}).endswith("000002/manifest.json")


@pytest.mark.parametrize(("status", "remedy"), [("training", "take one with `stretto checkpoint ctr`"), ("failed", "")])
def test_a_job_without_a_checkpoint_is_refused(status: str, remedy: str) -> None:
    with pytest.raises(BadInput, match=f"ctr is {status} and has no stored checkpoint.*{remedy}"):
        manifest_of(view(status, checkpoint("old-000009-final", job="old")), live=True)


def test_code_that_somebody_else_chose_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "ads.py").touch()

    def check(by: str, path: Path | None = None, is_own: bool = True, entry: str = "ads:Model") -> None:
        found = {"name": "ctr", "submitted_by": by, "spec": {"model": {"entry": entry}}}
        check_trusted(found, None if path is None else str(path), is_own)

    check("admin")
    check("eve", tmp_path, is_own=False)
    for by, is_own in (("eve", True), ("admin", False), ("eve", False)):
        with pytest.raises(BadInput, match=f"ctr was submitted by {by}.*--path.*or --trust"):
            check(by, is_own=is_own)
    with pytest.raises(BadInput, match=r"has no subprocess, of which the job's model\.entry is subprocess:run"):
        check("eve", tmp_path, is_own=False, entry="subprocess:run")


def test_a_job_of_a_gateway_elsewhere_needs_trust(installed: Installed, tmp_path: Path) -> None:
    job, file = write_spec(tmp_path, model={"entry": "evil:Model", "path": str(tmp_path)})
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    installed.stretto("submit", file)
    words = ("export", job, "--to", str(tmp_path / "out"), "--checkpoint", f"file://{tmp_path}/none")
    refused = installed.stretto(*words, *installed.elsewhere())
    assert refused.exit_code == 2
    assert "was submitted by admin, and its code would run here" in " ".join(refused.stderr.split())
    for more in ((), ("--trust", *installed.elsewhere())):
        assert "cannot be read (FileNotFoundError" in " ".join(installed.stretto(*words, *more).stderr.split())


def test_what_the_process_refuses_is_told(installed: Installed, tmp_path: Path) -> None:
    job, file = write_spec(tmp_path)
    installed.stretto("submit", file)
    url = f"file://{tmp_path}/{job}/{job}-000001/manifest.json"
    reference = CheckpointRef(id=f"{job}-000001", url=url, samples=0, size_bytes=1, ps=1)
    installed.publish(CheckpointFlushed(job=job, checkpoint=reference, took_s=0.1))
    to = str(tmp_path / "out")
    wait_until(lambda: "--live" in installed.stretto("export", job, "--to", to).stderr)

    refused = installed.stretto("export", job, "--to", to, "--live")
    assert refused.exit_code == 2
    assert f"manifest {url} cannot be read (FileNotFoundError" in " ".join(refused.stderr.split())
    unknown = installed.stretto("export", "nobody", "--to", to)
    assert unknown.exit_code == 2
    assert "nobody" in unknown.stderr
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    without = installed.stretto("export", job, "--to", to, "--live", "--python", str(bare))
    assert without.exit_code == 2
    assert "has no stretto[train]: install it there, or run the command where it is" in without.stderr
    assert not (tmp_path / "out").exists()
