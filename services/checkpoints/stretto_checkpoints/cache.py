"""Redis as a cache of images between machines: each job is a user of its own there, who has its own keys alone."""

from __future__ import annotations

import hashlib
import hmac
from urllib.parse import urlsplit

import redis
import structlog

ANSWER_S = 2.0
COMMANDS = ("+get", "+set", "+unlink")
REMEDY = (
    "redis://USER:PASSWORD@HOST:PORT/NUMBER (or rediss://…, unix:///SOCKET) with options that redis-py knows, and in "
    "the password %40 for @, %2F for /, %3A for :, %23 for #, %3F for ?, %25 for %"
)

log = structlog.get_logger("stretto.checkpoints")


def checked(url: str) -> str:
    """Return the URL if it is well-formed; empty: no cache. Raises ValueError, whose text does not show the URL."""
    if not url:
        return url
    try:
        redis.Redis.from_url(url).connection_pool.make_connection()
        parts = urlsplit(url)
    except (ValueError, TypeError, redis.RedisError):  # redis-py's own words may be a part of the password
        raise ValueError(REMEDY) from None
    if not (parts.path if parts.scheme == "unix" else parts.hostname and "@" not in parts.path):
        raise ValueError(REMEDY)
    return url


class Cache:
    """``url`` is that of a user who may make users; ``by_job`` false: pods get this very URL, and see all images.

    A URL without a password has no secret to keep jobs apart by, and is given as it is.
    """

    def __init__(self, url: str, by_job: bool = True) -> None:
        self._url = url
        self._secret = (urlsplit(url).password or "").encode()
        self._by_job = by_job and bool(self._secret)

    def open_to(self, job: str) -> str:
        """The URL by which the job's servers reach their images; empty without a cache, or one that does not answer.

        Said again whenever it is needed: Redis forgets its users when it is restarted.
        """
        if not self._url or not self._by_job:
            return self._url
        # HKDF would give other passwords: servers that an upgrade of this service leaves running would lose the cache
        password = hmac.new(self._secret, job.encode(), hashlib.sha256).hexdigest()
        try:
            with self._client() as client:
                client.acl_setuser(
                    _user(job),
                    enabled=True,
                    reset=True,
                    passwords=[f"+{password}"],
                    keys=[f"stretto:{job}:*"],
                    commands=list(COMMANDS),
                )
        except redis.RedisError as error:  # the cache only makes a restore faster
            log.warning("not cached: the cache makes no user for the job", job=job, error=str(error))
            return ""
        parts = urlsplit(self._url)
        _, _, host = parts.netloc.rpartition("@")
        return parts._replace(netloc=f"{_user(job)}:{password}@{host}").geturl()

    def close_to(self, job: str) -> None:
        """The job has ended: nobody comes as its user again. Its images go by themselves."""
        if not self._by_job:
            return
        try:
            with self._client() as client:
                client.acl_deluser(_user(job))
        except redis.RedisError as error:
            log.warning("the user of an ended job stays in the cache", job=job, error=str(error))

    def _client(self) -> redis.Redis:
        return redis.Redis.from_url(self._url, socket_timeout=ANSWER_S, socket_connect_timeout=ANSWER_S)


def _user(job: str) -> str:
    return f"stretto-{job}"
