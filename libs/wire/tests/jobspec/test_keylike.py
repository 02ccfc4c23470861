"""Names that look like keys are refused in a job's environment, and ordinary ones are not."""

from __future__ import annotations

import pytest
from stretto_wire import WireError
from stretto_wire.jobspec.jobfile import read_job
from stretto_wire.jobspec.keylike import is_keylike

KEYS = [
    *("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN", "GITHUB_TOKEN", "TOKEN", "DB_PASSWORD"),
    *("DB_PASSWORD_2", "db_password", "MYSQL_PWD", "PGPASSWORD", "CLIENT_SECRET", "WANDB_API_KEY", "OPENAI_APIKEY"),
    *("AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_ACCOUNT_KEY", "SIGNING_KEY", "SSH_PRIVATE_KEY", "DB_PASS"),
    *("DATABASE_PASS", "SNOWFLAKE_PW", "GITHUB_PAT", "OPENAI_KEY", "API_KEY_PROD", "HF_TOKEN_2"),
    "GOOGLE_CREDENTIALS",
]
ORDINARY = [
    *("CRITEO_FOLDER", "PWD", "MAX_TOKENS", "PAD_TOKEN", "UNK_TOKEN", "TOKENIZERS_PARALLELISM", "PRIMARY_KEY"),
    *("PARTITION_KEY", "EMBEDDING_KEY", "USER_KEY", "KEY", "KEYS", "MONKEY", "PUBLIC_KEY", "AWS_REGION"),
    *("AWS_WEB_IDENTITY_TOKEN_FILE", "DB_PASSWORD_FILE", "SECRET_NAME", "SECRETARY"),
    *("GOOGLE_APPLICATION_CREDENTIALS", "TF_CPP_MIN_LOG_LEVEL", "OMP_NUM_THREADS", "AUTHOR", "PASSES", "SECOND_PASS"),
    *("TOKEN_LENGTH", "PATH", "CREDENTIALS_FOLDER"),
]


@pytest.mark.parametrize("name", KEYS)
def test_a_key_is_known_by_its_name(name: str) -> None:
    assert is_keylike(name)


@pytest.mark.parametrize("name", ORDINARY)
def test_an_ordinary_name_is_no_false_alarm(name: str) -> None:
    assert not is_keylike(name)


@pytest.mark.parametrize(
    "value",
    [
        "redis://:secret@cache",
        "https://user:pw@host/x",
        "-----BEGIN RSA PRIVATE KEY-----",
        "AKIA" + "Q" * 16,
        "ghp_" + "a" * 36,
        "sk-" + "b" * 40,
        "eyJhbGciOi.eyJzdWIiOi.c2ln",
    ],
)
def test_a_key_is_known_by_its_value(value: str) -> None:
    assert is_keylike("PLACE", value)
    assert not is_keylike("PLACE", "https://host:80/user@x")


def test_a_job_file_with_a_key_is_refused_with_its_place_and_without_its_value() -> None:
    job = "name: a\nmodel: {entry: 'm:M'}\ndataset: {samples: 1}\n"
    text = f"{job}environment:\n  REGION: eu\n  DB_PASSWORD: canary-of-a-job\n"
    with pytest.raises(WireError) as refused:
        read_job(text)
    (found,) = refused.value.findings
    assert (found.field, found.line) == ("environment.DB_PASSWORD", 6)
    assert "environment_from" in found.remedy
    assert "canary" not in str(refused.value)
