"""``python -m tests.kubernetes``: a real Kubernetes of one node on this machine, and Stretto on it.

``build`` makes the node's binaries (once, 6 minutes), ``up`` runs a node until it is interrupted, ``trial`` installs
the chart on one and runs a job through everything that can happen to it; what it saw is printed.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.containers.engine import Engine, EngineUnavailable
from tests.kubernetes import build, trial
from tests.kubernetes.node import Node, NodeError, unmet


def main(arguments: list[str]) -> int:
    """Raises BuildError, NodeError."""
    parser = argparse.ArgumentParser(prog="python -m tests.kubernetes", description=__doc__)
    parser.add_argument("do", choices=("build", "up", "trial"))
    parser.add_argument("--folder", type=Path, help="of the node's state and logs; default: a temporary one")
    parser.add_argument("--engine", type=Path, help="of a Docker engine of its own; default: the machine's")
    given = parser.parse_args(arguments)
    if given.do == "build":
        print(build.binaries())  # noqa: T201
        return 0
    engine = Engine(given.engine.resolve() if given.engine else None)
    if reason := unmet(engine):
        raise NodeError(reason)
    if engine.folder is not None:
        join_network(engine, arguments)
    with tempfile.TemporaryDirectory(prefix="stretto-kubernetes-") as temporary:
        folder = (given.folder or Path(temporary)).resolve()
        with Node(folder, engine) as node:
            if given.do == "trial":
                return trial.run(node)
            print(f"export KUBECONFIG={node.kubeconfig}", flush=True)  # noqa: T201
            signal.sigwait({signal.SIGINT, signal.SIGTERM})
    return 0


def join_network(engine: Engine, arguments: list[str]) -> None:
    """Go where the engine's containers are, all threads of this process: it begins again there."""
    network = Path("/proc", engine.pid_file.read_text().strip(), "ns/net")
    if not network.samefile("/proc/self/ns/net"):
        again = [sys.executable, "-m", "tests.kubernetes", *arguments]
        os.execvp("nsenter", ["nsenter", f"--net={network}", *again])
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (build.BuildError, NodeError, EngineUnavailable) as error:
        raise SystemExit(f"error: {error}") from None
