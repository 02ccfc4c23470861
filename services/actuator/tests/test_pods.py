"""What a pod inherits, and who can read its specification."""

from __future__ import annotations

from pathlib import Path

from stretto_actuator.pods import inherited, write_spec

OWN = {
    "PATH": "/bin",
    "LC_ALL": "C",
    "OMP_NUM_THREADS": "2",
    "TF_CPP_MIN_LOG_LEVEL": "1",
    "PYTHONPATH": "/src",
    "AWS_SECRET_ACCESS_KEY": "s",
    "OTEL_EXPORTER_OTLP_HEADERS": "authorization=s",
    "GITHUB_TOKEN": "s",
    "STRETTO_NATS_PASSWORD": "s",
}


def test_pods_inherit_what_is_harmless_and_what_is_named() -> None:
    harmless = {"PATH", "LC_ALL", "OMP_NUM_THREADS", "TF_CPP_MIN_LOG_LEVEL", "PYTHONPATH"}
    assert inherited(OWN, "").keys() == harmless
    assert inherited(OWN, " AWS_* , STRETTO_*").keys() == harmless | {"AWS_SECRET_ACCESS_KEY"}


def test_specification_is_for_nobody_elses_eyes(tmp_path: Path) -> None:
    for text in ("{}", '{"name": "j"}'):
        file = write_spec(tmp_path, "j", text)
        assert file.read_text() == text
        assert file.stat().st_mode & 0o777 == 0o600
        assert file.parent.stat().st_mode & 0o777 == 0o700
