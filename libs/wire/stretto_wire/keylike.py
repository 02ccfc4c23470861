"""Variables that look like keys. A job's specification is published and shown to every reader, so it must hold none.

The words are chosen for few false alarms: in training code ``PRIMARY_KEY``, ``PAD_TOKEN`` and ``MAX_TOKENS`` are no
secrets, and ``…_FILE`` or ``…_NAME`` say where one is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

REMEDY = (
    "not here: a specification is published and shown to every reader. Put the variable into a secret and name that "
    "in environment_from"
)
_SECRET_WORDS = r"PASSWD|SECRET|SECRETS|APIKEY|APITOKEN|AUTHTOKEN|HTPASSWD"
_KEYS_OF = (
    r"API|APP|ACCESS|SECRET|PRIVATE|SIGNING|SIGNATURE|ENCRYPTION|DECRYPTION|CIPHER|MASTER|ACCOUNT|STORAGE|AUTH|SSH|"
    r"SSL|TLS|GPG|PGP|HMAC|JWT|LICENSE|SUBSCRIPTION|SERVICE|SERVER|DEPLOY|SHARED|WEBHOOK"
)
_TOKENS_OF_TEXT = r"PAD|UNK|MASK|BOS|EOS|CLS|SEP|OOV|START|END|STOP|SPECIAL|DEFAULT|EMPTY|NULL|PADDING|UNKNOWN"
_PLACES = re.compile(r"_(FILE|PATH|FOLDER|DIR|NAME|ARN|LENGTH|SIZE|TTL|TYPE|VERSION)$")
_NAMES = re.compile(
    r"PASSWORD|PASSPHRASE"  # also within a word: PGPASSWORD
    rf"|(^|_)({_SECRET_WORDS})(_|$)"
    rf"|(^|_)({_KEYS_OF})_?KEY(_ID|_?[0-9]*)$"
    r"|(^|_)TOKEN$|_PWD$"
    r"|CONNECTION_?STRING$"
)
_TEXT_TOKEN = re.compile(rf"(^|_)({_TOKENS_OF_TEXT})_TOKEN$")
_VALUES = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#\s:@]*:[^/?#\s@]+@|-----BEGIN [A-Z ]*PRIVATE KEY-----")


def is_keylike(name: str, value: str = "") -> bool:
    """Return True if a variable's name says that it holds a secret, or its value shows one."""
    upper = name.upper()
    named = _NAMES.search(upper) and not _PLACES.search(upper) and not _TEXT_TOKEN.search(upper)
    return bool(named or _VALUES.search(value))


def keylike(environment: Mapping[str, str]) -> list[str]:
    """Return the names of the variables that look like keys."""
    return [name for name, value in environment.items() if is_keylike(name, value)]
