"""A job's files, code and packages come into a pod's own folder, and nothing of them leads out of it."""

from __future__ import annotations

import functools
import hashlib
import http.server
import importlib
import io
import socket
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import stretto.pod.code
from object_store import environment_of, s3_server
from stretto.errors import ModelRefused, PodError
from stretto.pod.code import bring
from stretto_wire.jobspec.jobfile import read_job
from stretto_wire.jobspec.spec import JobSpec
from stretto_wire.policy.allowed import Allowed
from trainer_harness import spec_of, wait_for

ENTRY = "ads_of_a_test.model:answer"
MODULE = b"def answer():\n    from ads_of_a_test import helper\n    return helper.VALUE\n"
HELPER = b"VALUE = 42\n"
SOURCES = {"ads_of_a_test/model.py": MODULE, "ads_of_a_test/helper.py": HELPER}


def job(code: dict[str, Any] | None = None, requirements: tuple[str, ...] = (), **more: Any) -> JobSpec:
    model = {"entry": ENTRY, "code": code, "requirements": list(requirements)}
    return JobSpec.parse({"name": "j", "model": model, "dataset": {"samples": 10}, **more})


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A pod's own folder; the import path is as before afterwards."""
    made = tmp_path / "pod"
    made.mkdir()
    before = [*sys.path]
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    yield made
    sys.path[:] = before
    for name in [name for name in sys.modules if name.partition(".")[0].endswith("_of_a_test")]:
        del sys.modules[name]


def brought(spec: JobSpec, folder: Path) -> Any:
    """Bring the code, import the entry and call it."""
    bring(spec, folder, imports_code=True, tell=lambda text: None)
    module, _, name = ENTRY.partition(":")
    return getattr(importlib.import_module(module), name)()


def packed(file: Path, files: dict[str, bytes] = SOURCES) -> Path:
    """Pack files into a wheel, zip or tar, by the end of its name."""
    if file.suffix in (".zip", ".whl"):
        with zipfile.ZipFile(file, "w") as archive:
            for name, content in files.items():
                archive.writestr(name, content)
        return file
    with tarfile.open(file, "w:gz" if file.name.endswith("gz") else "w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file


class TestCode:
    @pytest.mark.parametrize("name", ["ads-1-py3-none-any.whl", "ads.zip", "ads.tar", "ads.tar.gz"])
    def test_of_every_kind_of_archive_is_imported(self, tmp_path: Path, folder: Path, name: str) -> None:
        file = packed(tmp_path / name)
        assert brought(job({"url": str(file), "sha256": sha256(file)}), folder) == 42

    def test_of_a_folder_is_imported_where_it_is(self, tmp_path: Path, folder: Path) -> None:
        for name, content in SOURCES.items():
            (tmp_path / "src" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "src" / name).write_bytes(content)
        assert brought(job({"url": str(tmp_path), "subfolder": "src"}), folder) == 42
        assert not (folder / ".stretto").exists(), "nothing is copied"

    def test_of_a_real_git_archive_needs_no_name_of_its_top_folder(self, tmp_path: Path, folder: Path) -> None:
        git = functools.partial(subprocess.run, cwd=tmp_path / "repo", check=True, capture_output=True)
        (tmp_path / "repo/ads_of_a_test").mkdir(parents=True)
        for name, content in SOURCES.items():
            (tmp_path / "repo" / name).write_bytes(content)
        git(["git", "init", "--quiet"])
        git(["git", "add", "."])
        git(["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "-m", "a"])
        file = tmp_path / "ads.tar.gz"
        git(["git", "archive", "--prefix=ads-1.0/", "-o", str(file), "HEAD"])
        assert brought(job({"url": str(file)}), folder) == 42

    def test_is_seen_by_processes_that_the_pod_starts(self, tmp_path: Path, folder: Path) -> None:
        brought(job({"url": str(packed(tmp_path / "ads.zip"))}), folder)
        program = "import sys; from ads_of_a_test.model import answer; print(answer(), '/elsewhere' in sys.path)"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert done.stdout.split() == ["42", "True"]

    def test_of_a_url_is_fetched_again_until_the_server_is_back(
        self, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(stretto.pod.code, "_PAUSES_S", (0.01, 0.01))
        file = packed(tmp_path / "ads.tar.gz")
        with serving(tmp_path, failures=2) as url:
            assert brought(job({"url": f"{url}/ads.tar.gz", "sha256": sha256(file)}), folder) == 42

    def test_of_a_url_that_never_answers_is_not_the_users_fault(
        self, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(stretto.pod.code, "_PAUSES_S", (0.01, 0.01))
        with serving(tmp_path, failures=99) as url, pytest.raises(PodError, match=r"503 .*network\.egress"):
            brought(job({"url": f"{url}/ads.zip", "sha256": "0" * 64}), folder)

    def test_that_is_not_at_the_url_is(self, tmp_path: Path, folder: Path) -> None:
        with serving(tmp_path) as url, pytest.raises(ModelRefused, match=r"model\.code\.url = .*404"):
            brought(job({"url": f"{url}/absent.zip", "sha256": "0" * 64}), folder)

    def test_of_an_object_store_is_fetched(self, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A real S3 server, reached as a pod reaches one: by the variables of its job's secret."""
        (tmp_path / "s3/code").mkdir(parents=True)
        file = packed(tmp_path / "s3/code/ads.whl")
        with s3_server(tmp_path / "s3") as port:
            for name, value in environment_of(port).items():
                monkeypatch.setenv(name, value)
            assert brought(job({"url": "s3://code/ads.whl", "sha256": sha256(file)}), folder) == 42

    def test_with_another_checksum_is_refused_and_not_imported(self, tmp_path: Path, folder: Path) -> None:
        file = packed(tmp_path / "ads.zip")
        with pytest.raises(ModelRefused, match=rf"model\.code\.sha256 = 0+: .* has {sha256(file)}"):
            brought(job({"url": str(file), "sha256": "0" * 64}), folder)
        assert "ads_of_a_test" not in sys.modules

    @pytest.mark.parametrize(
        ("code", "said"),
        [
            ({"url": "/nowhere/at/all"}, "no such folder where the pods run"),
            ({"url": "/nowhere/ads.zip"}, "cannot be read: No such file"),
            ({"url": "ads.zip", "subfolder": "src"}, r"model\.code\.subfolder = src: .* it has ads_of_a_test"),
            ({"url": "damaged.zip"}, r"is no \.zip that can be read"),
            ({"url": "damaged.tar.gz"}, r"is no \.tar\.gz that can be read"),
        ],
    )
    def test_that_is_not_there_is_told_with_field_and_remedy(
        self, tmp_path: Path, folder: Path, code: dict[str, Any], said: str
    ) -> None:
        packed(tmp_path / "ads.zip")
        for name in ("damaged.zip", "damaged.tar.gz"):
            (tmp_path / name).write_bytes(b"not an archive")
        url = code["url"] if code["url"].startswith("/") else str(tmp_path / code["url"])
        with pytest.raises(ModelRefused, match=said):
            brought(job({**code, "url": url}), folder)


def tar_of(*members: tuple[str, bytes | None, str]) -> Callable[[Path], Path]:
    """Return what writes a tar of members: name, type (None: a file), target of a link."""

    def write(folder: Path) -> Path:
        with tarfile.open(folder / "hostile.tar", "w") as archive:
            for name, kind, target in members:
                member = tarfile.TarInfo(name)
                member.type = kind or tarfile.REGTYPE
                member.linkname = target
                member.size = 5 if kind is None else 0
                archive.addfile(member, io.BytesIO(b"owned"))
        return folder / "hostile.tar"

    return write


def zip_of(name: str, link: str = "") -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        with zipfile.ZipFile(folder / "hostile.zip", "w") as archive:
            member = zipfile.ZipInfo(name)
            member.external_attr = (0o120777 if link else 0o100644) << 16
            archive.writestr(member, link or "owned")
        return folder / "hostile.zip"

    return write


class TestAHostileArchive:
    @pytest.mark.parametrize(
        "write",
        [
            tar_of(("../victim", None, "")),
            tar_of(("/tmp/stretto-victim", None, "")),
            tar_of(("a/../../victim", None, "")),
            tar_of(("link", tarfile.SYMTYPE, "../..")),
            tar_of(("link", tarfile.SYMTYPE, "/etc")),
            tar_of(("a/b/up", tarfile.SYMTYPE, "../.."), ("out", tarfile.SYMTYPE, "a/b/up/..")),
            tar_of(("out", tarfile.SYMTYPE, "a/b/up/.."), ("a/b/up", tarfile.SYMTYPE, "../..")),
            tar_of(("link", tarfile.SYMTYPE, "."), ("link/victim", None, "")),
            tar_of(
                ("p/q/r/b", tarfile.SYMTYPE, "../../.."),
                ("p/q/r/x", tarfile.SYMTYPE, "b/../../.."),
                ("p/q/r/x/planted/evil", tarfile.SYMTYPE, "."),
            ),
            tar_of(("loop", tarfile.SYMTYPE, "loop")),
            tar_of(("hard", tarfile.LNKTYPE, "/etc/passwd")),
            tar_of(("device", tarfile.CHRTYPE, "")),
            tar_of(("pipe", tarfile.FIFOTYPE, "")),
            tar_of(("a", None, ""), ("a/b", None, "")),
            tar_of(("long" * 100, None, "")),
            tar_of(("long" * 100 + "/a", None, "")),
            tar_of(("long" * 100, tarfile.SYMTYPE, "a")),
            zip_of("../victim"),
            zip_of("/tmp/stretto-victim"),
            zip_of("a\\..\\..\\victim"),
            zip_of("link", link="../../.."),
        ],
    )
    def test_writes_nothing_outside_and_is_the_users_fault(
        self, tmp_path: Path, folder: Path, write: Callable[[Path], Path]
    ) -> None:
        """Names, links and chains of links that lead out of the folder, and what is no file."""
        before = {path for path in tmp_path.rglob("*") if folder not in path.parents}
        file = write(tmp_path)
        with pytest.raises(ModelRefused, match=r"model\.code\.url = "):
            brought(job({"url": str(file)}), folder)
        assert {path for path in tmp_path.rglob("*") if folder not in path.parents} == before | {file}
        assert not Path("/tmp/stretto-victim").exists()
        unpacked = folder / ".stretto/code"
        assert not [path for path in unpacked.rglob("victim") if not path.resolve().is_relative_to(unpacked)]

    @pytest.mark.parametrize("name", ["bomb.zip", "bomb.tar.gz"])
    def test_that_unpacks_to_too_much_is_refused(
        self, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        monkeypatch.setattr(stretto.pod.code, "UNPACKED_BYTES_MAX", 1000)
        file = packed(tmp_path / name, {"a": bytes(600), "b": bytes(600)})
        with pytest.raises(ModelRefused, match="unpacks to more than 1000 bytes"):
            brought(job({"url": str(file)}), folder)

    def test_with_too_many_files_is_refused(
        self, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(stretto.pod.code, "ENTRIES_MAX", 2)
        file = packed(tmp_path / "many.zip", {name: b"" for name in "abc"})
        with pytest.raises(ModelRefused, match="more than 2 files"):
            brought(job({"url": str(file)}), folder)

    def test_that_is_too_long_is_not_fetched_whole(
        self, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(stretto.pod.code, "ARCHIVE_BYTES_MAX", 1000)
        (tmp_path / "long.zip").write_bytes(bytes(2000))
        with serving(tmp_path) as url, pytest.raises(ModelRefused, match="more than 1000 bytes"):
            brought(job({"url": f"{url}/long.zip", "sha256": "0" * 64}), folder)

    def test_with_links_within_is_an_ordinary_one(self, tmp_path: Path, folder: Path) -> None:
        with tarfile.open(tmp_path / "ads.tar", "w") as archive:
            for name, content in SOURCES.items():
                member = tarfile.TarInfo(name.replace("model", "real"))
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
            link = tarfile.TarInfo("ads_of_a_test/model.py")
            link.type, link.linkname = tarfile.SYMTYPE, "real.py"
            archive.addfile(link)
        assert brought(job({"url": str(tmp_path / "ads.tar")}), folder) == 42


def wheel(folder: Path, name: str, version: str, code: bytes = b"", needs: str = "") -> None:
    """Write a wheel that pip installs."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" + (
        f"Requires-Dist: {needs}\n" if needs else ""
    )
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{name}.py", code)
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


class TestPackages:
    """Real pip, on a folder of wheels instead of an index."""

    @pytest.fixture(autouse=True)
    def index(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        found = tmp_path / "wheels"
        found.mkdir()
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(found))
        return found

    def test_are_installed_into_the_pods_folder_and_imported(self, index: Path, folder: Path, tmp_path: Path) -> None:
        """A dependency that the image has is not installed again."""
        wheel(index, "helper_of_a_test", "1.5", b"VALUE = 7\n", needs="numpy")
        code = {"ads_of_a_test/model.py": b"from helper_of_a_test import VALUE\ndef answer():\n    return VALUE\n"}
        file = packed(tmp_path / "ads.zip", code)
        assert brought(job({"url": str(file)}, ("helper-of-a-test>=1,<2",)), folder) == 7
        assert not [*folder.rglob("numpy")]
        import helper_of_a_test

        assert Path(str(helper_of_a_test.__file__)).is_relative_to(folder)

    @pytest.mark.parametrize(
        ("requirement", "said"),
        [("absent-of-a-test==1", "Could not find a version"), ("numpy==1.0.0", "Cannot install numpy")],
    )
    def test_that_cannot_be_installed_are_the_users_fault(
        self, index: Path, folder: Path, requirement: str, said: str
    ) -> None:
        """Neither is a package of the image replaced by another version."""
        wheel(index, "numpy", "1.0.0")
        before = importlib.metadata.version("numpy")
        with pytest.raises(ModelRefused, match=rf"model\.requirements = {requirement}: .*{said}.*name an image"):
            bring(job(None, (requirement,)), folder, imports_code=True, tell=lambda text: None)
        assert importlib.metadata.version("numpy") == before

    def test_of_an_index_that_does_not_answer_are_not_the_users_fault(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Method: nothing listens on the port of the index."""
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{port}/simple")
        monkeypatch.setattr(stretto.pod.code, "_PAUSES_S", (0.01,))
        with pytest.raises(PodError, match=r"model\.requirements = absent-of-a-test==1: no answer"):
            bring(job(None, ("absent-of-a-test==1",)), folder, imports_code=True, tell=lambda text: None)
        assert [each.levelname for each in caplog.records if "again in" in each.message] == ["WARNING"]

    def test_that_an_index_does_not_have_are(
        self, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("PIP_NO_INDEX")
        with serving(tmp_path) as url:
            monkeypatch.setenv("PIP_INDEX_URL", url)
            with pytest.raises(ModelRefused, match="Could not find a version"):
                bring(job(None, ("absent-of-a-test==1",)), folder, imports_code=True, tell=lambda text: None)

    def test_that_take_too_long_end_the_pod(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(stretto.pod.code, "_PIP_TIMEOUT_S", 0.001)
        with pytest.raises(PodError, match="pip has not ended within"):
            bring(job(None, ("absent-of-a-test==1",)), folder, imports_code=True, tell=lambda text: None)


def test_files_are_laid_in_every_pod_and_code_where_it_is_imported(tmp_path: Path, folder: Path) -> None:
    """A parameter server runs no code of the user, so it fetches none."""
    spec = job({"url": "/nowhere/at/all"}, files={"conf/model.yaml": "units: 64", "/etc/ads/x": "a", "note": "b"})
    bring(spec, folder, imports_code=False, tell=lambda text: None)
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == {
        "conf/model.yaml",
        "note",
    }
    assert (folder / "conf/model.yaml").read_text() == "units: 64"


def test_the_job_of_the_readme_is_one_and_needs_what_its_table_says() -> None:
    """The page's job is read as `stretto submit` reads it, and refused by the fields whose lists the page names."""
    page = (Path(__file__).parents[2] / "README.md").read_text()
    section = page.split("## Your code, data and files in the pods")[1].split("\n## ")[0]
    spec = read_job(section.split("```yaml\n")[1].split("```")[0])
    named = {found.field: found.remedy.rpartition(" ")[2] for found in Allowed().findings(spec)}
    assert named == {
        "environment_from.0": "STRETTO_ALLOWED_SECRETS",
        "volumes.0.claim": "STRETTO_ALLOWED_VOLUMES",
        "model.code.url": "STRETTO_ALLOWED_CODE",
        "model.requirements.0": "STRETTO_ALLOWED_REQUIREMENTS",
    }
    assert all(variable in section for variable in named.values())


class serving:
    """Serve a folder by HTTP; the first requests fail."""

    def __init__(self, folder: Path, failures: int = 0) -> None:
        left = [failures]

        class Handler(http.server.SimpleHTTPRequestHandler):
            def do_GET(self) -> None:
                if left[0]:
                    left[0] -= 1
                    self.send_error(503)
                    return
                super().do_GET()

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(
            ("127.0.0.1", 0), functools.partial(Handler, directory=str(folder))
        )

    def __enter__(self) -> str:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self._server.server_port}"

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


TASK = b"""
from pathlib import Path
from stretto.examples.wide_deep import WideDeep

class Ads(WideDeep):
    def __init__(self, embedding_dim, **arguments):
        categories = int(Path("conf/categories").read_text())
        super().__init__(categories=categories, embedding_dim=embedding_dim, **arguments)
"""


@pytest.mark.slow
def test_a_worker_trains_code_from_an_archive_with_a_file_of_its_job(tmp_path: Path, started: Any) -> None:
    """Real pods on a real bus: the archive holds the model, a file its size; neither is on the import path before."""
    file = packed(tmp_path / "ads.tar.gz", {"ads-1.0/ads_of_a_pod.py": TASK})
    model = {
        "entry": "ads_of_a_pod:Ads",
        "arguments": {"seed": 5, "hidden": "16"},
        "code": {"url": str(file), "sha256": sha256(file)},
    }
    cluster = started(spec_of(4096, model=model, files={"conf/categories": "2000"}))
    cluster.start_ps(0)
    worker = cluster.launch("worker-0", **cluster.own_folder("worker-0"))
    wait_for(lambda: cluster.finished() or worker.poll(), 90, "the last shard")
    assert worker.poll() in (None, 0), cluster.log("worker-0")
    assert cluster.books(0)[0].applied_samples == 4096


@pytest.mark.slow
def test_code_with_another_checksum_ends_a_worker_as_the_users_error(tmp_path: Path, started: Any) -> None:
    file = packed(tmp_path / "ads.zip")
    cluster = started(spec_of(4096, model={"code": {"url": str(file), "sha256": "0" * 64}}))
    assert cluster.launch("worker-0", **cluster.own_folder("worker-0")).wait(60) == 3
    assert "exit 3: model.code.sha256 = 0000" in cluster.log("worker-0").splitlines()[-1]
