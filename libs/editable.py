"""Build editable wheels of distributions: ``python libs/editable.py TARGET FOLDER…``.

``pip install -e`` starts three processes for each distribution, which take a second. Here each is a fork of one process
that has loaded setuptools already.
"""

import os
import sys
from multiprocessing import get_context
from pathlib import Path

from setuptools import build_meta


def build(target: Path, folder: Path) -> None:
    """Build the wheel of one distribution."""
    os.chdir(folder)
    build_meta.build_editable(str(target))


if __name__ == "__main__":
    target, *folders = (Path(each).resolve() for each in sys.argv[1:])
    builds = [get_context("fork").Process(target=build, args=(target, each), name=each.name) for each in folders]
    for each in builds:
        each.start()
    for each in builds:
        each.join()
    if failed := [each.name for each in builds if each.exitcode]:
        sys.exit(f"not built, as told above: {', '.join(failed)}")
