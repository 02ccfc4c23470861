"""``python -m tests.containers``: a real engine, base images and Stretto's own, on a machine that can pull none.

``up`` starts the engine (and installs Debian's where there is none), ``bases`` makes the stand-ins for the public
images, ``build`` those of Stretto, ``socket`` prints where the engine listens, ``down`` stops it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.containers import bases, images
from tests.containers.engine import Engine, EngineUnavailable


def main(arguments: list[str]) -> str:
    """Return the text to print. Raises EngineUnavailable."""
    parser = argparse.ArgumentParser(prog="python -m tests.containers", description=__doc__)
    parser.add_argument("do", choices=("up", "bases", "build", "socket", "down"))
    parser.add_argument("--folder", type=Path, help="an engine of its own there; default: the machine's")
    given = parser.parse_args(arguments)
    engine = Engine(given.folder.resolve() if given.folder else None)
    if given.do == "down":
        engine.down()
        return "stopped"
    if given.do == "socket":
        return f"unix://{engine.socket}"
    engine.up(install=True)
    if given.do == "up":
        return f"listens at unix://{engine.socket}, logs to {engine.log}"
    made = bases.make(engine)
    if given.do == "bases":
        return f"made: {', '.join(made) or 'nothing, all are there'}"
    images.build(engine)
    above = (f"{images.name_of(name)}\t{images.added_bytes(engine, name) / 1e6:.0f} MB" for name in images.IMAGES)
    return "\n".join(["above their base:", *above])


if __name__ == "__main__":
    try:
        sys.stdout.write(main(sys.argv[1:]) + "\n")
    except EngineUnavailable as error:
        raise SystemExit(f"error: {error}") from None
