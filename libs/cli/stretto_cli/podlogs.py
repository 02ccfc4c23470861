"""What pods of this machine wrote, without what TensorFlow says to everybody at its start."""

from __future__ import annotations

import re
from pathlib import Path

from .errors import BadInput

SHOWN = 10
"""names of pods, when none is the one that was asked for"""

# TF_CPP_MIN_LOG_LEVEL, which the pods set, does not reach lines that come before the C++ logging is initialised
_BANNER = re.compile(
    r"WARNING: All log messages before absl::InitializeLog\(\)"
    r"|I\d{4} \S+ +\d+ [\w.-]+\.(cc|cpp|cu|h|mm):\d+\]"
    r"|\d{4}-\d\d-\d\d \S+: I \S+\.(cc|cpp|cu|h|mm):\d+\]"
    r"|To enable the following instructions: "
)


def pods(folder: Path) -> list[Path]:
    """Folders of the pods that have a log, ``…/JOB/POD``."""
    return sorted(path.parent for path in folder.glob("pods/*/*/log"))


def find(folder: Path, pod: str, job: str | None) -> Path:
    """The log of a pod. ``pod`` may be JOB/POD. Raises BadInput when there is none, or more than one."""
    name, _, rest = pod.partition("/")
    if rest:
        job, pod = name, rest
    known = pods(folder)
    found = [path for path in known if path.name == pod and job in (None, path.parent.name)]
    if len(found) == 1:
        return found[0] / "log"
    if found:
        jobs = ", ".join(path.parent.name for path in found)
        raise BadInput(f"{pod} is ambiguous ({jobs}): name the job, as in `stretto logs JOB/{pod}`")
    there = [f"{path.parent.name}/{path.name}" for path in known if job in (None, path.parent.name)]
    more = f" and {len(there) - SHOWN} more" if len(there) > SHOWN else ""
    told = f"logs are there of {', '.join(there[-SHOWN:])}{more}" if there else "no pod has written one yet"
    raise BadInput(f"no log of {pod}{f' of {job}' if job else ''} below {folder}; {told}")


def quiet(lines: list[str]) -> list[str]:
    """Without the notes of TensorFlow's C++ below the level of a warning."""
    return [line for line in lines if not _BANNER.match(line)]
