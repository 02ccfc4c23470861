"""Users of the installation's own Redis: one that may do everything, for the checkpoints service, and no other.

Pods of a job reach Redis, too. The checkpoints service makes a user for each job there; the user ``default``, which
needs no name and by Redis' own settings no password, is off.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from .keys import sync, write_private

REDIS = "redis"
OWNER = "checkpoints"
ACL_FILE = "users.acl"
URL_FILE = "redis.url"
PORT = 6379


def make_cache_user(folder: Path, host: str, password: Callable[[], str]) -> list[Path]:
    """Make the missing files and return them: ``redis/users.acl`` for Redis, ``checkpoints/redis.url`` for the service.

    Redis gets a hash of the password, which ``password`` returns, so the file of the URL has to be made with it.
    """
    acl, url = folder / REDIS / ACL_FILE, folder / OWNER / URL_FILE
    if acl.exists() and url.exists():
        return []
    secret = password()
    digest = hashlib.sha256(secret.encode()).hexdigest()
    texts = {
        acl: f"user default off\nuser {OWNER} on #{digest} ~* &* +@all\n",
        url: f"redis://{OWNER}:{secret}@{host}:{PORT}/0\n",
    }
    for path, text in texts.items():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(path, text)
    sync([*texts, *(path.parent for path in texts)])
    return [*texts]
