"""The page about S3, typed on one machine beside a real S3 server: pods find the key in the job's secret alone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.site import OWN
from tests.e2e.tutorials import fences, save
from tests.e2e.typed import ROOT, TYPED

sys.path.insert(0, str(ROOT / "libs/trainer/tests/helpers"))  # the server of the readers' tests

from object_store import environment_of, s3_server

HERE = "tests/docs/test_object_store.py::test_a_job_reads_a_bucket_with_the_key_of_its_secret"
KEYLESS = """\
grep -v ACCESS_KEY shop-s3.env > keyless.env
install --mode 600 keyless.env .stretto/secrets/keyless
sed 's/^environment_from.*/environment_from: [keyless]/' job.yaml | stretto submit - --name keyless --follow
"""
SCRIPT_S = 400.0

pytestmark = [pytest.mark.slow, pytest.mark.night]


def typed(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    plain = {name: value for name, value in TYPED.items() if not name.startswith("AWS_")}
    environment = {**plain, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(
        ["bash", "-euxc", script], cwd=folder, text=True, env=environment, timeout=SCRIPT_S, capture_output=True,
        check=False,
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The model and the data of a tutorial, the data in a bucket; and a file with its key."""
    folder, bucket = tmp_path / "work", tmp_path / "buckets" / "shop"
    (folder / "clicks").mkdir(parents=True)
    bucket.mkdir(parents=True)
    save("your-data.md", folder)
    assert typed("python make_data.py", folder).returncode == 0
    (folder / "clicks").rename(bucket / "clicks")
    with s3_server(bucket.parent) as port:
        key = "".join(f"{name}={value}\n" for name, value in environment_of(port).items())
        (folder / "shop-s3.env").write_text(key)
        yield folder
        typed("stretto down", folder)


def test_a_job_reads_a_bucket_with_the_key_of_its_secret(folder: Path) -> None:
    [script] = [fence.text for fence in fences(OWN / "how-to" / "object-store.md") if fence.tested == HERE]
    done = typed(script, folder)
    assert "75,000 applied of 75,000, 0 lost, 0 repeated" in done.stdout, done.stdout[-3000:] + done.stderr[-3000:]
    without = typed(KEYLESS, folder)
    assert without.returncode != 0, "pods have no key but that of the secret"
    assert "access is refused" in without.stdout + without.stderr
