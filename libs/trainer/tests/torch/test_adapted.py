"""PyTorch modules as strangers have them: each kind trains as plain PyTorch does, or is refused with the reason."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from planted import USERS, Kind, Task, columns, document_table, named, pairs, rows_of

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch", reason="PyTorch is not installed here: pip install stretto[torch]")

from stretto.build import make_program  # noqa: E402
from stretto.errors import DataError, ModelRefused  # noqa: E402
from stretto.export.checkpoint_source import initial_rows  # noqa: E402
from stretto.model import one_step  # noqa: E402
from stretto.model.example_batch import parts_of  # noqa: E402
from stretto.model.one_step import compare_steps  # noqa: E402
from stretto.model.program import Options  # noqa: E402
from stretto.optimizers import Adam, Clipping, Constant, RowWiseAdagrad, Warmup  # noqa: E402
from stretto.readers.hashing import VALUE_BITS  # noqa: E402
from stretto.torch.adapted import AdaptedTorchProgram  # noqa: E402
from stretto.torch.lookups import Copy  # noqa: E402
from stretto.torch.objective import own_loss  # noqa: E402
from stretto.torch.tables import sources_of  # noqa: E402
from stretto.trial.check import CheckRequest, check  # noqa: E402
from stretto.trial.local import train_locally  # noqa: E402
from stretto_parameters.keys import restore as keys_of_stored  # noqa: E402
from torch import nn  # noqa: E402
from torch_kinds import REFUSED, TAKEN, Classes, Looping, Plain, Several, Towers, growing_lists  # noqa: E402

DOCUMENT = Path(__file__).parents[2] / "ADAPT.md"
RATE = 0.5


def program_of(kind: Kind, **options: Any) -> Any:
    program = make_program(Task(kind), Options(**{"optimizer": "sgd", "learning_rate": RATE, **options}))
    assert isinstance(program, AdaptedTorchProgram)
    return program


def built(kind: Kind) -> Any:
    """Return the user's own module with the initial values that the program has."""
    np.random.seed(0)
    torch.manual_seed(0)
    model = kind.build()
    called(model.eval(), kind.read(0, 16))  # lazy modules
    return model


def called(model: Any, given: Any) -> Any:
    """Call a module on a batch of `read` as its user would."""
    inputs = parts_of(given, "the test").inputs

    def tensor(value: Any) -> Any:
        if isinstance(value, list) and isinstance(value[0], list):
            longest = max(map(len, value))
            value = np.array([row + [0] * (longest - len(row)) for row in value])
        if isinstance(value, list):
            return [tensor(each) for each in value]
        return value.clone() if isinstance(value, torch.Tensor) else torch.from_numpy(np.array(value))

    if isinstance(inputs, dict):
        taken = {name: tensor(value) for name, value in inputs.items()}
        return model(taken) if type(model).__name__ == "OneDict" else model(**taken)
    return model(*map(tensor, inputs)) if isinstance(inputs, (tuple, list)) else model(tensor(inputs))


def loss_of(kind: Kind, output: Any, given: Any) -> Any:
    """Return the loss of a batch as its user would compute it."""
    parts = parts_of(given, "the test")
    if isinstance(parts.labels, dict):
        return kind.loss({name: torch.from_numpy(value) for name, value in parts.labels.items()}, output).mean()
    labels = torch.as_tensor(parts.labels)
    if kind.loss is nn.functional.cross_entropy:
        return kind.loss(output, labels)
    labels = labels.reshape(output.shape)
    if kind.loss is not None:
        return kind.loss(output, labels)
    weights = None if parts.weights is None else torch.from_numpy(parts.weights).reshape(output.shape)
    if type(output.grad_fn).__name__.startswith("Squeeze"):  # of a sigmoid
        return nn.functional.binary_cross_entropy(output, labels, weights)
    return nn.functional.binary_cross_entropy_with_logits(output, labels, weights)


def tables_in(program: Any, model: Any) -> dict[tuple[int, int], np.ndarray]:
    """Return the tables of a module that are remote in the program, by table and field."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    return {
        (each.table, each.field): parameters[each.parameters[0]].detach().numpy().copy() for each in program.embeddings
    }


def kept_of(program: Any, keys: Any, tables: dict[tuple[int, int], np.ndarray]) -> list[np.ndarray]:
    """Return rows as the servers have them: some as differences to initial values."""
    initial = {(each.table, each.field): 0.0 if each.initial is None else each.initial for each in program.embeddings}
    return rows_of(program, keys, {place: values - initial[place] for place, values in tables.items()})


def dense_of(program: Any, model: Any) -> np.ndarray:
    """Return the other trained parameters of a module as one vector."""
    remote = {each.parameters[0] for each in program.embeddings}
    others = [p for name, p in model.named_parameters() if name not in remote and p.requires_grad]
    return np.concatenate([np.zeros(0, np.float32), *(each.detach().numpy().reshape(-1) for each in others)])


@pytest.mark.parametrize("name", TAKEN)
def test_a_step_is_that_of_pytorch(name: str):
    """Weights of the batch's rows and of the dense layers after one step of SGD are those of plain PyTorch."""
    kind = TAKEN[name]
    program = program_of(kind)
    batch = program.read(40, 24)
    keys = program.index(batch)
    model = built(kind).train()
    tables = tables_in(program, model)
    before = rows_of(program, keys, tables)
    dense, state = program.initial_dense(), program.initial_state()
    np.testing.assert_array_equal(dense, dense_of(program, model))
    torch.manual_seed(5)
    found = program.step(kept_of(program, keys, tables), keys, dense, state, batch)
    given = kind.read(40, 24)
    torch.manual_seed(5)
    loss = loss_of(kind, called(model, given), given)
    loss.backward()
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.data -= RATE * parameter.grad.to_dense()
    assert found.loss == pytest.approx(float(loss), rel=1e-5)
    after = rows_of(program, keys, tables_in(program, model))
    assert found.rows or name in ("no tables",)
    for gradient, old, new in zip(found.rows, before, after, strict=True):
        assert np.abs(gradient).max() > 0
        np.testing.assert_allclose(old - RATE * gradient, new, atol=1e-6)
    np.testing.assert_allclose(dense - RATE * found.dense, dense_of(program, model), atol=1e-6)
    moments = [each.numpy().reshape(-1) for each in model.buffers() if each.is_floating_point()]
    expected = np.concatenate([np.zeros(0, np.float32), *moments])
    np.testing.assert_allclose(state + found.state_delta, expected, atol=1e-6)


@pytest.mark.parametrize("name", TAKEN)
def test_a_prediction_is_that_of_pytorch(name: str):
    kind = TAKEN[name]
    program = program_of(kind)
    batch = program.read(100, 24)
    keys = program.index(batch)
    model = built(kind).eval()
    rows = kept_of(program, keys, tables_in(program, model))
    found = program.predict(rows, keys, program.initial_dense(), program.initial_state(), batch)
    with torch.no_grad():
        output = called(model, kind.read(100, 24))
    if isinstance(output, dict):
        assert all(np.allclose(found[each], output[each], atol=1e-6) for each in output)
        return
    is_probability = name in ("dlrm", "classes", "regression")
    expected = output if is_probability else torch.sigmoid(output)
    np.testing.assert_allclose(found.reshape(-1), expected.reshape(-1), atol=1e-6 + kind.noise)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_names_layer_and_reason(name: str):
    kind = REFUSED[name]
    with pytest.raises((ModelRefused, DataError), match=f"(?s){kind.refused}"):
        compare_steps(program_of(kind))


# --- training -----------------------------------------------------------------------------------------------


def trained_by_pytorch(kind: Kind, program: Any, optimizer: Any, samples: int, size: int) -> tuple[Any, list[float]]:
    """Train the module in plain PyTorch from the initial values that the servers draw; return it with its losses."""
    model = built(kind)
    parameters = dict(model.named_parameters())
    for each in program.embeddings:
        keys = [np.zeros(0, np.int64) for _ in program.layout.tables]
        keys[each.table] = np.arange(each.ids) | each.field << VALUE_BITS
        batch = program.layout.index(*keys)
        rows = initial_rows(program.layout.tables[each.table], keys_of_stored(batch.tables[each.table].stored))
        weights = each.whole(np.arange(each.ids), rows[batch.tables[each.table].inverse])
        parameters[each.parameters[0]].data.copy_(torch.from_numpy(weights))
    rule = optimizer(model)
    losses = []
    for start in range(0, samples, size):
        given = kind.read(start, size)
        rule.zero_grad()
        loss = loss_of(kind, called(model.train(), given), given)
        loss.backward()
        rule.step()
        losses.append(float(loss))
    return model, losses


@pytest.mark.parametrize(
    ("rule", "of_losses", "of_weights"),
    [
        (functools.partial(torch.optim.SGD, lr=0.5), 1e-6, 1e-7),
        (functools.partial(torch.optim.Adagrad, lr=0.1), 1e-6, 1e-6),
        (functools.partial(torch.optim.RMSprop, lr=0.01), 1e-2, 0.02),  # squares of rows rest without a gradient
        (functools.partial(torch.optim.Adam, lr=0.01), 1e-5, 2e-6),
        (functools.partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1), 2e-3, 0.02),  # from a row's first gradient on
    ],
    ids=["sgd", "adagrad", "rmsprop", "adam", "adamw"],
)
@pytest.mark.parametrize("name", ["plain", "sum"])
def test_training_is_that_of_pytorch(name: str, rule: Any, of_losses: float, of_weights: float):
    """A worker without a pipeline has PyTorch's losses at the end of each shard, and in the end its weights."""
    kind, size, shards = TAKEN[name], 50, 6
    trained = train_locally(Task(kind, optimizer=rule), 16 * size * shards, batch_size=size, pipeline=False)
    program = make_program(Task(kind, optimizer=rule), Options(batch_size=size))
    of_module = lambda module: rule(module.parameters())  # noqa: E731
    model, losses = trained_by_pytorch(kind, program, of_module, 16 * size * shards, size)
    assert trained.losses == pytest.approx(losses[15::16], abs=of_losses)
    assert np.mean(losses[-16:]) < np.mean(losses[:16])
    theirs, ours = model.state_dict(), trained.model().state_dict()
    assert ours.keys() == theirs.keys()
    for key in ours:
        difference = (ours[key] - theirs[key]).abs().mean()
        assert difference < of_weights


def test_lazy_adam_is_that_of_sparse_adam():
    """A table of sparse gradients whose rows have a gradient in every step, so that each counts the same steps."""
    kind = Kind("", lambda: nn.Sequential(nn.Embedding(2, 4, sparse=True), nn.Flatten(), Sum()), two_ids)
    rule = functools.partial(torch.optim.SparseAdam, lr=0.01)
    trained = train_locally(Task(kind, optimizer=rule), 3000, batch_size=50, pipeline=False)
    program = make_program(Task(kind, optimizer=rule), Options(batch_size=50))
    assert program.updates.rules[0].optimizer.step_samples == 0
    model, _ = trained_by_pytorch(kind, program, lambda module: rule(module.parameters()), 3000, 50)
    np.testing.assert_allclose(trained.model()[0].weight.detach(), model[0].weight.detach(), atol=1e-4)


def small() -> Any:
    return nn.Sequential(nn.Embedding(2, 4, sparse=True), nn.Flatten(), nn.Linear(4, 1))


def sparse_and_dense(model: Any) -> list[Any]:
    rows = torch.optim.SparseAdam(model[0].parameters(), lr=0.01)
    return [rows, torch.optim.Adam(model[2].parameters(), lr=0.02)]


def test_sparse_adam_of_tables_and_adam_of_the_rest_train_as_in_pytorch():
    kind = Kind("", small, two_ids)
    trained = train_locally(Task(kind, optimizer=sparse_and_dense), 3000, batch_size=50, pipeline=False)
    program = make_program(Task(kind, optimizer=sparse_and_dense), Options(batch_size=50))
    assert [each.step_samples for each in (program.layout.tables[0].optimizer, program.layout.optimizer)] == [0, 50]
    model, losses = trained_by_pytorch(kind, program, lambda module: Several(sparse_and_dense(module)), 3000, 50)
    assert trained.losses == pytest.approx([*losses[15::16], losses[-1]], abs=1e-5)
    for ours, theirs in zip(trained.model().parameters(), model.parameters(), strict=True):
        np.testing.assert_allclose(ours.detach(), theirs.detach(), atol=1e-4)


def test_groups_of_one_optimizer_are_rules_of_the_tables_and_parameters_in_them():
    def grouped(module: Any) -> Any:
        groups = [{"params": module[2].parameters()}, {"params": module[0].parameters(), "lr": 1.0}]
        return torch.optim.Adagrad(groups, lr=0.1)

    program = make_program(Task(Kind("", small, two_ids), optimizer=grouped), Options())
    assert [program.layout.tables[0].optimizer.learning_rate, program.layout.optimizer.learning_rate] == [1.0, 0.1]
    assert program.updates.told().startswith("rows: Adagrad(learning_rate=1.0")
    assert compare_steps(program) == ""


def test_groups_of_equal_options_are_one_rule_as_one_optimizer_is():
    def alike(module: Any) -> list[Any]:
        return [torch.optim.Adam(part.parameters(), lr=0.1) for part in (module[0], module[2])]

    one, several = (
        make_program(Task(Kind("", small, two_ids), optimizer=given), Options())
        for given in (functools.partial(torch.optim.Adam, lr=0.1), alike)
    )
    assert several.updates == one.updates
    assert several.layout == one.layout


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (lambda model: torch.optim.Adam(model[2].parameters()), "parameter 0.weight is in no group of the optimizers"),
        (
            lambda model: [torch.optim.Adam(model.parameters()), torch.optim.SGD(model[0].parameters())],
            "the parameter 0.weight is in two optimizers",
        ),
        (
            lambda model: torch.optim.SGD([{"params": [p], "lr": 1.0 / p.numel()} for p in model.parameters()]),
            "the parameters 2.weight and 2.bias have the rules SGD.learning_rate=0.25.* put these into one group",
        ),
        (lambda model: [torch.optim.Adam], "Adam.* in a list, which says not of which parameters"),
        (lambda model: 1 / 0, r"optimizer\(Sequential\) failed: ZeroDivisionError"),
        ({"0": "sgd"}, "no rule for the dense parameters, such as 2.weight: add 'dense'"),
        ({"dense": torch.optim.Adam, "1": "sgd", "rows": "sgd"}, r"'1', which is no table.* or a table \(0\)"),
        (
            {"rows": "sgd", "dense": lambda parameters: torch.optim.SGD(
                [{"params": parameters, "lr": 1.0}, {"params": [nn.Parameter(torch.ones(1))], "lr": 2.0}]
            )},
            r"optimizer\['dense'\]: SGD has groups with options of their own, and nothing says whose",
        ),
    ],
)  # fmt: skip
def test_rules_that_do_not_fit_the_parameters_of_the_module_are_refused(given: Any, told: str):
    with pytest.raises(ModelRefused, match=told):
        make_program(Task(Kind("", small, two_ids), optimizer=given), Options())


def test_a_step_by_another_rule_than_the_one_of_pytorch_is_refused(monkeypatch: pytest.MonkeyPatch):
    """The comparison covers many steps of each rule: of rows, of dense parameters, and beside a limit of both."""
    monkeypatch.setattr(one_step, "STEPS", 12)
    rules = {
        "rows": functools.partial(torch.optim.Adagrad, lr=0.1),
        "dense": functools.partial(torch.optim.Adam, lr=0.02),
    }
    own = {"rows": RowWiseAdagrad(0.1), "dense": Adam(Warmup(Constant(0.02), 2000))}
    for given in (rules, own):
        task = Task(TAKEN["plain"], optimizer=given, clipping=Clipping(global_norm=0.02))
        assert compare_steps(make_program(task, Options())) == ""
    for place, told in enumerate(("the rows of layer", "the parameter")):
        program = make_program(Task(TAKEN["plain"], optimizer=rules), Options())
        changed = [*program.updates.rules]
        changed[place] = replace(changed[place], given=functools.partial(torch.optim.Adam, lr=0.021))
        program.updates = replace(program.updates, rules=tuple(changed))
        with pytest.raises(ModelRefused, match=f"differs from one of PyTorch alone .*: {told}"):
            compare_steps(program)


class Sum(nn.Module):
    def forward(self, rows: Any) -> Any:
        return rows.sum(dim=1)


def two_ids(start: int, length: int) -> Any:
    found = columns(start, length)
    return found["user"] % 2, found["label"]


def test_several_workers_tables_and_shards_learn_what_was_planted():
    trained = train_locally(
        Task(TAKEN["widths"], optimizer=functools.partial(torch.optim.Adagrad, lr=0.2)),
        20_000,
        batch_size=100,
        evaluate_samples=4000,
    )
    assert trained.quality.auc > 0.85


def test_a_model_with_its_own_loss_is_evaluated_by_it():
    trained = train_locally(Task(TAKEN["outputs"]), 4000, batch_size=50, evaluate_samples=1000, learning_rate=0.3)
    assert trained.quality.loss_name == "loss loss_of_two"
    assert np.isnan(trained.quality.auc)
    model, given = trained.model(), TAKEN["outputs"].read(4000, 1000)
    assert trained.quality.loss == pytest.approx(
        float(loss_of(TAKEN["outputs"], called(model, given), given)), rel=1e-5
    )


# --- what is found where ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["branching", "packed"])
def test_a_forward_that_needs_values_gets_some(name: str):
    assert program_of(TAKEN[name])._needs_values


def test_no_dense_layer_computes_while_ids_are_found():
    """The first table is followed by dense layers before the second one is looked up; none runs on numbers."""
    ran: list[Any] = []

    class Watched(nn.Linear):
        def forward(self, input: Any) -> Any:
            found = super().forward(input)
            ran.append(type(found).__name__)
            return found

    def build() -> Any:
        model = Towers()
        model.user_tower[0] = Watched(4, 8)
        model.last = Watched(4, 1)
        return model

    program = program_of(Kind("", build, named("user", "item")))
    ran.clear()
    program.read(0, 8)
    assert ran == ["Unknown"]


def test_a_larger_number_of_lookups_than_in_the_first_samples_is_no_fault_where_it_varied_there():
    program = program_of(TAKEN["looping"])
    assert [len(program.read(start, 8)["lookups"]) for start in (0, 8, 32)] == [1, 2, 2]


def test_a_number_of_lookups_that_varies_later_is_refused():
    def read(start: int, length: int) -> Any:
        return growing_lists(start, length) if start else {"tags": [[1]] * length, "label": np.zeros(length)}

    program = program_of(Kind("", Looping, read))
    batch = program.read(200, 8)
    keys = program.index(batch)
    rows = [np.zeros((len(of), 4), np.float32) for of in keys.tables]
    with pytest.raises(ModelRefused, match="layer tags is called more often or in another order"):
        program.step(rows, keys, program.initial_dense(), program.initial_state(), batch)


def test_initial_values_that_the_servers_draw_are_no_values_of_a_worker():
    for name, distribution, scale in (("plain", "normal", 1.0), ("uniform", "uniform", (6 / (USERS + 6)) ** 0.5)):
        program = program_of(TAKEN[name])
        table = program.layout.tables[0]
        assert (table.distribution, table.initial_scale) == (distribution, pytest.approx(scale))
        assert all(each.initial is None for each in program.embeddings)
    program = program_of(TAKEN["copied"])
    assert [each.initial is None for each in program.embeddings] == [False, True]
    assert all(source.parameter.shape[0] == 0 for source in program._sources)


MEMORY = """
import gc
import numpy as np, psutil
from stretto.model.program import Options
from stretto.build import make_program
from torch import nn

class Task:
    def build(self):
        model = nn.Sequential(nn.Embedding(500_000, 64), nn.Linear(64, 1))
        print(resident())
        return model

    def read(self, start, length):
        ids = np.arange(start, start + length)
        return ids, ids % 2

def resident():
    gc.collect()
    return psutil.Process().memory_info().rss

program = make_program(Task(), Options())
print(resident())
"""


def test_a_worker_does_not_hold_a_table_of_the_servers():
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    built, ready = map(int, done.stdout.split()[-2:])
    assert built - ready > 0.8 * 500_000 * 64 * 4


def test_the_row_of_the_padding_is_never_trained():
    program = program_of(TAKEN["padded"])
    batch = program.read(0, 30)
    keys = program.index(batch)
    rows = [np.ones((len(of), 4), np.float32) for of in keys.tables]
    found = program.step(rows, keys, program.initial_dense(), program.initial_state(), batch)
    [(table, place, weights)] = program._tables.fixed(keys)
    assert not found.rows[table][place].any()
    assert not weights.any()
    assert not program._tables.whole(rows, keys)[table][place].any()


def test_gradients_of_each_layer_are_clipped_as_those_of_a_variable_of_its_own():
    kind = TAKEN["plain"]
    program = make_program(Task(kind, clipping=Clipping(norm=1e-3)), Options())
    batch = program.read(40, 24)
    keys = program.index(batch)
    rows = kept_of(program, keys, tables_in(program, built(kind)))
    found = program.step(rows, keys, program.initial_dense(), program.initial_state(), batch)
    fields = keys_of_stored(keys.tables[0].stored) >> VALUE_BITS
    norms = [float(np.linalg.norm(found.rows[0][fields == field])) for field in (0, 1)]
    assert norms == pytest.approx([1e-3, 1e-3])


@pytest.mark.parametrize("value", [-1, USERS])
def test_ids_outside_a_table_are_named(value: int):
    def read(start: int, length: int) -> Any:
        found = columns(start, length)
        return {**{name: found[name] for name in ("item", "price", "label")}, "user": np.where(
            np.arange(start, start + length) == 103, value, found["user"]
        )}  # fmt: skip

    program = program_of(Kind("", Plain, read))
    with pytest.raises(
        DataError, match=f"the samples from 100 on: layer users has no row {value}: its ids are 0 to 59"
    ):
        program.read(100, 8)


@pytest.mark.parametrize(
    ("read", "named"),
    [
        (named("user", "item"), "forward takes .'user', 'item', 'price'., of which .'price'. are missing"),
        (pairs("user", "item"), "gave 2 inputs, forward takes .'user', 'item', 'price'."),
        (pairs("user"), "gave one inputs, forward takes"),
        (lambda start, length: 3, "gave int; expected a dict"),
    ],
)
def test_inputs_that_do_not_fit_are_named(read: Any, named: str):
    with pytest.raises(DataError, match=named):
        program_of(Kind("", Plain, read))


@pytest.mark.parametrize("name", ["plain", "offsets", "dlrm"])
def test_check_finds_no_fault_and_writes_a_job_file(name: str, monkeypatch: pytest.MonkeyPatch):
    module = types.ModuleType("own_code")
    module.Own = lambda: Task(TAKEN[name], samples=2000)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_code", module)
    report = check(CheckRequest("own_code:Own", steps=4, batch_size=64))
    assert report.findings == []
    assert (report.figures.framework, report.figures.dense_parameters > 0) == ("PyTorch", True)
    assert "own_code:Own" in report.job


def test_a_column_that_forward_does_not_take_is_left_out():
    program = program_of(Kind("", Plain, named("user", "item", "price", "many")))
    assert len([name for name in program.read(0, 8) if name.startswith("input")]) == 3


def test_decay_of_weights_is_refused_where_differences_are_kept():
    with pytest.raises(ModelRefused, match=r"layer users has initial values of its own.*AdamW"):
        make_program(Task(TAKEN["pretrained"]), Options(optimizer="adamw"))


class Halved(nn.BCEWithLogitsLoss):
    """A loss of a user's own, in the form of PyTorch's."""

    def forward(self, input: Any, target: Any) -> Any:
        return super().forward(input, target) / 2


ENTROPY = nn.functional.binary_cross_entropy_with_logits


@pytest.mark.parametrize(
    ("loss", "share"),
    [
        (nn.BCEWithLogitsLoss(), 1),
        (Halved(), 0.5),
        (ENTROPY, 1),
        (functools.partial(functools.partial(ENTROPY, reduction="none"), pos_weight=torch.ones(1)), 1),
        (lambda label, output: ENTROPY(output, label), 1),
    ],
)
def test_a_loss_in_the_form_of_pytorch_gets_the_output_first(loss: Any, share: float):
    """With label and output exchanged, cross-entropy is a number, too, and falls as the logits of all samples grow."""
    task = types.SimpleNamespace(loss=loss)
    label, output = torch.tensor([1.0, 0.0]), torch.tensor([3.0, -0.5])
    found = own_loss(task, torch.device("cpu"))(label, output).mean()
    assert float(found) == pytest.approx(share * float(ENTROPY(output, label)))


def test_a_loss_with_parameters_of_its_own_is_refused():
    """The loss's parameters are not among the model's, so that nobody would train them."""
    loss = nn.BCEWithLogitsLoss()
    loss.scale = nn.Parameter(torch.ones(1))
    with pytest.raises(ModelRefused, match="loss BCEWithLogitsLoss has parameters of its own, scale"):
        make_program(Task(TAKEN["plain"], loss=loss), Options())


def test_a_loss_is_computed_where_the_outputs_are():
    """Method: the device without values stands for a GPU."""
    there = torch.device("meta")
    task = types.SimpleNamespace(loss=nn.BCEWithLogitsLoss(pos_weight=torch.ones(1)))
    label, output = (torch.ones(2, device=there) for _ in range(2))
    assert own_loss(task, there)(label, output).device == there


def test_a_copy_on_another_device_keeps_what_modules_share():
    """Method: the device without values stands for a GPU."""
    model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[2].weight = model[1].weight
    there = torch.device("meta")
    copied = Copy(model, sources_of(model), device=there).module
    assert copied[2].weight is copied[1].weight
    assert copied[1].weight.device == there
    assert copied[0].weight.device == there, "a forward that asks where its table is makes tensors there"
    assert model[1].weight.device.type == "cpu"


def test_a_module_that_cannot_train_on_the_last_sample_alone_is_refused_before_it_trains():
    """The statistics of a BatchNorm need two samples; the last of 2001 is alone."""
    with pytest.raises(ModelRefused, match=r"more than 1 value per channel.*dataset\.batch_size"):
        train_locally(Task(TAKEN["statistics"]), 2001, batch_size=50)
    assert train_locally(Task(TAKEN["statistics"]), 102, batch_size=50).steps == 3
    assert train_locally(Task(TAKEN["plain"]), 101, batch_size=50).steps == 3


def test_one_loss_for_samples_with_weights_is_refused():
    kind = Kind("", lambda: Classes(1), pairs("user", "item", weight="importance"), loss=nn.MSELoss())
    with pytest.raises(ModelRefused, match="is one number, and samples have weights"):
        program_of(kind)


def test_the_document_lists_what_was_tried():
    table = document_table(TAKEN, REFUSED)
    assert table in DOCUMENT.read_text(), f"the table of {DOCUMENT.name} is to be\n{table}"


def test_the_example_of_the_document_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    task, trial = (block.split("```")[0] for block in DOCUMENT.read_text().split("```python\n")[-2:])
    (tmp_path / "clicks.py").write_text(task)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "clicks", raising=False)
    exec(compile(trial, DOCUMENT.name, "exec"), {})
    found = re.search(r"auc=([0-9.]+).*torch.Size\(\[1000, 16\]\)", capsys.readouterr().out)
    assert float(found.group(1)) > 0.9
