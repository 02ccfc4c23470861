"""``python -m tests.kubernetes.helm``: the part of Helm's command line that our pages use, by Helm's own library.

``install``, ``uninstall`` and ``template``, with ``--namespace``, ``--values`` and ``--wait``.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import yaml
from helm_python import Chart, Config

from tests.charts.rendering import merged

WAIT_S = 600


def arguments(words: list[str]) -> argparse.Namespace:
    """Read a command line. Raises SystemExit for an option that it does not know."""
    parser = argparse.ArgumentParser(prog="helm", description=__doc__)
    commands = parser.add_subparsers(dest="do", required=True)
    for name in ("install", "uninstall", "template"):
        command = commands.add_parser(name)
        command.add_argument("release")
        command.add_argument("--namespace", default="default")
        if name != "uninstall":
            command.add_argument("chart", type=Path)
            command.add_argument("--values", type=Path, action="append", default=[])
        command.add_argument("--wait", action="store_true")
    return parser.parse_args(words)


def values_of(files: list[Path]) -> dict[str, Any]:
    """Return the values of the files; a later one wins."""
    found: dict[str, Any] = {}
    for file in files:
        found = merged(found, yaml.safe_load(file.read_text()))
    return found


def main(words: list[str]) -> str:
    """Return the text to print. Raises HelmError."""
    given = arguments(words)
    if given.do == "template":
        chart = Chart.load(given.chart)
        texts = chart.render(values_of(given.values), name=given.release, namespace=given.namespace)
        return "\n---\n".join(text for path, text in texts.items() if not path.endswith("NOTES.txt"))
    helm = Config(kubeconfig_path=Path(os.environ["KUBECONFIG"]), namespace=given.namespace)
    waiting = {"wait": "watcher", "timeout": WAIT_S} if given.wait else {}
    if given.do == "uninstall":
        helm.uninstall(given.release, **waiting)
        return f"release {given.release} uninstalled"
    helm.install(given.chart, given.release, values_of(given.values), namespace=given.namespace, **waiting)
    return f"release {given.release} installed"


def command(folder: Path) -> Path:
    """Make the command ``helm`` in a folder and return it."""
    script = folder / "helm"
    root = Path(__file__).parents[2]
    script.write_text(
        f"#!/bin/sh\nPYTHONPATH={shlex.quote(str(root))}:$PYTHONPATH exec {shlex.quote(sys.executable)} "
        f'-m {__name__} "$@"\n'
    )
    script.chmod(0o755)
    return script


if __name__ == "__main__":
    sys.stdout.write(main(sys.argv[1:]) + "\n")
