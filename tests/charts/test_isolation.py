"""The programs of ``helm test`` that tell whether a cluster enforces NetworkPolicies, run as they ship."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from tests.charts.rendering import component, of_kind, rendered


def outcome(name: str, port: int) -> subprocess.CompletedProcess[str]:
    """Run the pod's program against a port of this machine in place of the target's."""
    (pod,) = [each for each in of_kind(rendered({}), "Pod") if component(each) == name]
    _, _, program, host = pod["spec"]["containers"][0]["command"]
    assert host == "demo-stretto-test-target.demo-stretto-pods.svc.cluster.local"
    program = program.replace("8080", str(port)).replace("time.monotonic() + 60", "time.monotonic()")
    command = [sys.executable, "-c", program, "localhost"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)


@pytest.mark.parametrize(("name", "reached", "unreached"), [("test-friend", 0, 1), ("test-foreign", 1, 0)])
def test_a_pod_of_the_job_has_to_reach_the_target_and_another_must_not(name: str, reached: int, unreached: int) -> None:
    """Listen at a port, then no more: the exit code is what Helm reads."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        open_to_all = outcome(name, port)
    closed = outcome(name, port)
    assert (open_to_all.returncode, closed.returncode) == (reached, unreached)
    if name == "test-foreign":
        assert "does not enforce NetworkPolicies" in open_to_all.stderr


def test_a_target_whose_name_is_not_found_is_no_proof() -> None:
    """A foreign pod that cannot look the name up has tried nothing, and must not say that policies hold."""
    (pod,) = [each for each in of_kind(rendered({}), "Pod") if component(each) == "test-foreign"]
    _, _, program, _ = pod["spec"]["containers"][0]["command"]
    done = subprocess.run(
        [sys.executable, "-c", program, "no.such.invalid"], capture_output=True, check=False, timeout=60
    )
    assert done.returncode != 0
