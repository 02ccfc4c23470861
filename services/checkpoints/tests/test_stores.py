"""No checkpoint is read, written or removed outside the stores of the installation, or through a link of a job."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from deep_folders import lay_deep
from hypothesis import example, given
from hypothesis import strategies as st
from stretto_checkpoints import manifest
from stretto_checkpoints.manifest import CheckpointManifest, ManifestDamaged, ManifestError
from stretto_checkpoints.settings import CheckpointsSettings
from stretto_checkpoints.stores import StoreRefused, Stores
from stretto_checkpoints.taker import Taker
from stretto_core.checkpoints.state import Attempt, CheckpointState, Restore
from stretto_messages.values import CheckpointRef
from stretto_wire.policy.allowed import Allowed

STORES = Stores("file:///store", Allowed(stores=("s3://bucket/ads",), restores=("file:///shared/*",)))


def whole(store: Path, job: str = "victim") -> CheckpointManifest:
    url = f"file://{store}/{job}/{job}-000001/manifest.json"
    reference = CheckpointRef(id=f"{job}-000001", url=url, samples=5, size_bytes=10, ps=1)
    return CheckpointManifest(reference, job, 1.5, "the victim's ledger", ({"pod": "ps-0", "file": "a"},))


@pytest.fixture
def victim(tmp_path: Path) -> CheckpointManifest:
    made = whole(tmp_path)
    made.write()
    (tmp_path / "victim/victim-000001/ps-0.image").write_text("parameters")
    (tmp_path / "hostile").mkdir()
    return made


def files(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def linked(store: Path, kind: str) -> str:
    """Lay a link of the hostile job to the victim's checkpoint; return the URL of the manifest that it then has."""
    own = store / "hostile/hostile-000001"
    if kind == "checkpoint":
        own.symlink_to("../victim/victim-000001")
    else:
        own.mkdir()
        (own / kind).symlink_to("../../victim/victim-000001/manifest.json")
    return f"file://{own}/manifest.json"


@pytest.mark.parametrize("kind", ["checkpoint", "manifest.json", "manifest.json.part"])
def test_a_link_of_a_job_leads_to_nobody_elses_checkpoint(
    tmp_path: Path, victim: CheckpointManifest, kind: str
) -> None:
    """The service writes, reads and removes the hostile job's checkpoint; the victim's is untouched and unread.

    Method: the job's servers have made the checkpoint's folder, its manifest or the draft of that a link.
    """
    before = files(tmp_path / "victim")
    url = linked(tmp_path, kind)
    if kind != "manifest.json.part":
        with pytest.raises(ManifestError) as refused:
            manifest.read(url)
        assert "the victim's ledger" not in str(refused.value)
    own = whole(tmp_path, "hostile")
    if kind == "checkpoint":
        with pytest.raises(ManifestError):
            own.write()
    else:
        own.write()
        assert manifest.read(url) == own
    manifest.remove(url)
    assert not os.path.lexists(tmp_path / "hostile/hostile-000001")
    lay_deep(tmp_path / "hostile/hostile-000001")
    manifest.remove(url)
    assert not os.path.lexists(tmp_path / "hostile/hostile-000001")
    assert files(tmp_path / "victim") == before
    assert manifest.read(victim.checkpoint.url) == victim


def test_a_pipe_or_a_huge_file_in_the_place_of_a_manifest_stops_nobody(
    tmp_path: Path, victim: CheckpointManifest
) -> None:
    """Neither is waited for or read whole."""
    folder = tmp_path / "hostile/hostile-000001"
    folder.mkdir()
    os.mkfifo(folder / "manifest.json")
    with pytest.raises(ManifestError, match="not a plain file"):
        manifest.read(f"file://{folder}/manifest.json")
    (folder / "manifest.json").unlink()
    with (folder / "manifest.json").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ManifestDamaged, match="more than"):
        manifest.read(f"file://{folder}/manifest.json")


jobs = st.sampled_from(["j", "ads", "..", "victim", ""])
urls = st.lists(
    st.sampled_from(["store", "ads", "j", "victim", "shared", "..", "", "%2e%2e", "x", "manifest.json"])
).map("/".join)


@example("j", "S3://bucket/", "ads/j/x/manifest.json")
@example("j", "s3://bucket/", "/ads/store")
@given(jobs, st.sampled_from(["file:///", "s3://bucket/", "file://", "S3://bucket/", "s3://a@bucket/"]), urls)
def test_no_url_outside_the_stores_is_used(job: str, begin: str, rest: str) -> None:
    """Whatever is accepted begins with a store, and for what is written or removed, with the job's own folder in it."""
    url = begin + rest
    own = start = True
    try:
        STORES.check_own(job, url)
    except StoreRefused:
        own = False
    try:
        STORES.check_start(job, url)
    except StoreRefused:
        start = False
    if own:
        assert url.startswith((f"file:///store/{job}/", f"s3://bucket/ads/{job}/"))
    if own or start:
        assert ".." not in url.split("/")
        assert url.lower().startswith(("file:///", "s3://bucket/ads/"))
        first = url.removeprefix("file:///").lstrip("/").split("/")[0]
        assert not url.startswith("file:") or first in ("store", "shared")


class Edge:
    """Keeps what is observed; nobody is there to be asked."""

    def __init__(self) -> None:
        self.observed: list[Any] = []
        self.heard = asyncio.Event()

    def server_now(self) -> float:
        return 1.0

    async def observe(self, key: str, message: Any, trace: str = "") -> None:
        self.observed.append(message)
        self.heard.set()


async def refusal(state: CheckpointState, settings: CheckpointsSettings) -> str:
    edge: Any = Edge()
    running = asyncio.create_task(Taker("j", state, edge, settings).run())
    await asyncio.wait_for(edge.heard.wait(), 60)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return edge.observed[0].reason


async def test_the_answer_about_a_foreign_place_tells_nothing_of_it(tmp_path: Path) -> None:
    """A job whose message came past the gateway learns the same of a file that is there and of one that is not."""
    there = tmp_path / "foreign/x/x-1/manifest.json"
    there.parent.mkdir(parents=True)
    there.write_text(json.dumps({"secret": "canary"}))
    settings = CheckpointsSettings(state_folder=tmp_path / "state")
    reasons: list[str] = []
    for url in (f"file://{there}", f"file://{there.with_name('absent.json')}"):
        state = CheckpointState(job="j", folder=f"{settings.store}/j", restore=Restore("j-restore-1", url, [0], 0))
        reasons.append((await refusal(state, settings)).replace(url, "URL"))
    assert reasons[0] == reasons[1]
    assert "STRETTO_ALLOWED_RESTORES" in reasons[0]
    assert "canary" not in reasons[0]


async def test_nothing_is_written_or_removed_outside_the_stores(tmp_path: Path) -> None:
    """A folder that no list allows is neither made, nor written to, nor removed."""
    foreign = tmp_path / "foreign/j/j-000001"
    foreign.mkdir(parents=True)
    (foreign / "data").write_text("somebody's")
    url = f"file://{foreign}/manifest.json"
    state = CheckpointState(
        job="j", folder=f"file://{tmp_path}/foreign/j", attempt=Attempt("j-000001", url, [0], 1.0, False), expired=[url]
    )
    reason = await refusal(state, CheckpointsSettings(state_folder=tmp_path / "state"))
    assert "STRETTO_ALLOWED_STORES" in reason
    assert files(tmp_path / "foreign") == {"j/j-000001/data": b"somebody's"}


def test_a_store_that_could_be_read_in_two_ways_is_no_store() -> None:
    """The installation's own store has one spelling, too."""
    assert CheckpointsSettings(store_url="S3://Bucket/a/").store == "s3://bucket/a"
    with pytest.raises(ValueError, match="plain URL"):
        CheckpointsSettings(store_url="s3://user:key@bucket/a")
