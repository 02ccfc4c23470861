"""The modules of `libs/docs`, which is no distribution, for tests."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from tests.e2e.typed import ROOT

DOCS = ROOT / "libs" / "docs"
OWN = DOCS / "pages"


def module(name: str) -> ModuleType:
    """Import a module of the folder by its name. The path is put back: other folders have a `build.py`, too."""
    sys.path.insert(0, str(DOCS))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(DOCS))
