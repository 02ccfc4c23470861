"""Variables that look like keys. A job's specification is published and shown to every reader, so it must hold none.

The list cannot be complete. Its words are chosen for few false alarms: in training code ``PRIMARY_KEY``, ``PAD_TOKEN``
and ``MAX_TOKENS`` are no secrets, and ``…_FILE`` or ``…_NAME`` say where one is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

REMEDY = (
    "not here: a specification is published and shown to every reader. Put the variable into a secret and name that "
    "in environment_from"
)
TEXT_REMEDY = (
    "no key here: a specification is published and shown to every reader. Put the value into a secret, name that in "
    "environment_from, and let the program read the variable"
)
_SECRET_WORDS = r"PASSWD|SECRET|SECRETS|APIKEY|APITOKEN|AUTHTOKEN|HTPASSWD|PAT"
_LOGINS_OF = r"DB|DATABASE|SQL|MYSQL|POSTGRES|PG|MONGO|REDIS|SMTP|MAIL|FTP|LDAP|ADMIN|ROOT|USER|LOGIN"
_KEYS_OF = (
    r"API|APP|ACCESS|SECRET|PRIVATE|SIGNING|SIGNATURE|ENCRYPTION|DECRYPTION|CIPHER|MASTER|ACCOUNT|STORAGE|AUTH|SSH|"
    r"SSL|TLS|GPG|PGP|HMAC|JWT|LICENSE|SUBSCRIPTION|SERVICE|SERVER|DEPLOY|SHARED|WEBHOOK|"
    r"OPENAI|ANTHROPIC|HF|HUGGINGFACE|WANDB|COMET|NEPTUNE|DATADOG|SENTRY|STRIPE|SENDGRID|GITHUB|GITLAB|AZURE|AWS|GCP"
)
_EDITION = r"(_(PROD|PRODUCTION|STAGING|DEV|TEST|LIVE|RW|RO))?"
_TOKENS_OF_TEXT = r"PAD|UNK|MASK|BOS|EOS|CLS|SEP|OOV|START|END|STOP|SPECIAL|DEFAULT|EMPTY|NULL|PADDING|UNKNOWN"
_PLACES = re.compile(r"_(FILE|PATH|FOLDER|DIR|NAME|ARN|LENGTH|SIZE|TTL|TYPE|VERSION)$")
_NAMES = re.compile(
    r"PASSWORD|PASSPHRASE"  # also within a word: PGPASSWORD
    rf"|(^|_)({_SECRET_WORDS})(_|$)"
    rf"|(^|_)({_KEYS_OF})_?KEY{_EDITION}(_ID|_?[0-9]*)$"
    rf"|(^|_)({_LOGINS_OF})_?(PASS|PW){_EDITION}$"
    rf"|(^|_)TOKEN{_EDITION}(_[0-9]+)?$|_PWD$|_PW$|(?<!APPLICATION)_CREDENTIALS?(_JSON)?$"
    r"|CONNECTION_?STRING$"
)
_TEXT_TOKEN = re.compile(rf"(^|_)({_TOKENS_OF_TEXT})_TOKEN$")
_VALUES = re.compile(
    r"[a-z][a-z0-9+.-]*://[^/?#\s:@]*:[^/?#\s@]+@|-----BEGIN [A-Z ]*PRIVATE KEY-----"
    r"|\bA(KIA|SIA|Iza)[0-9A-Za-z_-]{16,}|\bgh[pousr]_[0-9A-Za-z]{30,}|\bgithub_pat_\w{20,}|\bglpat-[\w-]{20,}"
    r"|\bhf_[0-9A-Za-z]{30,}|\bsk-[\w-]{20,}|\bxox[abprs]-[\w-]{10,}|\beyJ[\w-]+\.eyJ[\w-]+\.[\w-]+"
)
"""Logins in URLs, private keys, and tokens whose makers mark the beginning; ``eyJ`` is that of a JSON web token."""

_SETTING = re.compile(r"""^[\s,{-]*["']?(?P<name>[A-Za-z_][A-Za-z0-9_.-]*)["']?\s*[:=]\s*["']?(?P<value>[^"'\s,}]*)""")
"""A line of YAML, JSON, TOML or INI that sets something."""
_EMPTY = re.compile(r"(null|none|~|\$\{?[A-Za-z_][A-Za-z0-9_]*\}?|<[^>]*>|\{\{.*)?", re.IGNORECASE)
"""Values that are no secret: nothing, the name of a variable, a blank to be filled in."""


def is_keylike(name: str, value: str = "") -> bool:
    """Return True if a variable's name says that it holds a secret, or its value shows one."""
    upper = name.upper()
    named = _NAMES.search(upper) and not _PLACES.search(upper) and not _TEXT_TOKEN.search(upper)
    return bool(named or _VALUES.search(value))


def keylike(environment: Mapping[str, str]) -> list[str]:
    """Return the names of the variables that look like keys."""
    return [name for name, value in environment.items() if is_keylike(name, value)]


def keylike_line(text: str) -> int:
    """Return the number of the first line of a file, from 1, that seems to hold a key; 0 if none does."""
    for number, line in enumerate(text.splitlines(), start=1):
        setting = _SETTING.match(line)
        named = setting is not None and not _EMPTY.fullmatch(setting["value"])
        name = re.sub(r"[.-]", "_", setting["name"]) if setting is not None and named else ""
        if is_keylike(name, line):
            return number
    return 0
