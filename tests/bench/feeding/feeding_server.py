"""The parameter server of the feeding benchmark, a process of its own: its processor time is not the trainer's.

Reads a line of JSON (key, layout), prints its address, and serves until standard input ends.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager

from stretto.engine import Key, Layout, ParameterServer

from tests.bench.places import ROOT


@contextmanager
def server(layout: Layout, key: Key) -> Generator[str]:
    """Start the process; yield its address."""
    command = [sys.executable, "-m", "tests.bench.feeding.feeding_server"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"key": key.pem.decode(), "layout": layout.to_dict()}) + "\n")
        process.stdin.flush()
        yield process.stdout.readline().strip()
        process.stdin.close()


def main() -> None:
    given = json.loads(sys.stdin.readline())
    layout = Layout.from_dict(given["layout"])
    served = ParameterServer(0, layout, key=Key.of(given["key"].encode()))
    served.own(range(layout.columns))
    print(served.address, flush=True)
    sys.stdin.read()
    served.close()


if __name__ == "__main__":
    main()
