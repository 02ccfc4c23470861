"""The part of a pod's own folder that its job brings: small files, training code, and packages that pip installs.

A pod does this after it has joined, so that it answers pings meanwhile, and before it imports the user's code. Failures
that another try would not help are the user's.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import http.client
import importlib
import importlib.util
import logging
import lzma
import os
import re
import shutil
import site
import stat
import subprocess
import sys
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from posixpath import dirname, join, normpath
from typing import IO, TypeVar

from stretto_wire.jobspec.spec import JobSpec, ModelSpec
from stretto_wire.jobspec.training_code import ARCHIVES, CodeSpec, is_remote

from ..errors import DataError, ModelRefused, PodError

log = logging.getLogger("stretto.pod")
T = TypeVar("T")

OWN = ".stretto"
ARCHIVE_BYTES_MAX = 1 << 30
UNPACKED_BYTES_MAX = 4 << 30
ENTRIES_MAX = 100_000
"""Bounds of code; data belong into a volume or a store (taste)."""
_CHUNK_BYTES = 1 << 20
_HTTP_TIMEOUT_S = 60.0
_PAUSES_S = (1.0, 2.0, 4.0, 8.0)
"""Pauses before further attempts at a server that does not answer."""
_AGAIN = frozenset({408, 425, 429})
_PIP_TIMEOUT_S = 1800.0
"""Bound of one attempt of pip, which may build packages (taste)."""
_PIP_RETRIES = 2
_NO_ANSWER = re.compile(
    r"Retry\(total=0|Max retries exceeded|(Connect|Read)Timeout|ProtocolError|IncompleteRead|Connection (reset|refused|"
    r"aborted)|name resolution"
)
"""Texts of pip where an index did not answer; the first is its last retry."""
_PATH = "PYTHONPATH"


def bring(spec: JobSpec, folder: Path, imports_code: bool, tell: Callable[[str], None]) -> None:
    """Lay the job's files and, where the pod imports the user's code, that code and its packages.

    Raises:
        ModelRefused: the user has to change the job.
        PodError: the code could not be fetched, or the folder not be written.
    """
    try:
        lay_files(spec, folder)
        if not imports_code:
            return
        if spec.model.requirements:
            tell(f"installing {len(spec.model.requirements)} packages")
            add_packages(install(spec.model.requirements, folder / OWN))
        if spec.model.code is not None:
            tell("fetching the model's code")
            add_code(code_folders(spec.model, spec.model.code, folder / OWN))
    except OSError as error:
        raise PodError(
            f"the pod's folder {folder} cannot be filled: {error}; make room there, or let the pod write"
        ) from error


def lay_files(spec: JobSpec, folder: Path) -> None:
    """Write the files of the job that have relative places. Raises OSError."""
    for path, text in spec.files.items():
        if not path.startswith("/"):
            place = folder / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)


# code --------------------------------------------------------------------------------------------------------------


def code_folders(model: ModelSpec, code: CodeSpec, folder: Path) -> list[Path]:
    """Return the folders of the code for the import path; an archive is unpacked below ``folder``.

    Raises ModelRefused, PodError.
    """
    if not is_remote(code.url) and not code.url.endswith(ARCHIVES):
        root = Path(code.url)
        if not root.is_dir():
            raise ModelRefused(f"model.code.url = {code.url}: there is no such folder where the pods run")
        return [_subfolder(code, root)]
    folder.mkdir(parents=True, exist_ok=True)
    file = _fetched(code, folder / f"archive{_suffix(code.url)}")
    root = folder / "code"
    unpack(code.url, file, root)
    if is_remote(code.url):
        file.unlink()
    if code.url.endswith(".whl"):
        return [_subfolder(code, root), *(each for each in root.glob("*.data/*lib") if each.is_dir())]
    return [_subfolder(code, _without_top(root, model.entry))]


def add_code(folders: list[Path]) -> None:
    """Put folders in front of the import path of this process and of its child processes."""
    texts = [str(folder) for folder in folders]
    sys.path[:0] = texts
    os.environ[_PATH] = os.pathsep.join([*texts, *filter(None, [os.environ.get(_PATH, "")])])
    importlib.invalidate_caches()


def _suffix(url: str) -> str:
    return next(each for each in ARCHIVES if url.endswith(each))


def _without_top(root: Path, entry: str) -> Path:
    """Return the folder with the code: an archive of git has everything in one folder."""
    module = entry.partition(":")[0].partition(".")[0]
    inside = [*root.iterdir()]
    is_there = (root / module).exists() or (root / f"{module}.py").exists()
    return inside[0] if not is_there and len(inside) == 1 and inside[0].is_dir() else root


def _subfolder(code: CodeSpec, root: Path) -> Path:
    if code.subfolder is None:
        return root
    found = root / code.subfolder
    if not found.is_dir():
        there = ", ".join(sorted(each.name for each in root.iterdir())[:20]) or "nothing"
        raise ModelRefused(f"model.code.subfolder = {code.subfolder}: no such folder in {code.url}; it has {there}")
    return found


def _fetched(code: CodeSpec, file: Path) -> Path:
    """Return the archive, fetched if it is elsewhere, after its checksum was compared."""
    if is_remote(code.url):
        digest = _download(code.url, file)
    else:
        file = Path(code.url)
        try:
            with file.open("rb") as source:
                digest = hashlib.file_digest(source, "sha256").hexdigest()
        except OSError as error:
            raise ModelRefused(f"model.code.url = {code.url} cannot be read: {error.strerror}") from error
    if code.sha256 is not None and digest != code.sha256:
        raise ModelRefused(
            f"model.code.sha256 = {code.sha256}: {code.url} has {digest}; state that, or name the file that was meant"
        )
    return file


def _download(url: str, file: Path) -> str:
    """Fetch a file; return its SHA-256."""
    if not url.startswith(("http://", "https://")):
        from ..readers.places import locate  # loads the clients of object stores

        try:
            store, path = locate(url)
            with store.ask(url, lambda: store.filesystem.open_input_stream(path)) as source:
                return _save(url, source, file)
        except DataError as error:
            raise ModelRefused(f"model.code.url = {url}: {error}") from error
    request = urllib.request.Request(url, headers={"User-Agent": "stretto"})
    named = f"model.code.url = {url}"

    def fetch() -> str:
        try:
            with urllib.request.urlopen(request, timeout=_HTTP_TIMEOUT_S) as source:
                return _save(url, source, file)
        except urllib.error.HTTPError as error:
            why = f"{error.code} {error.reason}"
            if error.code < 500 and error.code not in _AGAIN:
                raise ModelRefused(f"{named}: the server answers {why}; check the URL") from error
            raise _NotAnswered(why) from error
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
            raise _NotAnswered(str(getattr(error, "reason", error))) from error

    return _until_answered(named, fetch)


class _NotAnswered(Exception):
    """A server that did not answer an attempt; the next one may succeed."""


def _until_answered(named: str, attempt: Callable[[], T]) -> T:
    """Repeat an attempt while the server does not answer, with pauses. Raises PodError in the end."""
    for pause_s in _PAUSES_S:
        try:
            return attempt()
        except _NotAnswered as silent:
            log.warning("%s: %s; again in %.0f s", named, silent, pause_s)
            time.sleep(pause_s)
    try:
        return attempt()
    except _NotAnswered as silent:
        raise PodError(
            f"{named}: no answer: {silent}; on Docker and Kubernetes pods get out by network.egress"
        ) from silent


def _save(url: str, source: IO[bytes], file: Path) -> str:
    digest = hashlib.sha256()
    size = 0
    with file.open("wb") as out:
        while chunk := source.read(_CHUNK_BYTES):
            size += len(chunk)
            if size > ARCHIVE_BYTES_MAX:
                raise ModelRefused(
                    f"model.code.url = {url} has more than {ARCHIVE_BYTES_MAX} bytes; keep data in a volume or a store"
                )
            digest.update(chunk)
            out.write(chunk)
    return digest.hexdigest()


# archives ----------------------------------------------------------------------------------------------------------


_UNREADABLE = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError, ValueError),
    *(RuntimeError, FileExistsError, IsADirectoryError, NotADirectoryError),
)
"""Errors of damaged archives, of encrypted ones, of loops of links, and of two entries for one place."""
_UNPLACEABLE = frozenset({errno.ENAMETOOLONG, errno.EILSEQ})
"""Errors of names that the file system does not take."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of an archive. ``link``: the target if it is a symbolic link. ``open`` reads a file."""

    name: str
    is_folder: bool
    is_executable: bool
    link: str | None
    open: Callable[[], IO[bytes]]


def unpack(url: str, file: Path, folder: Path) -> None:
    """Unpack an archive into a new folder; nothing of it is, or leads, outside. Raises ModelRefused."""
    folder.mkdir()
    try:
        with contextlib.ExitStack() as opened:
            entries = _of_zip(file, opened) if url.endswith((".zip", ".whl")) else _of_tar(file, opened)
            _unpack(url, entries, folder)
    except _UNREADABLE as error:
        raise ModelRefused(f"model.code.url = {url} is no {_suffix(url)} that can be read: {error}") from error
    except OSError as error:
        if error.errno not in _UNPLACEABLE:
            raise
        raise ModelRefused(
            f"model.code.url = {url} has a name that cannot be a file's here: {error.strerror}; pack it anew"
        ) from error


def _unpack(url: str, entries: Iterator[Entry], folder: Path) -> None:
    """Write files first and links last: so no file is written through a link."""
    links: list[tuple[Path, str]] = []
    left = UNPACKED_BYTES_MAX
    for number, entry in enumerate(entries):
        place = folder / _inside(url, entry.name)
        if number >= ENTRIES_MAX:
            raise ModelRefused(f"model.code.url = {url} has more than {ENTRIES_MAX} files; keep data elsewhere")
        if entry.link is not None:
            _inside(url, join(dirname(entry.name), entry.link), entry.link)
            links.append((place, entry.link))
            continue
        _make_folder(url, place if entry.is_folder else place.parent, folder)
        if entry.is_folder:
            continue
        with entry.open() as source, place.open("wb") as out:
            while chunk := source.read(_CHUNK_BYTES):
                left -= len(chunk)
                if left < 0:
                    raise ModelRefused(f"model.code.url = {url} unpacks to more than {UNPACKED_BYTES_MAX} bytes")
                out.write(chunk)
        place.chmod(0o700 if entry.is_executable else 0o600)
    for place, target in links:
        _make_folder(url, place.parent, folder)
        place.symlink_to(target)
    top = folder.resolve()
    for place, target in links:  # a link over another one may lead further than its text says
        if not place.resolve().is_relative_to(top):
            raise ModelRefused(f"model.code.url = {url}: the link {place.name} -> {target} leads out of the archive")


def _make_folder(url: str, place: Path, top: Path) -> None:
    """Make a folder, unless links that were made before lead it out of the archive's. Raises ModelRefused."""
    if not place.resolve().is_relative_to(top.resolve()):
        raise ModelRefused(f"model.code.url = {url}: {place.relative_to(top)} in it leads out of the archive by a link")
    place.mkdir(parents=True, exist_ok=True)


def _inside(url: str, name: str, shown: str = "") -> str:
    """Return the path of an entry within the archive. Raises ModelRefused."""
    path = normpath(name)
    if name.startswith("/") or path == ".." or path.startswith("../") or "\0" in name or "\\" in name:
        raise ModelRefused(f"model.code.url = {url}: {(shown or name)!r} in it leads out of the archive; pack it anew")
    return path


def _of_tar(file: Path, opened: contextlib.ExitStack) -> Iterator[Entry]:
    archive = opened.enter_context(tarfile.open(file))  # noqa: SIM115 - the caller closes it

    def reader(member: tarfile.TarInfo) -> Callable[[], IO[bytes]]:
        def read() -> IO[bytes]:
            source = archive.extractfile(member)
            assert source is not None
            return source

        return read

    for member in archive:
        if not (member.isreg() or member.isdir() or member.issym()):
            raise tarfile.TarError(f"{member.name!r} is neither a file nor a folder nor a symbolic link")
        link = member.linkname if member.issym() else None
        yield Entry(member.name, member.isdir(), bool(member.mode & stat.S_IXUSR), link, reader(member))


def _of_zip(file: Path, opened: contextlib.ExitStack) -> Iterator[Entry]:
    archive = opened.enter_context(zipfile.ZipFile(file))

    def reader(member: zipfile.ZipInfo) -> Callable[[], IO[bytes]]:
        return lambda: archive.open(member)

    for member in archive.infolist():
        mode = member.external_attr >> 16
        link = archive.read(member).decode() if stat.S_ISLNK(mode) else None
        yield Entry(member.filename, member.is_dir(), bool(mode & stat.S_IXUSR), link, reader(member))


# packages ----------------------------------------------------------------------------------------------------------


def install(requirements: tuple[str, ...], folder: Path) -> Path:
    """Install packages below ``folder``, beside the packages of the image, which stay as they are.

    Raises:
        ModelRefused: pip cannot install them.
        PodError: an index did not answer.
    """
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / "installed.txt"
    # without this, pip would replace a package of the image where a requirement wants another version
    kept.write_text("".join(f"{each.name}=={each.version}\n" for each in distributions() if each.name))
    prefix = folder / "packages"
    command = [*_pip(), "install", "--prefix", str(prefix), "--constraint", str(kept), "--no-input", "--quiet"]
    command += ["--timeout", f"{_HTTP_TIMEOUT_S:.0f}", "--retries", str(_PIP_RETRIES)]
    command += ["--disable-pip-version-check", "--no-warn-script-location", "--", *requirements]
    named = f"model.requirements = {', '.join(requirements)}"
    _until_answered(named, lambda: _run_pip(named, command))
    return prefix


def _run_pip(named: str, command: list[str]) -> None:
    """Install. Raises ModelRefused, _NotAnswered for an index, PodError."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=_PIP_TIMEOUT_S
        )
    except subprocess.TimeoutExpired as error:
        raise PodError(
            f"{named}: pip has not ended within {_PIP_TIMEOUT_S:.0f} s; name an image that has them"
        ) from error
    if done.returncode == 0:
        return
    log.error("%s", done.stderr)
    lines = done.stderr.splitlines()
    if lost := [line for line in lines if _NO_ANSWER.search(line)]:
        raise _NotAnswered(lost[-1][:500])
    told = [line for line in lines if line.startswith("ERROR:")] or [f"exit {done.returncode}"]
    raise ModelRefused(f"{named}: pip says {told[0]}; correct them, or name an image that has them")


def add_packages(prefix: Path) -> None:
    """Put installed packages behind the import path of this process and of its child processes."""
    found = [each for name in ("site", "dist") for each in prefix.glob(f"**/lib*/python*/{name}-packages")]
    for each in found:
        site.addsitedir(str(each))
    os.environ[_PATH] = os.pathsep.join([*filter(None, [os.environ.get(_PATH, "")]), *map(str, found)])
    importlib.invalidate_caches()


def _pip() -> list[str]:
    """Return the command of pip for this interpreter. Images keep pip outside of Stretto's environment."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    found = shutil.which("pip")
    if found is None:
        raise ModelRefused(
            "model.requirements: there is no pip where the pods run; name an image that has the packages"
        )
    return [found, "--python", sys.executable]
