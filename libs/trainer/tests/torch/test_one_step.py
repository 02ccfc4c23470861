"""Generated PyTorch modules: each trains as plain PyTorch does, or is refused; none differs in silence."""

from __future__ import annotations

import functools
import random
from typing import Any

import numpy as np
import pytest
from stretto.errors import ModelRefused

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch", reason="PyTorch is not installed here: pip install stretto[torch]")

from generated import BATCH, ERROR, Samples, trained  # noqa: E402
from stretto.optimizers import Clipping  # noqa: E402
from torch import nn  # noqa: E402
from torch_kinds import Several  # noqa: E402


class Averaging(nn.Module):
    """Keeps a moving mean of what it sees, and takes it off."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))

    def forward(self, given: Any) -> Any:
        if self.training:
            self.mean.mul_(0.9).add_(0.1 * given.detach().mean(0))
        return given - self.mean


class Annealing(nn.Module):
    """Grows with the steps that it has counted."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, given: Any) -> Any:
        if self.training:
            self.steps += 1
        return given * (1 + 0.1 * self.steps)


class Clamping(nn.Module):
    """Puts its weights into a range in place."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, given: Any) -> Any:
        self.scale.data.clamp_(0.0, 0.9)
        return given * self.scale


class Hooked(nn.Linear):
    """Reverses the gradient of its bias."""

    def __init__(self, width: int) -> None:
        super().__init__(width, width)
        self.bias.register_hook(torch.neg)


class Spare(nn.Linear):
    """Has a parameter that nothing depends on."""

    def __init__(self, width: int) -> None:
        super().__init__(width, width)
        self.spare = nn.Parameter(torch.ones(3))


def _between(draw: random.Random, width: int) -> nn.Module:
    kinds = (
        *(lambda: nn.Sequential(nn.Linear(width, width), nn.Tanh()), lambda: nn.GELU()),
        *(lambda: nn.BatchNorm1d(width), lambda: nn.LayerNorm(width), lambda: nn.Hardtanh()),
        *(lambda: Averaging(width), lambda: Annealing(width), lambda: Clamping(width), lambda: Hooked(width)),
        lambda: Spare(width),
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(width, width)),
        lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(width, width)),
    )
    return draw.choice(kinds)()


class Net(nn.Module):
    """Tables, layers between, and one output or three."""

    def __init__(self, draw: random.Random, sizes: dict[str, int], outputs: int) -> None:
        super().__init__()
        dimension, total = draw.choice((2, 4)), 0
        self.tables = nn.ModuleDict()
        for name, size in sizes.items():
            padding = draw.choice((None, None, 0))
            sparse = draw.random() < 0.2
            if draw.random() < 0.4:
                table: Any = nn.EmbeddingBag(size, dimension, mode=draw.choice(("sum", "mean")), padding_idx=padding)
                total += dimension
            else:
                table = nn.Embedding(size, dimension, padding_idx=padding, sparse=sparse)
                total += 2 * dimension
            if draw.random() < 0.5:
                table.weight.data.mul_(0.5)
            table.weight.requires_grad_(draw.random() < 0.9)
            self.tables[name] = table
        self.between = nn.Sequential(*(_between(draw, total) for _ in range(draw.choice((0, 1, 2)))))
        self.last = nn.Linear(total, outputs)

    def forward(self, **given: Any) -> Any:
        found = torch.cat([table(given[name]).flatten(1) for name, table in self.tables.items()], dim=1)
        return self.last(self.between(found))


def _optimizer(draw: random.Random) -> Any:
    rate = draw.choice((0.01, 0.05))
    optim = torch.optim
    options: dict[str, Any] = {}
    if draw.random() < 0.15:
        options = {draw.choice(("maximize", "foreach")): True}
    kinds: tuple[Any, ...] = (
        lambda: functools.partial(
            optim.SGD, lr=rate, momentum=draw.choice((0, 0.9)), dampening=draw.choice((0, 0, 0.1)), **options
        ),
        lambda: functools.partial(optim.SGD, lr=rate, momentum=0.9, nesterov=True, **options),
        lambda: functools.partial(optim.Adagrad, lr=rate, lr_decay=draw.choice((0, 0, 0.1)), **options),
        lambda: functools.partial(optim.Adam, lr=rate, amsgrad=draw.random() < 0.15, **options),
        lambda: functools.partial(optim.Adam, lr=rate, weight_decay=draw.choice((0, 0.1)), **options),
        lambda: functools.partial(optim.AdamW, lr=rate, **options),
        lambda: functools.partial(
            optim.RMSprop, lr=rate, momentum=draw.choice((0, 0.9)), centered=draw.random() < 0.2, **options
        ),
        lambda: draw.choice((optim.Adam, optim.SGD, optim.AdamW, optim.NAdam, optim.Adamax)),
    )
    return draw.choice(kinds)()


class Generated(Samples):
    """A module and its optimizer, of a seed."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.is_weighted = False
        draw = random.Random(seed)
        self.optimizer = _optimizer(draw)
        if draw.random() < 0.4:
            self.clipping = draw.choice((Clipping(value=0.002), Clipping(global_norm=0.02), Clipping(norm=0.02)))
        if self.target != "binary":
            self.loss = nn.HuberLoss() if self.target == "stars" else nn.CrossEntropyLoss()

    def build(self) -> Any:
        torch.manual_seed(self.seed)
        return Net(random.Random(self.seed + 1), self.sizes, 3 if self.target == "class" else 1)

    def trained_by_pytorch(self, start: dict[str, Any]) -> Any:
        """Return the module after a step for each of the two batches, as a user writes it. start: first rows."""
        model = self.build()
        for name, rows in start.items():
            model.get_submodule(name).weight.data = torch.from_numpy(rows)
        rule = self.rule_of(model)
        for begin in (0, BATCH):
            inputs, label = self.read(begin, BATCH)
            output = model(**{name: torch.from_numpy(each) for name, each in inputs.items()})
            label = torch.from_numpy(label)
            if self.target == "class":
                loss = self.loss(output, label)
            else:
                function = nn.functional.binary_cross_entropy_with_logits if self.target == "binary" else self.loss
                loss = function(output, label.float().reshape(output.shape))
            rule.zero_grad()
            loss.backward()
            for each in model.parameters():
                if each.grad is not None and each.grad.is_sparse:  # nothing but some optimizers takes these
                    each.grad = each.grad.to_dense()
            self._clip([each for each in model.parameters() if each.grad is not None])
            rule.step()
        return model

    def rule_of(self, model: Any) -> Any:
        """Return an optimizer of the module."""
        options = {"lr": 0.05} if isinstance(self.optimizer, type) else {}  # that of the job
        return self.optimizer([each for each in model.parameters() if each.requires_grad], **options)

    def _clip(self, parameters: list[Any]) -> None:
        limits = getattr(self, "clipping", Clipping())
        if limits.value is not None:
            nn.utils.clip_grad_value_(parameters, limits.value)
        if limits.norm is not None:
            for each in parameters:
                nn.utils.clip_grad_norm_([each], limits.norm)
        if limits.global_norm is not None:
            nn.utils.clip_grad_norm_(parameters, limits.global_norm)


@pytest.mark.parametrize("first", [0, pytest.param(50, marks=[pytest.mark.night])])
def test_a_generated_module_trains_as_pytorch_does_or_is_refused(first: int):
    refused: list[str] = []
    for seed in range(first, first + 50):
        task = Generated(seed)
        try:
            with torch.random.fork_rng():
                program, start = trained(task)
        except ModelRefused as error:
            refused.append(str(error))
            continue
        _check_is_that_of_pytorch(task, program, start)
    assert len(refused) < 35
    assert all(len(each) > 60 for each in refused)


def _check_is_that_of_pytorch(task: Generated, program: Any, start: dict[str, Any]) -> None:
    expected = task.trained_by_pytorch(start).state_dict()
    for name, value in program.model.state_dict().items():
        rows = task.seen(name.removesuffix(".weight")) if name.startswith("tables") else slice(None)
        value, other = (each.numpy()[rows] if each.ndim else each for each in (value, expected[name]))
        np.testing.assert_allclose(value, other, rtol=1e-5, atol=ERROR, err_msg=f"{task.seed}: {name}")


class Divided(Generated):
    """A module of a seed whose optimizers are made from it: of tables, and of all other parameters."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        draw = random.Random(seed)
        self.makers = [_optimizer(draw), _optimizer(draw)]
        self.optimizer = self._optimizers

    def _optimizers(self, model: Any) -> list[Any]:
        tables = {id(each) for each in model.tables.parameters()}
        parts = (
            [p for p in model.parameters() if p.requires_grad and (id(p) in tables) is own] for own in (True, False)
        )
        options = [{"lr": 0.05} if isinstance(make, type) else {} for make in self.makers]
        return [make(part, **o) for make, part, o in zip(self.makers, parts, options, strict=True) if part]

    def rule_of(self, model: Any) -> Any:
        return Several(self._optimizers(model))


@pytest.mark.parametrize("first", [0, pytest.param(50, marks=[pytest.mark.night])])
def test_tables_and_dense_parameters_train_by_optimizers_of_their_own(first: int):
    compared: list[int] = []
    for seed in range(first, first + 50):
        task = Divided(seed)
        try:
            with torch.random.fork_rng():
                program, start = trained(task)
        except ModelRefused:
            continue
        compared.append(len(program.updates.rules))
        _check_is_that_of_pytorch(task, program, start)
    assert len(compared) > 5
    assert max(compared) == 2
