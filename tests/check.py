"""Lint, types and pure tests: ``make check`` before each commit; ``python -m tests.check types style`` for a part.

The columns run beside each other.
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
PURE = (
    *("libs/core/tests", "libs/messages/tests", "libs/wire/tests"),
    *(f"libs/parameters/tests/test_{name}.py" for name in ("optimizers", "records", "store")),
    *("libs/plane/tests/test_frames.py", "libs/pipeline/tests", "libs/programs/tests/partition"),
    *(f"libs/client/tests/test_{name}.py" for name in ("blocking", "cards", "figures")),
    *(f"libs/client/tests/protocol/test_{name}.py" for name in ("exchange", "logs", "resumption", "server_sent")),
    *("libs/bus/tests/test_majority.py", "libs/bus/tests/test_received.py"),
    *("libs/runtime/tests/test_settings.py", "libs/runtime/tests/owner/test_machines.py"),
    *("services/gateway/tests/access/test_buckets.py", "services/gateway/tests/read_model/test_projection.py"),
    "tests/test_structure.py",
)
"""Tests without servers, processes and TensorFlow. Simulations and compiled kernels take too long for each commit."""
COLUMNS: dict[str, tuple[tuple[str, ...], ...]] = {
    "types": (("pyrefly", "check"),),
    "style": (
        ("ruff", "check", "."),
        ("ruff", "format", "--check", "."),
        ("python", "-m", "tests.check", "--generated"),
        ("python", "-m", "pytest", "--pure", "-p", "no:xdist", "tests/test_house.py"),
    ),
    "tests": (("python", "-m", "pytest", "--pure", "-p", "no:xdist", *PURE),),
}


def compare_generated() -> int:
    """Compare proto/ and the pages of reference with the code; return the number of them that differ.

    One process does it, since each of the generators imports most of Stretto.
    """
    from stretto_gateway.http import openapi
    from stretto_protodocs import documents

    sys.path.insert(0, str(ROOT / "libs/docs"))
    references = importlib.import_module("references")
    return documents.main(["--check", "proto"]) + openapi.main(["proto", "--check"]) + references.main(["--check"])


def run(column: str) -> tuple[bool, str]:
    """Run the commands of a column, the rest also after a failure; return success and the output of failures."""
    failed: list[str] = []
    for command in COLUMNS[column]:
        began_s = time.monotonic()
        done = subprocess.run([BIN / command[0], *command[1:]], cwd=ROOT, capture_output=True, text=True)
        verdict = "ok" if done.returncode == 0 else "FAILED"
        print(f"{time.monotonic() - began_s:6.1f} s  {verdict:6}  {' '.join(command[:4])}", flush=True)
        if done.returncode != 0:
            failed.append(done.stdout + done.stderr)
    return not failed, "\n".join(failed)


def main() -> int:
    """The command; exit status 1 when anything fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.check", description=__doc__)
    parser.add_argument("columns", nargs="*", choices=[*COLUMNS, []], metavar="|".join(COLUMNS), help="default: all")
    parser.add_argument("--generated", action="store_true", help="compare only what is generated from the code")
    options = parser.parse_args()
    if options.generated:
        return 1 if compare_generated() else 0
    columns = options.columns or list(COLUMNS)
    began_s = time.monotonic()
    with ThreadPoolExecutor(len(columns)) as pool:
        results = list(pool.map(run, columns))
    for _, output in results:
        if output:
            print(output)
    print(f"{time.monotonic() - began_s:6.1f} s  {'all passed' if all(ok for ok, _ in results) else 'failed'}")
    return 0 if all(ok for ok, _ in results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
