"""The process of one conversion, for ``stretto data convert``: it reads what is asked as JSON, and tells documents."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import DataError
from ..progress import speaker
from ..readers.conversion import TextForm, convert


def main() -> int:
    """Convert for another process, which states the conversion as a JSON document; exit status 2: refused."""
    say = speaker()
    asked = json.load(sys.stdin)
    form: dict[str, Any] = {
        name: tuple(each) if isinstance(each, list) else each for name, each in asked["form"].items()
    }
    try:
        done = convert(
            asked["sources"], Path(asked["to"]), TextForm(**form), asked["bad_rows_max"],
            lambda what, done, total: say({"progress": [what, done, total]}),
        )  # fmt: skip
    except DataError as error:
        say({"error": str(error)})
        return 2
    except KeyboardInterrupt:
        say({"error": "interrupted; nothing was written"})
        return 130
    say({"result": asdict(done)})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
