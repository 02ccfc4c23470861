"""Follows the recipe of libs/messages/README.md: a message is a class with its example, and one row of the registry."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

MESSAGE = '''

@dataclass(frozen=True, slots=True, kw_only=True)
class PodRenamed(Message):
    """A pod has another label."""

    pod: PodId
    label: Name
    """Label from now on."""


example(PodRenamed(job=JOB, pod="ps-0", label="spare"))
'''
ROW = '    _event("actuator", "pod-renamed", actuator.PodRenamed, "profiler"),\n'
FOLLOWED = """
from stretto_messages.actuator import PodRenamed
from stretto_messages.base import example_of
from stretto_wire import decode, encode, inputs_of, subject_of
from stretto_protodocs.documents import files

message = example_of(PodRenamed)
assert subject_of(message) == "evt.v1.actuator.pod-renamed.ctr-ranking-42"
assert decode(PodRenamed, encode(message)) == message
assert PodRenamed in [one.message for one in inputs_of("profiler")]
written = files()
assert '"Label from now on."' in written["schemas/evt.actuator.pod-renamed.v1.json"]
assert "pod-renamed" in written["asyncapi.yaml"]
assert "spare" in written["examples/evt.actuator.pod-renamed.v1.json"]
"""


@pytest.mark.proof
def test_two_files_make_a_message_that_is_published_read_and_documented(tmp_path: Path) -> None:
    for name in ("messages", "wire"):
        shutil.copytree(ROOT / "libs" / name, tmp_path / name, ignore=shutil.ignore_patterns("tests", "*.egg-info"))
    publisher = tmp_path / "messages/stretto_messages/actuator.py"
    publisher.write_text(publisher.read_text() + MESSAGE)
    registry = tmp_path / "wire/stretto_wire/contract/registry.py"
    head, _, rest = registry.read_text().partition('    _event("actuator", "pod-resized"')
    registry.write_text(f'{head}{ROW}    _event("actuator", "pod-resized"{rest}')
    paths = ":".join(str(tmp_path / name) for name in ("messages", "wire"))
    done = subprocess.run([sys.executable, "-c", FOLLOWED], capture_output=True, text=True, env={"PYTHONPATH": paths})
    assert done.returncode == 0, done.stderr
