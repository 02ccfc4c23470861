"""Documents by which a process of the trainer tells the command line what it does: one JSON document a line."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

Say = Callable[[dict[str, Any]], None]


def speaker(*, as_json: bool = True) -> Say:
    """Return how documents are printed. What the user's code prints goes to stderr from now on.

    as_json: each as a line; else for people, the result alone.
    """
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(document: dict[str, Any]) -> None:
        if as_json:
            out.write(json.dumps(document) + "\n")
        elif "error" in document:
            sys.stderr.write(f"error: {document['error']}\n")
        elif "result" in document:
            out.write(json.dumps(document["result"], indent=1) + "\n")
        out.flush()

    return say
