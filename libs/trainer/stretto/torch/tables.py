"""The tables of a PyTorch module's embedding layers, and how their rows begin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from ..engine.layout import F32
from ..errors import ModelRefused
from ..model.program import LARGEST_EMBEDDING
from ..model.tables import Start, start_of_values
from .private import DispatchMode, own_parameters

_DISTRIBUTIONS = {torch.ops.aten.normal_.default: "normal", torch.ops.aten.uniform_.default: "uniform"}


@dataclass(frozen=True, slots=True)
class Source:
    """The table of one or several embedding layers. names: all that the parameter has in the module's state_dict."""

    parameter: Any
    path: str
    names: tuple[str, ...]
    shape: tuple[int, int]
    padding_idx: int | None

    @property
    def weights(self) -> F32:
        """The values of the table: [ids, dimension], in its own memory."""
        return self.parameter.detach().numpy()

    @property
    def is_small(self) -> bool:
        """True if it may be among the dense parameters, which every step pulls."""
        return self.parameter.numel() <= LARGEST_EMBEDDING


def sources_of(model: Any) -> list[Source]:
    """Return the tables that are trained. Raises ModelRefused for a table that is not float32 on the CPU."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    found: dict[int, Source] = {}
    for path, module in model.named_modules():
        if not isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)):
            continue
        weight = own_parameters(module).get("weight")  # none where it is computed, as by a parametrization
        if weight is None or not weight.requires_grad or id(weight) in found:
            continue
        if weight.dtype != torch.float32 or weight.device.type != "cpu":
            raise ModelRefused(
                f"layer {path}: its table has type {weight.dtype} on {weight.device}; parameters are float32 on the "
                "CPU here: leave out half(), bfloat16() and to(device)"
            )
        shape = (weight.shape[0], weight.shape[1])
        found[id(weight)] = Source(
            weight, path or type(model).__name__, tuple(names[id(weight)]), shape, module.padding_idx
        )
    return list(found.values())


# --- initial values -----------------------------------------------------------------------------------------


def start_of(source: Source, draws: Draws) -> Start:
    """Return how the rows of a table begin: by the servers' own distribution where `build` drew them from one."""
    weights = source.weights
    draw = draws.of(source.parameter, source.padding_idx)
    if draw is None:
        return start_of_values(weights)
    middle = np.broadcast_to(np.float32(draw.middle), weights.shape) if draw.middle else None
    return Start(float(np.float32(draw.scale)), middle, draw.distribution)


@dataclass(frozen=True, slots=True)
class Draw:
    """A distribution that all values of a tensor were drawn from."""

    distribution: Literal["uniform", "normal"]
    middle: float
    scale: float
    """Half of the range of a uniform one, the standard deviation of a normal one."""


class Draws(DispatchMode):
    """Notes in a `with` block which matrices were filled at random, however that was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self._by_address: dict[int, tuple[Draw, Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _DISTRIBUTIONS and args[0].dim() == 2 and args[0].dtype == torch.float32:
            one, other = (*args[1:3], *(0.0, 1.0)[len(args) - 1 :])
            if _DISTRIBUTIONS[func] == "normal":
                draw = Draw("normal", one, other)
            else:
                draw = Draw("uniform", (one + other) / 2, (other - one) / 2)
            self._by_address[args[0].data_ptr()] = draw, _sums(args[0])
        return result

    def of(self, table: Any, padding_idx: int | None) -> Draw | None:
        """Return how the rows of a table were drawn, leaving the padding row out; None if some were set since."""
        found = self._by_address.get(table.data_ptr())
        if found is None:
            return None
        draw, sums = found
        if len(sums) != len(table):
            return None
        is_same = _sums(table.detach()) == sums
        if padding_idx is not None:
            is_same[padding_idx] = True
        return draw if bool(is_same.all()) else None


def _sums(table: Any) -> Any:
    """Return for each row the sum of its bits as integers, which another row hardly has."""
    return table.detach().contiguous().view(torch.int32).sum(dim=1)
