"""Imports once for all lanes of a pod, which are forked from the process that imports this module: what lanes need, and
the user's code. A failure is shown by the lane, which imports the code again."""

from __future__ import annotations

import contextlib
import importlib
import os

from ..imports import defer_frameworks, lighter_imports
from . import lane as lane
from .lane_pool import ENTRY_VARIABLE, READS_ONLY_VARIABLE

if os.environ.get(READS_ONLY_VARIABLE):
    defer_frameworks()
with contextlib.suppress(BaseException), lighter_imports():
    importlib.import_module(os.environ[ENTRY_VARIABLE].partition(":")[0])
