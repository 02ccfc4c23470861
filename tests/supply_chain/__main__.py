"""``python -m tests.supply_chain sbom FOLDER`` writes bills of materials; ``… pins`` looks up the digests of what is
installed; ``… audit`` asks for known vulnerabilities.

The audit ends with 0: none are known; 1: some are; 3: it could not be asked, and nothing is known.
"""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

from tests.supply_chain import pins, sbom
from tests.supply_chain.audit import audit

UNASKED = 3


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.supply_chain", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    writing = commands.add_parser("sbom", help="a bill of materials of every image, and the licences")
    writing.add_argument("folder", type=Path)
    asking = commands.add_parser("audit", help="known vulnerabilities of everything that constraints.txt pins")
    asking.add_argument("--osv-url", help="another service than api.osv.dev")
    commands.add_parser("pins", help="the digests of everything that constraints.txt pins, there and for each image")
    given = parser.parse_args()
    if given.command == "pins":
        try:
            sys.stdout.write(f"{pins.CONSTRAINTS}: {pins.write()} packages\n")
        except PackageNotFoundError as missing:
            sys.stderr.write(f"{missing.name} is pinned but not installed: `make setup`, then `make pins` again\n")
            return 1
        return 0
    if given.command == "sbom":
        for image, packages in sbom.write(given.folder).items():
            sys.stdout.write(f"{given.folder / f'{image}.cdx.json'}: {len(packages)} packages\n")
        sys.stdout.write(f"{given.folder / 'licences.txt'}\n")
        return 0
    found = audit(pins.CONSTRAINTS, given.osv_url)
    if found.unasked:
        sys.stderr.write(f"NOT AUDITED: {found.unasked}\n")
        return UNASKED
    sys.stdout.write("".join(f"{line}\n" for line in found.findings))
    sys.stdout.write(f"{len(found.findings)} known vulnerabilities in {found.packages} packages\n")
    return 1 if found.findings else 0


if __name__ == "__main__":
    raise SystemExit(main())
