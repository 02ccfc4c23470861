"""Pickles what a script itself defines: an extra, which a clone need not have."""

from typing import Any

def __getattr__(name: str) -> Any: ...
