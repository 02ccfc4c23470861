"""PyTorch modules: they train as Keras models do, and what cannot be trained is refused with a remedy."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clicks import readme_code, write_clicks

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch", reason="PyTorch is not installed here: pip install stretto[torch]")

from stretto.build import make_program  # noqa: E402
from stretto.errors import DataError, ModelRefused  # noqa: E402
from stretto.examples.wide_deep_torch import WideDeep  # noqa: E402
from stretto.model.program import Options  # noqa: E402
from stretto.optimizers import SGD, Adam, Clipping, Constant, Cosine, RowWiseAdagrad, Warmup  # noqa: E402
from stretto.torch.program import TorchProgram  # noqa: E402
from stretto.trial.local import train_locally  # noqa: E402
from torch import nn  # noqa: E402

FIELDS, WIDTH = 3, 4


class Net(nn.Module):
    """A layer of what `forward` concatenates; more layers come from the test."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers, nn.Linear(FIELDS * WIDTH + 2, 1))

    def forward(self, rows: Any, numeric: Any) -> Any:
        return self.layers(torch.cat([rows.flatten(1), numeric], dim=1))


class Task:
    """The smallest task: 3 fields of 4 floats, 2 numbers; ``build`` comes from the test."""

    embedding_dim = WIDTH

    def __init__(self, build: Any = Net, **attributes: Any) -> None:
        self._build = build
        for name, value in attributes.items():
            setattr(self, name, value)

    def build(self) -> Any:
        return self._build()

    def read(self, start: int, length: int) -> dict[str, Any]:
        place = np.arange(start, start + length)
        label = (place % 3 == 0).astype(np.float32)
        return {
            "label": label,
            "numeric": np.stack([label + 0.1 * (place % 5), place % 2], axis=1),  # float64: it arrives as float32
            "categorical": np.stack([place % 3, place % 7, place % 11], axis=1),
        }


def program_of(task: Any, **options: Any) -> Any:
    program = make_program(task, Options(**options))
    assert isinstance(program, TorchProgram)
    return program


def values_of(program: Any, samples: int = 8, start: int = 10) -> tuple[Any, ...]:
    """Return what a step takes: random rows of each table, keys, dense, state, batch."""
    batch = program.read(start, samples)
    keys = program.index(batch)
    random = np.random.default_rng(1)
    pairs = zip(keys.tables, program.layout.tables, strict=True)
    rows = tuple(random.normal(size=(len(of), table.dimension)).astype(np.float32) for of, table in pairs)
    return rows, keys, program.initial_dense(), program.initial_state(), batch


# --- a step is what PyTorch computes, and what Keras computes -------------------------------------------------


def test_gradients_are_those_of_the_module() -> None:
    program = program_of(Task(lambda: Net(nn.Linear(14, 14), nn.Tanh())))
    rows, keys, dense, state, batch = values_of(program)
    found = program.step(rows, keys, dense, state, batch)
    table = torch.tensor(rows[0], requires_grad=True)
    output = program.model(table[torch.tensor(keys.tables[0].inverse)], torch.tensor(batch["numeric"]).float())
    label = torch.tensor(batch["label"])[:, None]
    loss = nn.functional.binary_cross_entropy_with_logits(output, label)
    of_rows, *of_dense = torch.autograd.grad(loss, [table, *program.model.parameters()])
    assert found.loss == pytest.approx(loss.item(), rel=1e-6)
    np.testing.assert_allclose(found.rows[0], of_rows, rtol=1e-5, atol=1e-7)
    flat = np.concatenate([gradient.numpy().reshape(-1) for gradient in of_dense])
    np.testing.assert_allclose(found.dense, flat, rtol=1e-5, atol=1e-7)
    predicted = program.predict(rows, keys, dense, state, batch)
    np.testing.assert_allclose(predicted, torch.sigmoid(output).detach()[:, 0], rtol=1e-6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU here")
def test_a_module_computes_on_the_gpu_that_it_is_given_as_on_the_cores() -> None:
    """Gradients, statistics and predictions agree; the buffers of all types have moved with the parameters."""
    here, there = (
        program_of(Task(lambda: Net(nn.Linear(14, 14), nn.BatchNorm1d(14))), seed=3, has_devices=has_devices)
        for has_devices in (False, True)
    )
    assert {each.device.type for each in there.model.parameters()} == {"cuda"}
    values = values_of(here)
    for ours, theirs in zip(values_of(there)[2:4], values[2:4], strict=True):
        np.testing.assert_array_equal(ours, theirs)
    expected, found = here.step(*values), there.step(*values)
    for ours, theirs in zip((*expected.rows, expected.dense), (*found.rows, found.dense), strict=True):
        np.testing.assert_allclose(theirs, ours, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(found.state_delta, expected.state_delta, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(there.predict(*values), here.predict(*values), rtol=1e-3, atol=1e-5)


def test_a_module_stays_on_the_cores_where_the_job_states_no_devices(tmp_path: Path) -> None:
    """The worker's process sees no GPU, so that neither framework takes one that another pod was given."""
    ask = f"{IMPORTED}\nprint(repr(os.environ.get('CUDA_VISIBLE_DEVICES')), program._device)"
    command = [sys.executable, "-c", ask, "stretto.examples.wide_deep_torch:WideDeep"]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "0"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.stdout.splitlines()[-1] == "'' cpu", done.stderr[-3000:]


def test_the_demonstrations_model_has_the_gradients_that_it_has_in_keras() -> None:
    """Wide & Deep in both, on the same parameters; Keras keeps the kernel of a layer transposed."""
    pytest.importorskip("keras")
    from stretto.examples.wide_deep import WideDeep as InKeras

    arguments: Any = {"seed": 5, "categories": 2000, "hidden": "16,8", "embedding_dim": 8}
    ours, theirs = program_of(WideDeep(**arguments)), make_program(InKeras(**arguments), Options())
    assert ours.layout.dense_size == theirs.layout.dense_size
    rows, keys, _, state, batch = values_of(ours, 256)
    dense = theirs.initial_dense()
    theirs.load_into_model(dense, state)
    shapes = [variable.shape for variable in theirs.model.trainable_variables]

    def as_torch(vector: np.ndarray) -> np.ndarray:
        parts = np.split(vector, np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1])
        return np.concatenate([part.reshape(shape).T.reshape(-1) for part, shape in zip(parts, shapes, strict=True)])

    found = ours.step(rows, keys, as_torch(dense), state, batch)
    expected = theirs.step(rows, keys, dense, state, batch)
    assert found.loss == pytest.approx(expected.loss, rel=1e-5)
    np.testing.assert_allclose(found.rows[0], expected.rows[0], rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(found.dense, as_torch(expected.dense), rtol=1e-4, atol=1e-6)
    predicted = theirs.predict(rows, keys, dense, state, batch)
    np.testing.assert_allclose(ours.predict(rows, keys, as_torch(dense), state, batch), predicted, rtol=1e-4)


def test_the_demonstrations_model_learns() -> None:
    arguments = {"seed": 4, "categories": 3000, "hidden": "32"}
    trained = train_locally(
        WideDeep, 40_000, arguments=arguments, evaluate_samples=8000, embedding_dim=8, learning_rate=0.1
    )
    assert trained.quality.auc > 0.6
    assert not trained.model().training
    assert np.array_equal(trained.program.initial_dense(), np.concatenate([
        parameter.detach().reshape(-1) for parameter in trained.model().parameters()
    ]))  # fmt: skip


@pytest.mark.parametrize("name", ["Clicks", "TwoTables"])
def test_the_examples_of_the_readme_work(tmp_path: Path, name: str) -> None:
    names: dict[str, Any] = {}
    exec(compile(readme_code("import stretto, torch", "class TwoTables"), "README.md", "exec"), names)
    arguments = {"data": write_clicks(tmp_path)}
    options: dict[str, Any] = {"learning_rate": 0.02, "evaluate_samples": 1000, "batch_size": 50}
    trained = train_locally(names[name], 5000, arguments=arguments, **options)
    assert trained.quality.auc > 0.75


def test_the_rules_of_the_readme_are_of_the_tables_that_they_name(tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    code = readme_code("import stretto, torch", "class TwoTables", "class TwoRules")
    exec(compile(code, "README.md", "exec"), names)
    program = program_of(names["TwoRules"](write_clicks(tmp_path)))
    rules = dict(zip(program.tables, (each.optimizer for each in program.layout.tables), strict=True))
    assert rules == {"rows_place": SGD(0.1), "rows_user": RowWiseAdagrad(0.02)}
    assert program.layout.optimizer == Adam(Warmup(Constant(0.001), 10**6))
    assert program.updates.rules[program.updates.rule_of("rows_place")].clipping == Clipping(value=1.0)


class Reassigning(nn.Module):
    """Counts its calls by another tensor in the buffer's place."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Any) -> Any:
        self.calls = self.calls + 1
        return x


def test_buffers_are_the_state_on_the_servers() -> None:
    program = program_of(Task(lambda: Net(nn.BatchNorm1d(14, momentum=0.5), Reassigning())))
    assert program.layout.state_size == 2 * 14 + 1
    rows, keys, dense, state, batch = values_of(program, 64)
    ones = (np.ones_like(rows[0]),)
    delta = program.step(ones, keys, dense, state, batch).state_delta
    assert delta[0] == pytest.approx(0.5)  # running mean of a constant 1, half way from 0
    assert delta[-1] == 1
    assert np.array_equal(program.initial_state(), state), "a step must not change the module's own"
    task = Task(lambda: Net(nn.BatchNorm1d(14)))
    trained = train_locally(task, 4000, batch_size=100, evaluate_samples=500, learning_rate=0.2)
    assert trained.quality.auc > 0.9
    assert np.abs(trained.model().layers[0].running_mean.numpy()).max() > 0.05


def test_dropout_draws_anew_in_every_step_and_never_in_a_prediction() -> None:
    program = program_of(Task(lambda: Net(nn.Dropout(0.5))))
    values = values_of(program, 64)
    assert len({program.step(*values).loss for _ in range(4)}) == 4
    first, second = program.predict(*values), program.predict(*values)
    assert np.array_equal(first, second)


def test_every_process_builds_the_same_start() -> None:
    one, other = program_of(Task(), seed=5), program_of(Task(), seed=5)
    assert one.layout == other.layout
    assert np.array_equal(one.initial_dense(), other.initial_dense())
    assert not np.array_equal(one.initial_dense(), program_of(Task(), seed=6).initial_dense())


class TwoTables(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Parameter(torch.ones(1), requires_grad=False)
        self.last = nn.Linear(6 + 2 * 3, 1)

    def forward(self, rows_user: Any, rows_city: Any, categorical: Any, weight: Any = None) -> Any:
        assert categorical.dtype is torch.int64
        assert weight is None
        return self.last(torch.cat([rows_user.flatten(1), rows_city.flatten(1)], dim=1))[:, 0] * self.frozen


def two_keys(batch: Any) -> Any:
    return {"rows_city": batch["categorical"][:, 1:], "rows_user": batch["categorical"][:, :1]}


def test_tables_of_different_width_learn() -> None:
    task = Task(TwoTables, tables={"rows_user": 6, "rows_city": 3}, keys=two_keys)
    trained = train_locally(task, 6000, batch_size=100, learning_rate=0.2, evaluate_samples=500)
    assert [table.dimension for table in trained.program.layout.tables] == [3, 6]
    assert trained.program.layout.dense_size == 13, "parameters without gradients stay in the process"
    assert trained.quality.auc > 0.95


@pytest.mark.parametrize("reduce", [torch.mean, lambda each: each])
def test_the_tasks_own_loss_is_taken(reduce: Any) -> None:
    program = program_of(Task(loss=lambda label, output: reduce((label - output) ** 2)))
    assert program.has_own_loss
    assert not program_of(Task()).has_own_loss
    values = values_of(program)
    logits = np.log(program.predict(*values) / (1 - program.predict(*values)))
    loss = program.step(*values).loss
    assert loss == pytest.approx(float(np.mean((values[-1]["label"] - logits) ** 2)), rel=1e-4)


def test_a_prediction_beside_a_step_disturbs_neither() -> None:
    """An evaluation runs in a thread of its own while the worker trains."""
    import threading

    program = program_of(Task(lambda: Net(nn.BatchNorm1d(14))))
    values = values_of(program, 64)
    expected, loss = program.predict(*values), program.step(*values).loss
    found: list[np.ndarray] = []
    thread = threading.Thread(target=lambda: found.extend(program.predict(*values) for _ in range(200)))
    thread.start()
    losses = {program.step(*values).loss for _ in range(200)}
    thread.join()
    assert losses == {loss}
    assert all(np.array_equal(each, expected) for each in found)


# --- optimizers ----------------------------------------------------------------------------------------------

RULES: dict[str, Any] = {
    "sgd": functools.partial(torch.optim.SGD, lr=0.1),
    "momentum": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "nesterov": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    "adagrad": functools.partial(torch.optim.Adagrad, lr=0.1, eps=0.05),
    "adagrad-default": functools.partial(torch.optim.Adagrad, lr=0.1, initial_accumulator_value=0.1),
    "adam": functools.partial(torch.optim.Adam, lr=0.02, betas=(0.8, 0.99), eps=0.05),
    "adam-default": torch.optim.Adam,
    "adamw": functools.partial(torch.optim.AdamW, lr=0.02, weight_decay=0.1, eps=0.05),
    "adam-decoupled": functools.partial(torch.optim.Adam, lr=0.02, weight_decay=0.1, decoupled_weight_decay=True),
    "rmsprop": functools.partial(torch.optim.RMSprop, lr=0.02, eps=0.05),
    "rmsprop-momentum": functools.partial(torch.optim.RMSprop, lr=0.02, momentum=0.9),
}


@pytest.mark.parametrize("name", RULES)
def test_an_optimizer_updates_as_pytorch_does(name: str) -> None:
    """Some have an epsilon so large that its place decides. Gradients range from 1 to 1e-4, 300 steps."""
    given = RULES[name]
    rule = program_of(Task(optimizer=given), learning_rate=0.02).updates.rules[0].optimizer
    random = np.random.default_rng(3)
    start = random.normal(0, 0.5, 40).astype(np.float32)
    gradients = (random.normal(0, 1, (300, 40)) * np.logspace(0, -4, 40)).astype(np.float32)
    parameter = nn.Parameter(torch.tensor(start))
    theirs = given([parameter], lr=0.02) if isinstance(given, type) else given([parameter])
    weights, slots = start[None].copy(), rule.first_slots(40)[None].copy()
    rate = np.full((1, 1), rule.learning_rate, np.float32)
    for gradient in gradients:
        parameter.grad = torch.tensor(gradient)
        theirs.step()
        rule.step(weights, slots, gradient[None], gradient[None] ** 2, rate, rule.hyperparameters())
    assert weights[0] == pytest.approx(parameter.detach().numpy(), abs=2e-5, rel=2e-5)


def test_the_rule_and_where_its_rate_is_from_are_told() -> None:
    told = {given: program_of(Task(optimizer=given)).updates.told() for given in (torch.optim.Adam, RULES["sgd"], None)}
    assert told[torch.optim.Adam].startswith("Adam(learning_rate=0.05, ")
    assert told[torch.optim.Adam].endswith("; the rate is model.learning_rate, which a class of optimizers has")
    assert told[RULES["sgd"]] == "SGD(learning_rate=0.1, step_samples=512, momentum=0.0, nesterov=False)"
    assert told[None].endswith("; the rate is model.learning_rate")


def test_a_schedule_and_clipping_of_the_store_are_taken() -> None:
    task = Task(optimizer=Adam(Cosine(0.05, 10_000, 0.1)), clipping=Clipping(global_norm=1e-3))
    program = program_of(task)
    assert program.layout.optimizer == Adam(Cosine(0.05, 10_000, 0.1))
    found = program.step(*values_of(program))
    assert np.sqrt(sum(np.square(each).sum() for each in (found.dense, *found.rows))) == pytest.approx(1e-3, rel=1e-5)
    assert train_locally(task, 3000, batch_size=100, evaluate_samples=100).quality is not None


def test_rows_of_an_argument_have_a_rule_of_their_own() -> None:
    """The module has no parameter that is their table: a mapping says it, and one optimizer holds for all."""
    program = program_of(Task(optimizer={"rows": "rowwise-adagrad", "dense": RULES["adam"]}))
    assert isinstance(program.layout.tables[0].optimizer, RowWiseAdagrad)
    assert isinstance(program.layout.optimizer, Adam)
    one = program_of(Task(optimizer=lambda module: RULES["adam"](module.parameters())))
    assert one.updates == program_of(Task(optimizer=RULES["adam"])).updates


def parameter() -> Any:
    return nn.Parameter(torch.zeros(2))


def stepped() -> Any:
    tensor = parameter()
    optimizer = torch.optim.Adam([tensor])
    tensor.grad = torch.ones(2)
    optimizer.step()
    return optimizer


def scheduled() -> Any:
    optimizer = torch.optim.Adam([parameter()])
    torch.optim.lr_scheduler.StepLR(optimizer, 10)
    return optimizer


@pytest.mark.parametrize(
    ("optimizer", "named"),
    [
        (lambda: torch.optim.Adam([parameter()], amsgrad=True), "amsgrad=True"),
        (lambda: torch.optim.Adam([parameter()], weight_decay=0.1), "weight_decay=0.1"),
        (lambda: torch.optim.SGD([parameter()], momentum=0.5, dampening=0.1), "dampening=0.1"),
        (lambda: torch.optim.Adagrad([parameter()], lr_decay=0.1), "lr_decay=0.1"),
        (lambda: torch.optim.RMSprop([parameter()], centered=True), "centered=True"),
        (lambda: torch.optim.SGD([parameter()], maximize=True), "maximize=True"),
        (lambda: torch.optim.NAdam, "NAdam is not supported: use sgd, adagrad"),
        (lambda: torch.optim.SGD([{"params": [parameter()], "lr": 1.0}, {"params": [parameter()]}]), "in no group of"),
        (stepped, "used already"),
        (scheduled, "has a scheduler.*Cosine"),
        (lambda: 3, "neither a name nor a PyTorch optimizer"),
    ],
)
def test_optimizers_that_the_servers_do_not_have(optimizer: Any, named: str) -> None:
    with pytest.raises(ModelRefused, match=named):
        program_of(Task(optimizer=optimizer()))


# --- refusals ------------------------------------------------------------------------------------------------


def module_of(forward: Any, **attributes: Any) -> Any:
    """Return a module with this function as its `forward`."""
    module = type("Made", (nn.Module,), {"forward": forward})()
    module.weight = nn.Parameter(torch.zeros(1))
    for name, value in attributes.items():
        setattr(module, name, value)
    return module


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (
            lambda: module_of(lambda self, numeric: numeric),
            r"forward gave \[16, 2\] for 16 samples, and the task has no loss",
        ),
        (lambda: module_of(lambda self, rows, *inputs: inputs), r"forward takes \*inputs.*a name of its own"),
        (lambda: module_of(lambda self, rows_user: rows_user), r"tables = {'rows_user': 16}"),
        (lambda: Net(nn.Linear(14, 14, dtype=torch.float64)), "float64 on cpu; parameters and buffers are float32"),
        (lambda: Net(nn.LazyLinear(14)), "layers.0 is LazyLinear, without parameters until"),
        (lambda: Net(nn.BatchNorm1d(14, momentum=None)), "layers.0 has momentum=None"),
        (lambda: Net(nn.Embedding(2_000_000, 8)), "2000000 x 8 floats.*'rows'"),
        (lambda: {}["nothing"], "build\\(\\) failed: KeyError"),
        (lambda: "a model", "gave str; expected a keras.Model of Keras 3 or a torch.nn.Module"),
    ],
)
def test_modules_that_cannot_be_trained(build: Any, named: str) -> None:
    with pytest.raises(ModelRefused, match=f"(?s){named}"):
        program_of(Task(build))


@pytest.mark.parametrize(
    ("forward", "named"),
    [
        (
            lambda self, rows: rows @ torch.ones(9, 1),
            r"forward\(rows \[8, 3, 4\]\) failed: RuntimeError.*embedding_dim",
        ),
        (lambda self, rows: rows[:, :2, 0] * self.weight, r"forward gave \[8, 2\]; expected one logit"),
        (lambda self, rows: [rows], "forward gave list"),
        (lambda self, rows: rows[:, 0, 0].detach(), "the loss cannot be differentiated"),
        (lambda self, rows: rows[:, 0, 0] / self.weight, "the loss is nan|the loss is inf"),
    ],
)
def test_a_step_that_fails_is_the_users_error(forward: Any, named: str) -> None:
    program = program_of(Task(lambda: module_of(forward)))
    with pytest.raises(ModelRefused, match=f"(?s){named}"):
        program.step(*values_of(program))


def test_the_width_of_rows_must_be_the_specifications() -> None:
    with pytest.raises(ModelRefused, match=r"model\.embedding_dim = 8.*4 floats per row"):
        program_of(Task(), embedding_dim=8, is_dimension_stated=True)


def test_batches_and_keys_that_are_wrong_are_named() -> None:
    program = program_of(Task(keys=lambda batch: batch["categorical"][:, 0]))
    with pytest.raises(DataError, match=r"gave int64 \(20,\); expected int64 \(20, fields\)"):
        program.index(program.read(100, 20))
    program = program_of(Task(read=lambda start, length: {"label": np.zeros(length)}))
    with pytest.raises(DataError, match="input 'numeric' is missing"):
        program.read(0, 5)


# --- what is imported ----------------------------------------------------------------------------------------

IMPORTED = """
import sys
from types import SimpleNamespace
from stretto_wire.jobspec.spec import JobSpec
from stretto.worker.program import build_program

spec = JobSpec.parse({"name": "a", "model": {"entry": sys.argv[1], "arguments": {"hidden": "8"}},
                      "dataset": {"samples": 1000}})
pod = SimpleNamespace(settings=SimpleNamespace(spec=spec, threads=1, index=1), detail=lambda text: None)
program = build_program(pod)
program.warm()
if "torch" in sys.modules:
    assert sys.modules["torch"].get_num_threads() == 1
import stretto.worker.agent, stretto.worker.step, stretto.model.evaluate
import threading, os
print(*sorted({"torch", "tensorflow", "keras", "matplotlib"} & set(sys.modules)), len(os.listdir("/proc/self/task")))
"""


OWN_TABLES = """
import numpy as np
from torch import nn

class Task:
    def __init__(self, hidden):
        pass

    def build(self):
        return nn.Sequential(nn.Embedding(50, 1))

    def read(self, start, length):
        ids = np.arange(start, start + length) % 50
        return ids, ids % 2
"""


@pytest.mark.parametrize(
    ("entry", "imported"),
    [
        ("stretto.examples.wide_deep_torch:WideDeep", ["torch"]),
        ("own_tables:Task", ["torch"]),
        ("stretto.examples.wide_deep:WideDeep", ["keras", "tensorflow"]),
    ],
)
def test_a_pod_imports_the_framework_of_its_model_only(entry: str, imported: list[str], tmp_path: Path) -> None:
    pytest.importorskip("keras")
    (tmp_path / "own_tables.py").write_text(OWN_TABLES)
    done = subprocess.run([sys.executable, "-c", IMPORTED, entry], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    *found, threads = done.stdout.split()
    assert found == imported
    assert int(threads) < 30, "pools of threads follow the pod's cores"
