"""An import of the client, which each command and notebook waits for, reads and builds only what all of them need."""

from __future__ import annotations

import json
import subprocess
import sys

UNNEEDED = ("httpx", "pandas", "numpy", "rich", "typer", "stretto_wire.contract.registry", "stretto_messages.pods")
"""Libraries that some calls need, channels of the bus, and the messages of pods, which the gateway alone reads."""
PROGRAM = f"""
import json, sys
import stretto
stretto.connect
from pydantic import BaseModel
def below(kind):
    return [kind, *(each for one in kind.__subclasses__() for each in below(one))]
built = [each.__name__ for each in below(BaseModel)[1:] if each.__pydantic_complete__ and "stretto" in each.__module__]
print(json.dumps([[name for name in {UNNEEDED!r} if name in sys.modules], built]))
"""


def test_an_import_reads_no_other_library_and_builds_no_validator() -> None:
    told = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout
    assert json.loads(told) == [[], []]
