"""A PyTorch module that is cut between its layers: each cut computes what the whole module does, to the bit."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch", reason="PyTorch is not installed here: pip install stretto[torch]")

from staged import stepped, trained  # noqa: E402
from stretto.build import make_program  # noqa: E402
from stretto.errors import ModelRefused  # noqa: E402
from stretto.examples.wide_deep_torch import WideDeep  # noqa: E402
from stretto.model.program import Options  # noqa: E402
from stretto.optimizers import Clipping  # noqa: E402
from torch import nn  # noqa: E402

FIELDS, WIDTH = 3, 4


class Task:
    """A task of 3 fields of 4 floats and 2 numbers."""

    embedding_dim = WIDTH

    def __init__(self, build: Any, **attributes: Any) -> None:
        self.build = build
        for name, value in attributes.items():
            setattr(self, name, value)

    def read(self, start: int, length: int) -> dict[str, Any]:
        place = np.arange(start, start + length)
        return {
            "label": (place % 3 == 0).astype(np.float32),
            "numeric": np.stack([place % 5, place % 2], axis=1).astype(np.float32),
            "categorical": np.stack([place % 3, place % 7, place % 11], axis=1).astype(np.int64),
        }


class Skipping(nn.Module):
    """A chain with states, in-place and random layers, a parameter of its own, and a tensor that skips cuts."""

    def __init__(self) -> None:
        super().__init__()
        width = FIELDS * WIDTH + 2
        self.first = nn.Sequential(nn.Linear(width, 9), nn.BatchNorm1d(9), nn.ReLU(inplace=True), nn.Dropout(0.0))
        self.second = nn.Sequential(nn.Linear(9 + width, 7), nn.ReLU(inplace=True), nn.BatchNorm1d(7), nn.Linear(7, 1))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, rows: Any, numeric: Any) -> Any:
        flat = torch.cat([rows.flatten(1), numeric], dim=1)
        return self.second(torch.cat([self.first(flat), flat], dim=1)) + self.bias * numeric[:, :1]


def inputs_of(program: Any, samples: int = 40) -> tuple[Any, ...]:
    """Return a prepared batch, its rows, dense parameters and the state."""
    prepared, chance = program.prepare(0, samples), np.random.default_rng(7)
    widths = [table.dimension for table in program.layout.tables]
    of_tables = zip(prepared.keys.tables, widths, strict=True)
    rows = tuple(chance.normal(size=(len(of), width)).astype(np.float32) for of, width in of_tables)
    return prepared.batch, prepared.keys, rows, program.initial_dense(), program.initial_state()


@pytest.mark.parametrize("task", [WideDeep(), Task(Skipping)])
def test_parts_compute_what_the_whole_module_does_to_the_bit(task: Any) -> None:
    program = make_program(task, Options(embedding_dim=16 if isinstance(task, WideDeep) else WIDTH))
    batch, keys, rows, dense, state = inputs_of(program)
    layers = len(program.layers)
    whole = program.step(rows, keys, dense, state, batch)
    cuts = [[cut] for cut in range(2, layers)] + [[2, layers - 1], [3, layers // 2, layers - 2]]
    for chosen in cuts:
        found = stepped(program, chosen, batch, keys, rows, dense, state)
        assert found[0] == whole.loss, chosen
        for one, other in zip((*found[1], *found[2:]), (*whole.rows, whole.dense, whole.state_delta), strict=True):
            np.testing.assert_array_equal(one, other, str(chosen))


def test_any_number_of_stages_trains_the_same_bits() -> None:
    torch.manual_seed(0)
    program = make_program(Task(Skipping), Options(embedding_dim=WIDTH))
    alone = trained(program, None)
    for first_layers in ([1], [1, 5], [1, 4, 8]):
        assert trained(program, first_layers) == alone, first_layers


def test_gradients_are_within_their_limits_on_both_sides_of_a_cut() -> None:
    program = make_program(Task(Skipping, clipping=Clipping(value=1e-3)), Options(embedding_dim=WIDTH))
    batch, keys, rows, dense, state = inputs_of(program)
    found, whole = stepped(program, [5], batch, keys, rows, dense, state), program.step(rows, keys, dense, state, batch)
    assert float(np.abs(whole.dense).max()) == pytest.approx(1e-3)
    for one, other in zip((*found[1], found[2]), (*whole.rows, whole.dense), strict=True):
        np.testing.assert_array_equal(one, other)


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.Linear(12, 12), nn.Linear(12, 1)

    def forward(self, rows: Any) -> Any:
        return self.last(self.layer(self.layer(rows.flatten(1))))


class Branching(Shared):
    def forward(self, rows: Any) -> Any:
        flat = rows.flatten(1)
        return self.last(self.layer(flat) if bool(flat.sum() > 0) else flat)


class Counting(Shared):
    """A forward that takes the number of its samples on both sides of a cut."""

    def forward(self, rows: Any) -> Any:
        samples = rows.size(0)
        return self.last(self.layer(rows.reshape(samples, -1)).reshape(samples, -1))


@pytest.mark.parametrize(
    ("build", "first", "until", "attributes", "why"),
    [
        (Shared, 3, None, {}, "the variable layer.weight is taken by the layers 2, 3, .* with layer 2 or 4;"),
        (Shared, 1, 5, {}, "first_layer = 5 of the next stage: .* to 4 \\(last\\)"),
        (Shared, 2, None, {"clipping": Clipping(global_norm=1.0)}, "norms of its gradients are limited"),
        (Branching, 2, None, {}, "torch.fx does not trace its forward, .*stages: 2"),
        (Counting, 3, None, {}, "size, which layer 4 takes, is no tensor, and crosses no cut"),
    ],
)
def test_a_module_that_cannot_be_cut_there_is_refused(
    build: Any, first: int, until: Any, attributes: Any, why: str
) -> None:
    program = make_program(Task(build, **attributes), Options(embedding_dim=WIDTH))
    with pytest.raises(ModelRefused, match=why):
        program.part(first, until)
    program.part(1, None)


def test_a_module_that_is_not_traced_has_one_layer_behind_its_rows() -> None:
    program = make_program(Task(Branching), Options(embedding_dim=WIDTH))
    assert [each.name for each in program.layers] == ["rows", "Branching as a whole"]
    assert "torch.fx does not trace its forward" in program.uncut


def drawn(rows: Any) -> Any:
    """Draw with all generators that a module of the user's may draw with."""
    return rows * (1 + random.random() + float(np.random.random()) + torch.rand(1))


torch.fx.wrap("drawn")


class Drawing(Shared):
    def forward(self, rows: Any) -> Any:
        return self.last(drawn(rows.flatten(1)))


def test_a_module_that_draws_with_any_generator_is_cut_and_changes_no_later_draw() -> None:
    program = make_program(Task(Drawing), Options(embedding_dim=WIDTH))
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    program.part(2, None)
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before
