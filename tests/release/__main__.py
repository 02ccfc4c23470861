"""``python -m tests.release``: what a release is made of; see `make release` and .github/workflows/release.yml."""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path

from tests.release import changelog, chart, versions, wheels
from tests.release.versions import ReleaseRefused


def main(arguments: list[str]) -> int:
    """The command; exit status 1 when a release is refused, with the remedy."""
    parser = argparse.ArgumentParser(prog="python -m tests.release", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    preparing = commands.add_parser("prepare", help="state a version everywhere and close its section of the changelog")
    preparing.add_argument("version")
    tagged = commands.add_parser("tagged", help="refuse a tag that is not the version; print version=… and images=…")
    tagged.add_argument("tag")
    notes = commands.add_parser("notes", help="print the changes of a released version")
    notes.add_argument("version")
    building = commands.add_parser("wheels", help="build the wheel of every distribution")
    building.add_argument("folder", type=Path)
    packing = commands.add_parser("chart", help="write the chart with registry and digests as its defaults")
    packing.add_argument("folder", type=Path)
    packing.add_argument("--registry", required=True)
    packing.add_argument("--digests", required=True, type=Path, help="folder with a file for each image")
    given = parser.parse_args(arguments)
    try:
        sys.stdout.write("".join(f"{line}\n" for line in _done(given)))
    except ReleaseRefused as refused:
        sys.stderr.write(f"{refused}\n")
        return 1
    return 0


def _done(given: argparse.Namespace) -> list[str]:
    text = changelog.CHANGELOG.read_text()
    match given.command:
        case "prepare":
            closed = changelog.released(text, given.version, datetime.now(UTC).date())
            count = versions.write(given.version)
            changelog.CHANGELOG.write_text(closed)
            tag = f"v{given.version}"
            return [
                f"{given.version} is stated in {count} places and in CHANGELOG.md; `make setup test`, commit, then",
                f"  git tag -s {tag} -m 'Stretto {given.version}' && git push origin {tag}",
            ]
        case "tagged":
            version = versions.current()
            if given.tag != f"v{version}":
                raise ReleaseRefused(
                    f"the tag {given.tag} is not v{version}: run `make release VERSION=…` before a tag"
                )
            changelog.notes(text, version)
            return [f"version={version}", f"images={json.dumps(chart.image_names())}"]
        case "notes":
            return [changelog.notes(text, given.version)]
        case "wheels":
            return [str(wheel) for wheel in wheels.build(given.folder).values()]
        case _:
            return [str(chart.write(given.folder, given.registry, chart.read_digests(given.digests)))]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
