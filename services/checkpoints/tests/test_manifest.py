"""A manifest is written at once, read whole, and a damaged one is refused by name."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest
from stretto_checkpoints import manifest
from stretto_checkpoints.manifest import CheckpointManifest, ManifestError
from stretto_messages.values import CheckpointRef


def made(folder: Path) -> CheckpointManifest:
    url = f"file://{folder}/j/j-000001/manifest.json"
    reference = CheckpointRef(id="j-000001", url=url, samples=5, size_bytes=10, ps=1)
    return CheckpointManifest(reference, "j", 1.5, "ledger", ({"pod": "ps-0", "file": "a"},))


def test_round_trip_and_removal(tmp_path: Path) -> None:
    whole = made(tmp_path)
    whole.write()
    assert manifest.read(whole.checkpoint.url) == whole
    assert [file.name for file in (tmp_path / "j/j-000001").iterdir()] == ["manifest.json"]
    manifest.remove(whole.checkpoint.url)
    manifest.remove(whole.checkpoint.url)
    assert not (tmp_path / "j/j-000001").exists()


@pytest.mark.parametrize("damage", ["ledger", "parts", "version", "missing", "not json"])
def test_damage_is_named(tmp_path: Path, damage: str) -> None:
    whole = made(tmp_path)
    whole.write()
    file = tmp_path / "j/j-000001/manifest.json"
    document = json.loads(file.read_text())
    changes = {"ledger": {"ledger": "other"}, "parts": {"parts": []}, "version": {"version": 9}}
    if damage == "missing":
        file.unlink()
    elif damage == "not json":
        file.write_text("{")
    else:
        file.write_text(json.dumps(document | changes[damage]))
    with pytest.raises(ManifestError, match=r"j-000001/manifest\.json"):
        manifest.read(whole.checkpoint.url)


def test_store_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "j").write_text("a file where a folder should be")
    with pytest.raises(ManifestError, match="check the store"):
        made(tmp_path).write()


def test_later_checkpoints_are_found_the_highest_number_first(tmp_path: Path) -> None:
    """Method: manifests, one of them damaged, files of a checkpoint that never became whole, a number laid by a job."""
    for number in (1, 2, 3, 4, 10**12):
        name = f"j-{number:06d}"
        reference = CheckpointRef(
            id=name, url=f"file://{tmp_path}/j/{name}/manifest.json", samples=5, size_bytes=10, ps=1
        )
        CheckpointManifest(reference, "j", 10.0, "ledger", ({"pod": "ps-0", "file": "a"},)).write()
    (tmp_path / "j/j-000004/manifest.json").write_text("{")
    (tmp_path / "j/j-000005").mkdir()
    found = [each.checkpoint.id for each in manifest.later(f"file://{tmp_path}/j", 1)]
    assert found == ["j-000003", "j-000002"]
    assert [*manifest.later(f"file://{tmp_path}/j", 3)] == []
    assert [*manifest.later(f"file://{tmp_path}/none", 0)] == []


def test_a_job_that_fills_its_folder_with_manifests_costs_bounded_memory(tmp_path: Path) -> None:
    """Method: one manifest, whose lists take many times its size, under hundreds of names."""
    reference = CheckpointRef(id="j-000001", url=f"file://{tmp_path}/j/m/manifest.json", samples=5, size_bytes=10, ps=1)
    CheckpointManifest(reference, "j", 10.0, "ledger", ({"pod": "ps-0", "more": [{}] * 50_000},)).write()
    for number in range(1, 400):
        folder = tmp_path / f"j/j-{number:06d}"
        folder.mkdir()
        (folder / "manifest.json").hardlink_to(tmp_path / "j/m/manifest.json")
    tracemalloc.start()
    found = [each.checkpoint.url for each in manifest.later(f"file://{tmp_path}/j", 0)]
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found[0] == f"file://{tmp_path}/j/j-000399/manifest.json"
    assert len(found) == manifest.LATER_MAX
    assert peak_bytes < 20 << 20
