"""Setup of container tests: an engine with every image, or the reason why there is none."""

from __future__ import annotations

import os
from functools import cache

import pytest

from tests.containers import bases, compose, images
from tests.containers.engine import INSTALL, Engine, EngineUnavailable


@cache
def engine() -> Engine:
    """The machine's, with the images of this checkout. Skips the test where it cannot be had."""
    found = Engine()
    allowed = os.environ.get(INSTALL) == "1"
    try:
        found.up(install=allowed)
        if allowed:
            bases.make(found)
            images.build(found)
    except EngineUnavailable as error:
        pytest.skip(str(error))
    if reason := images.unfit(found):
        pytest.skip(f"{reason}, or set {INSTALL}=1 to let the tests make them")
    return found


def engine_with_compose() -> Engine:
    """Return the engine with every image, or skip the test; Compose is needed as well."""
    found = engine()
    try:
        compose.command(found, install=os.environ.get(INSTALL) == "1")
    except EngineUnavailable as error:
        pytest.skip(str(error))
    return found
