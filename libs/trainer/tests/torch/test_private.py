"""The private names of PyTorch that Stretto uses: those of the oldest release, and a clear sentence if one is gone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from stretto.errors import ModelRefused

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")

from stretto.torch import private  # noqa: E402

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_the_oldest_release_is_the_one_that_the_extra_takes() -> None:
    oldest = re.search(r'"torch>=([\d.]+)"', PROJECT.read_text())
    assert oldest[1] == private.KNOWN


def test_nests_are_taken_apart_and_put_together() -> None:
    values, structure = private.leaves_and_structure({"a": 1, "b": (2, 3)})
    assert values == private.leaves_of({"a": 1, "b": (2, 3)}) == [1, 2, 3]
    assert private.nested([4, 5, 6], structure) == {"a": 4, "b": (5, 6)}


def test_a_tensor_of_a_class_of_its_own_is_a_plain_one_within_a_block() -> None:
    class Own(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return "own"

    tensor = private.as_class(Own, torch.ones(2))
    assert torch.sum(tensor) == "own"
    with private.without_subclasses():
        assert float(torch.sum(tensor)) == 2.0


def test_a_mode_sees_each_operation() -> None:
    seen: list[str] = []

    class Mode(private.DispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Mode():
        torch.empty(2).normal_()
    assert any("normal_" in each for each in seen)


def test_a_change_in_place_is_seen() -> None:
    tensor = torch.zeros(2)
    assert not private.was_changed(tensor)
    tensor += 1
    assert private.was_changed(tensor)


def test_parameters_and_buffers_of_a_module_alone_can_be_replaced() -> None:
    module = torch.nn.Sequential(torch.nn.BatchNorm1d(2))
    assert private.own_parameters(module) == {}
    assert {*private.own_parameters(module[0])} == {"weight", "bias"}
    private.own_buffers(module[0])["running_mean"] = torch.ones(2)
    assert module.state_dict()["0.running_mean"].tolist() == [1.0, 1.0]


def test_a_name_that_is_gone_is_told_with_a_release_that_has_it() -> None:
    with pytest.raises(ModelRefused, match=rf"has no torch\.utils\.nothing, .* as {private.KNOWN} has"):
        private._of("utils.nothing")
    with pytest.raises(ModelRefused, match=r"has no object\._version, which Stretto uses"):
        private.was_changed(object())
