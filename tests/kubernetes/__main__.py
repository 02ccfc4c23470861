"""``python -m tests.kubernetes``: a real Kubernetes of one node on this machine, and Stretto on it.

``build`` makes the node's binaries (once, 6 minutes), ``up`` runs a node until it is interrupted, ``trial`` installs
the chart on one and runs a job through everything that can happen to it; what it saw is printed.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from tests.containers.engine import EngineUnavailable
from tests.kubernetes import build, trial
from tests.kubernetes.node import Node, NodeError, unmet


def main(arguments: list[str]) -> int:
    """Raises BuildError, NodeError."""
    parser = argparse.ArgumentParser(prog="python -m tests.kubernetes", description=__doc__)
    parser.add_argument("do", choices=("build", "up", "trial"))
    parser.add_argument("--folder", type=Path, help="of the node's state and logs; default: a temporary one")
    given = parser.parse_args(arguments)
    if given.do == "build":
        print(build.binaries())  # noqa: T201
        return 0
    if reason := unmet():
        raise NodeError(reason)
    with tempfile.TemporaryDirectory(prefix="stretto-kubernetes-") as temporary:
        folder = (given.folder or Path(temporary)).resolve()
        with Node(folder) as node:
            if given.do == "trial":
                return trial.run(node)
            print(f"export KUBECONFIG={node.kubeconfig}", flush=True)  # noqa: T201
            signal.sigwait({signal.SIGINT, signal.SIGTERM})
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (build.BuildError, NodeError, EngineUnavailable) as error:
        raise SystemExit(f"error: {error}") from None
