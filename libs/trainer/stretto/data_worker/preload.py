"""Imports the user's code, and its framework with it, once for all lanes of a pod: they are forked from the process
that imports this module. A failure is shown by the lane, which imports the code again."""

from __future__ import annotations

import contextlib
import importlib
import os

ENTRY_VARIABLE = "STRETTO_LANE_ENTRY"

with contextlib.suppress(BaseException), importlib.import_module("stretto.build").lighter_imports():
    importlib.import_module(os.environ[ENTRY_VARIABLE].partition(":")[0])
