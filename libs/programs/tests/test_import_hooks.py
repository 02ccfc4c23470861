"""Hooks behind the import of a module."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace

import pytest
from stretto_programs.errors import HookMissing
from stretto_programs.import_hooks import AfterImport, replace_method

MODULE = "colorsys"
"""A module that nothing else here imports."""


@pytest.fixture(autouse=True)
def not_imported(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the module be imported anew, by finders that end with the test."""
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    yield
    sys.modules.pop(MODULE, None)


def test_hooks_are_called_in_their_order_once_the_module_is_imported_and_not_when_it_is_looked_for() -> None:
    hooked: list[tuple[int, ModuleType]] = []
    AfterImport([{MODULE: lambda found, number=number: hooked.append((number, found))} for number in range(2)], print)
    importlib.util.find_spec(MODULE)
    assert not hooked
    module = importlib.import_module(MODULE)
    assert hooked == [(0, module), (1, module)]


def test_a_module_that_is_imported_already_is_hooked_at_once() -> None:
    hooked: list[ModuleType] = []
    AfterImport([{"json": hooked.append}], print)
    assert hooked == [sys.modules["json"]]


def test_a_place_that_is_missing_is_told_and_later_hooks_are_put_in_place() -> None:
    missing: list[HookMissing] = []
    hooked: list[ModuleType] = []
    absent = {MODULE: lambda found: replace_method(found, "rgb_to_cmyk", lambda original: original)}
    AfterImport([absent, {MODULE: hooked.append}], missing.append)
    importlib.import_module(MODULE)
    assert [str(each) for each in missing] == [f"{MODULE} has no rgb_to_cmyk: TensorFlow 2.21 with Keras 3 is known"]
    assert len(hooked) == 1


def test_a_method_is_replaced_by_one_made_of_it() -> None:
    owner = SimpleNamespace(one=lambda: 1)
    replace_method(owner, "one", lambda original: lambda: original() + 1)
    assert owner.one() == 2
