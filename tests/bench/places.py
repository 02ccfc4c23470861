"""Where measurements are, and where they find public data and the helpers of the tests, which are on the path here."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data"
"""Published measurements and logs, each with its licence; no part of the repository."""
HELPERS = (
    ROOT / "libs" / "core" / "tests",
    ROOT / "libs" / "core" / "tests" / "oom",
    ROOT / "libs" / "core" / "tests" / "profiler",
    ROOT / "libs" / "runtime" / "tests",
    ROOT / "libs" / "trainer" / "tests" / "helpers",
    ROOT / "tests" / "integration",
)
MODULES = {
    "control": ("idle", "intake", "deciding", "background", "pods", "containers"),
    "log": ("messages", "runtime", "dispatcher", "peer", "takeover", "backup", "finished", "space"),
    "decisions": (
        *("candidates", "selection", "allocation", "placement", "data_workers", "cluster", "ahead", "fits"),
        *("exploration", "memory", "memory_law", "memory_limits", "forecasts", "stragglers"),
    ),
    "feeding": (
        *("readers", "crossings", "feeding", "hostile", "joining", "fused_training", "wide", "money", "tuning"),
        "sharing",
    ),
    "programs": ("partitioning", "home", "agent", "items", "lost_samples"),
    "training": (
        *("plane", "store", "embedding_stores", "servers", "trainer", "spilling", "wire", "group", "stages"),
        *("device_types", "lease_ahead", "adapted"),
    ),
    "state": ("moves", "checkpoint", "differences", "worker_loss", "server_loss"),
}
"""Measurements by folder, in the order in which `make bench` runs them."""

sys.path[:0] = [str(folder) for folder in HELPERS]


def module(name: str) -> ModuleType:
    """Return a measurement's module. KeyError: no folder of :data:`MODULES` has it."""
    folder = {each: folder for folder, names in MODULES.items() for each in names}[name]
    return importlib.import_module(f"tests.bench.{folder}.{name}")
