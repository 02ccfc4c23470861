"""Object stores as services and parameter servers open them: a real S3 server, and the packages that images have."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.utils import canonicalize_name
from stretto.server.image_file import Part
from stretto_actuator.backend import BackendError
from stretto_actuator.pod.logs import PodLogs
from stretto_checkpoints import manifest
from stretto_checkpoints.manifest import CheckpointManifest, ManifestDamaged
from stretto_messages.actuator import LOG_PART_MAX
from stretto_messages.values import CheckpointRef
from stretto_runtime import SettingsFault
from stretto_runtime.process import store_check
from stretto_runtime.process.store_check import StoreCheck
from stretto_wire import EVENTS_KEPT_S
from stretto_wire.jobspec.training_code import REMOTE
from stretto_wire.stores import filesystems
from stretto_wire.stores.filesystems import OBJECT_STORES, check_library, check_store, open_store

from tests.supply_chain import pins

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "libs/trainer/tests/helpers"))  # the server of the readers' tests

from object_store import Proxy, environment_of, folders, s3_server  # noqa: E402


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run a server with one bucket; clients find it by the environment, as those of a service do."""
    (tmp_path / "bucket").mkdir()
    with s3_server(tmp_path) as port:
        proxy = Proxy(port)
        proxy.fault = folders
        for name, value in environment_of(proxy.port).items():
            monkeypatch.setenv(name, value)
        filesystems._object_store.cache_clear()
        yield "s3://bucket"
        filesystems._object_store.cache_clear()
        proxy.close()


def test_a_store_that_can_be_used_is_written_read_and_left_as_it_was(bucket: str) -> None:
    assert check_store(f"{bucket}/stretto") == ""
    filesystem, path = open_store(f"{bucket}/stretto")
    with pytest.raises(FileNotFoundError):
        filesystem.ls(path)


def test_a_store_that_cannot_be_used_is_told_with_its_reason(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An absent bucket, a wrong key, and a folder that this user may not write."""
    assert "NO_SUCH_BUCKET" in check_store("s3://absent/stretto")
    assert "check its URL, its credentials" in check_store("s3://absent/stretto")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    filesystems._object_store.cache_clear()
    refused = check_store(f"{bucket}/stretto")
    assert "cannot be written" in refused
    assert "another" not in refused
    assert "cannot be written" in check_store("file:///proc/stretto")


def whole(url: str, samples: int = 5) -> CheckpointManifest:
    reference = CheckpointRef(
        id="ads-000001", url=f"{url}/ads/ads-000001/manifest.json", samples=samples, size_bytes=10, ps=1
    )
    return CheckpointManifest(reference, "ads", 1.5, "ledger", ({"pod": "ps-0", "file": "a"},))


def test_a_manifest_is_written_listed_replaced_read_and_removed(bucket: str) -> None:
    """The calls of the checkpoints service; a reader never sees half of one."""
    whole(bucket).write()
    whole(bucket, samples=6).write()
    url = whole(bucket).checkpoint.url
    assert manifest.read(url).checkpoint.samples == 6
    assert [each.checkpoint.url for each in manifest.later(f"{bucket}/ads", 0)] == [url]
    assert [*manifest.later(f"{bucket}/absent", 0)] == []
    manifest.remove(url)
    with pytest.raises(ManifestDamaged, match="is not there"):
        manifest.read(url)


def test_parts_of_an_image_are_renamed_whole_and_read_by_ranges(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls of a parameter server. Method: also as if the image were too large to be copied by one request."""
    for most in (filesystems.COPIED_AT_ONCE_BYTES, 10):
        monkeypatch.setattr(filesystems, "COPIED_AT_ONCE_BYTES", most)
        part = Part("ps-0", "ps-0.image", f"{bucket}/ads/ads-000001/ps-0.image", 12 << 20, "")
        filesystem, path = open_store(part.url)
        with filesystem.open(f"{path}.part", "wb") as file:
            for number in range(12):
                file.write(bytes([number]) * (1 << 20))
        assert filesystem.size(f"{path}.part") == part.size_bytes
        filesystem.mv(f"{path}.part", path)
        assert filesystem.cat_file(path, start=(1 << 20) - 1, end=(1 << 20) + 1) == b"\x00\x01"
        assert not filesystem.exists(f"{path}.part")


class Backend:
    """A place of pods with the log of one pod, which can be gone."""

    def __init__(self, text: str) -> None:
        self.text = text

    async def logs(self, job: str, pod: str, lines: int) -> str:
        if not self.text:
            raise BackendError(f"the log of {job}/{pod} cannot be read")
        return self.text


@pytest.mark.parametrize("kind", ["bucket", "folder"])
async def test_a_log_is_read_part_by_part_from_the_store_after_its_pod(kind: str, bucket: str, tmp_path: Path) -> None:
    """Keep a log of more than a megabyte, let the pod go, and read it as the gateway does."""
    backend: Any = Backend("".join(f"line {number}\n" for number in range(200_000)))
    store = bucket if kind == "bucket" else f"file://{tmp_path}/store"
    logs = PodLogs(backend, store, EVENTS_KEPT_S)
    await logs.keep("ads", "worker-0")
    await logs.close()
    whole, backend.text = backend.text, ""
    read, skip, more = "", 0, True
    while more:
        found = await logs.part("ads", "worker-0", skip)
        assert found is not None
        part, more = found
        assert 0 < len(part) <= LOG_PART_MAX
        read, skip = part + read, skip + len(part)
    assert len(read) == 1 << 20
    assert whole.endswith(read)
    assert await logs.part("ads", "worker-1", 0) is None
    assert await PodLogs(backend, "", EVENTS_KEPT_S).part("ads", "worker-0", 0) is None, (
        "without a store nothing is kept"
    )


@pytest.mark.parametrize("kind", ["bucket", "folder"])
async def test_logs_go_when_they_are_as_old_as_events_that_go(kind: str, bucket: str, tmp_path: Path) -> None:
    """Method: the clock of the service, now and a month on."""
    backend: Any = Backend("last words")
    store = bucket if kind == "bucket" else f"file://{tmp_path}/store"
    logs = PodLogs(backend, store, EVENTS_KEPT_S)
    await logs.keep("ads", "worker-0")
    await logs.close()
    backend.text = ""
    await logs.clear(time.time())
    assert await logs.part("ads", "worker-0", 0) == ("last words", False), "younger ones stay"
    a_month_later = PodLogs(backend, store, EVENTS_KEPT_S)
    await a_month_later.clear(time.time() + EVENTS_KEPT_S + 60)
    assert await a_month_later.part("ads", "worker-0", 0) is None


async def test_a_store_that_is_away_costs_the_log_alone(tmp_path: Path) -> None:
    backend: Any = Backend("last words")
    logs = PodLogs(backend, "file:///proc/stretto", EVENTS_KEPT_S)
    await logs.keep("ads", "worker-0")
    await logs.close()
    assert await logs.part("ads", "worker-0", 0) == ("last words", False), "from where the pod ran"
    backend.text = ""
    assert await logs.part("ads", "worker-0", 0) is None


async def test_a_service_says_what_its_store_lacks_until_it_can_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_check, "AGAIN_S", 0.01)
    answers = iter(["the store s3://bucket cannot be written (403)", ""])
    check = StoreCheck("s3://bucket", lambda url: next(answers))
    seen = {check.lacks}
    check.start()
    while check.lacks:
        await asyncio.sleep(0)
        seen.add(check.lacks)
    await check.stop()
    assert seen == {"the store is being checked", "the store s3://bucket cannot be written (403)", ""}


def test_a_store_whose_library_is_missing_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal names the package, and comes before the first checkpoint fails."""
    monkeypatch.setattr(filesystems.importlib.util, "find_spec", lambda name: None if name == "pyarrow" else object())
    with pytest.raises(SettingsFault, match=r"STRETTO_STORE_URL=s3://bucket .*pyarrow; install stretto-wire\[stores\]"):
        StoreCheck("s3://bucket")
    with pytest.raises(SettingsFault, match="install"):
        StoreCheck("sftp://host/folder")


def documented_schemes() -> set[str]:
    """Return the schemes of object stores that pages, values and examples name."""
    texts = [
        *ROOT.glob("**/README.md"),
        ROOT / "charts/stretto/values.yaml",
        *ROOT.glob("charts/stretto/templates/*.*"),
    ]
    own = [path for path in texts if ".venv" not in path.parts]
    found = {scheme for path in own for scheme in re.findall(r"\b([a-z0-9]+)://", path.read_text())}
    return found & {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "r2", "hdfs"}


@pytest.mark.parametrize("image", ["checkpoints", "actuator", "trainer"])
def test_every_store_that_is_named_in_the_documents_can_be_opened_by_the_images(image: str) -> None:
    named = documented_schemes()
    assert "s3" in named
    assert named <= {*OBJECT_STORES}
    assert {*OBJECT_STORES} <= {*REMOTE}
    packages = {canonicalize_name(name) for name in pins.read(pins.OF_IMAGES / f"{image}.txt")}
    assert {"fsspec", "pyarrow"} <= packages
    for scheme in OBJECT_STORES:
        check_library(f"{scheme}://bucket")


def test_clients_of_every_object_store_are_in_the_package() -> None:
    """A wheel of pyarrow without one of them would be found here, not at the first checkpoint."""
    from pyarrow import fs

    assert all((fs.S3FileSystem, fs.GcsFileSystem, fs.AzureFileSystem))
