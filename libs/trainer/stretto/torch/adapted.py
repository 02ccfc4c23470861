"""The program of a PyTorch module as it is: its own batches, its own embedding layers, any outputs and labels."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from stretto_parameters.keys import restore as keys_of_stored

from ..engine.layout import F32, KeyBatch
from ..errors import DataError, ModelRefused
from ..model.adapted import AdaptedProgram, Binary, name_of
from ..model.entry_point import Task, call_of
from ..model.fidelity import check_numbers, check_updates, refusing
from ..model.form import INPUT, SAMPLES, numbered
from ..model.keys import VALUE_BITS
from ..model.one_step import Trial
from ..model.program import Gradients, Inputs, Options, flat
from ..model.tables import TableLayer, Tables
from ..readers import Batch
from .form import TorchForm
from .lookups import Copy, Cut, Feeding, Noted, Recording, unknown, whole_refused
from .objective import Objective
from .private import leaves_and_structure, leaves_of, nested, was_changed
from .program import TorchBase, check_modules, summed, tensor_of, torch_updates
from .tables import Draws, Source, sources_of, start_of

log = logging.getLogger("stretto.torch")

_LOOKUPS, _IDS, _KEYS = "lookups", "ids", "keys"
"""Names in a batch: of its lookups (the table of each and its padding, -1 for none: [lookups, 2]), of their ids, and of
the keys of each table."""


class AdaptedTorchProgram(AdaptedProgram[TorchForm], TorchBase):
    """A PyTorch module as it is, ready to train: its tables are on the servers, its forward is called unchanged.

    Larger than 250 lines: the trial of a module and its steps share the form of the data, the tables and the objective.
    """

    def __init__(self, task: Task, model: Any, options: Options, draws: Draws) -> None:
        """Try the module on the first samples. draws: how `build` filled the tables. Raises ModelRefused, DataError."""
        begun = time.monotonic()
        self.task, self.model = task, model
        _check_is_plain(model)
        self._form = TorchForm(task, model, options)
        self._turn, self._predicting = threading.Lock(), threading.Lock()
        model.eval()
        outputs, expected = self._original_outputs()  # the first call also makes the parameters of lazy modules
        check_modules(model)
        self._copies_inputs = self._changes_inputs()
        self._sources = sources_of(model)
        self._record_first(options)
        paths = {id(source.parameter): source.path for source in self._sources}
        updates = torch_updates(task, model, options, [*paths.values()], paths)
        self._tables = Tables([self._layer(each, draws, updates.rule_of(each.path)) for each in self._sources])
        self.embeddings = self._tables.embeddings
        places = {each.layer: (each.table, each.field) for each in self.embeddings}
        self._place = [places[source.path] for source in self._sources]
        super().__init__(task, model, options, Inputs(self._tables.rows, {}), updates, paths.keys())
        check_updates(self.embeddings, updates, "let build() fill it by torch.nn.init.uniform_ or normal_")
        self._predictor, self._learner = (Copy(model, self._sources, device=self._device) for _ in range(2))
        self._learner.module.train()
        self._objective = Objective(task, outputs, self._form.first_targets, bool(self._form.labels), self._device)
        self.has_own_loss = not self._objective.is_default
        self._loss_name = name_of(getattr(task, "loss", None)) if self.has_own_loss else ""
        self._binary = Binary(0, 0, self._objective.is_logit) if self._objective.is_binary else None
        self._compare(expected)
        if options.first_samples > 1:  # a BatchNorm takes no single one
            self._try_step()
        if options.ends_in_single:
            self._try_single(options.first_partition)
        self._try_projections()
        for source in self._sources:  # free the memory of the tables
            source.parameter.data = torch.empty((0, source.shape[1]))
        log.info(
            "adapted in %.2f s: %d embedding layers in %d tables; ids %s",
            time.monotonic() - begun,
            len(self.embeddings),
            len(self.tables),
            "need the values of the forward" if self._needs_values else "are found without dense computation",
        )

    def _refusing(self, place: str = "the module") -> AbstractContextManager[None]:
        name = type(self.model).__name__
        return refusing(f"{place} {name} failed" if place == "the module" else f"{place} of {name} failed")

    # --- the trial ----------------------------------------------------------------------------------------

    def _original_outputs(self) -> tuple[list[Any], list[NDArray[Any] | None]]:
        """Call the module as it is; return its outputs with how they were computed, and those to be compared."""
        with self._refusing():
            args, kwargs = self._form.arguments([tensor_of(each.copy()) for each in self._form.first])
            output = self.model(*args, **kwargs)
            args, kwargs = self._form.arguments([tensor_of(each.copy()) for each in self._form.first])
            again = leaves_of(self.model(*args, **kwargs))
            tensors, self._output_structure = leaves_and_structure(output)
        odd = next((each for each in tensors if not isinstance(each, torch.Tensor)), None)
        if odd is not None or not tensors:
            raise ModelRefused(f"forward gave {type(odd).__name__}; expected tensors, or tuples or dicts of them")
        arrays = [each.detach().numpy() for each in tensors]
        names = [f"output_{number}" for number in range(len(arrays))]
        check_numbers(arrays, names, self._form.first_samples, "the mean of a list divides by its length")
        return tensors, self._expected(arrays, [each.detach().numpy() for each in again], names)

    def _changes_inputs(self) -> bool:
        """Return whether a call changes its inputs, so that each needs copies."""
        tensors = [tensor_of(each.copy()) for each in self._form.first]
        args, kwargs = self._form.arguments(tensors)
        with self._refusing(), torch.no_grad():
            self.model(*args, **kwargs)
        return any(was_changed(each) for each in tensors)

    def _record_first(self, options: Options) -> None:
        """Find the ids of the first samples, and how: without values, and how early a call may end.

        Tables that are used as a whole, or looked up by positions alone, stay dense parameters if they are small.
        """
        self._needs_values, self._stop_after = False, 0
        noted = self._recorded_first()
        n = options.first_samples
        if n < 2:
            return
        where = call_of(0, n - 1, options.first_partition)
        less, _ = self._form.read(0, n - 1, options.first_partition, where)
        others = self._recorded(less)[0]
        if [each.table for each in noted] != [each.table for each in others]:
            return
        by_data = {
            one.table for one, other in zip(noted, others, strict=True) if not np.array_equal(one.ids, other.ids)
        }
        positions = {each.table for each in noted} - by_data
        kept = [s for number, s in enumerate(self._sources) if number not in positions or not s.is_small]
        if len(kept) < len(self._sources):
            self._sources = kept
            noted = self._recorded_first()
        self._stop_after = len(noted)

    def _recorded_first(self) -> list[Noted]:
        """Return the lookups of the first samples, once every table that is used as a whole is left out."""
        while True:
            self._make_recorder()
            with self._refusing():
                try:
                    noted, used_whole = self._recorded(self._form.first)
                except ModelRefused:
                    raise
                except Exception as error:  # a forward that branches on values, or has an operation without shapes
                    if self._needs_values:
                        raise
                    log.info("ids are found with values: %s: %s", type(error).__name__, error)
                    self._needs_values = True
                    continue
            if not used_whole:
                self._check_padding(noted)
                return noted
            for number, function in used_whole.items():
                source = self._sources[number]
                if not source.is_small:
                    raise whole_refused(source.path, source.parameter.shape, function)
            self._sources = [source for number, source in enumerate(self._sources) if number not in used_whole]

    def _check_padding(self, noted: Sequence[Noted]) -> None:
        for number, source in enumerate(self._sources):
            found = {each.padding for each in noted if each.table == number}
            if found - {source.padding_idx}:
                raise ModelRefused(
                    f"layer {source.path}: its table is looked up with padding_idx {sorted(map(str, found))}; the rows "
                    "of a table are either trained or not: use one padding_idx for all layers that share it"
                )

    def _layer(self, source: Source, draws: Draws, rule: int) -> TableLayer:
        start, padding = start_of(source, draws), source.padding_idx
        fixed = None if padding is None else (padding, source.weights[padding].copy())
        return TableLayer(source, source.path, *source.shape, start, fixed=fixed, parameters=source.names, rule=rule)

    def _weights_of(self, owner: Any) -> F32:
        return owner.weights

    def _try_step(self) -> None:
        with self._refusing("training"):
            self._gradients(*self._before_training(self._first_batch()))

    def _try_projections(self) -> None:
        """Raise ModelRefused for a forward that changes parameters in place, as to keep weights in a range.

        The trial has already put the first ones into such a range: ten times their opposite is outside of it.
        """
        rows, keys, dense, state, batch = self._before_training(self._first_batch())
        given = -10 * dense
        parameters = self._parameters(given.copy())
        with torch.no_grad(), torch.random.fork_rng(devices=[]), suppress(Exception):
            self._called(self._learner, self._gathered(rows, keys), parameters, self._buffers(state), batch)
        self._check_kept(parameters, given)

    def _try_single(self, partition: str) -> None:
        """Raise ModelRefused for a module that takes no batch of one sample, as BatchNorm does while it is trained: the
        job would fail at its end."""
        leaves, targets = self._form.read(0, 1, partition, call_of(0, 1, partition))
        try:
            self._gradients(*self._before_training(self._batch(leaves, targets, 0, 1)))
        except ModelRefused as error:
            raise ModelRefused(
                f"{error}; the last batch of the data has one sample: give another dataset.batch_size, or leave a "
                "sample out"
            ) from error

    # --- the comparison with PyTorch alone ----------------------------------------------------------------

    def _plain_module(self, trained: Mapping[str, Any]) -> tuple[Any, Copy]:
        instead = {id(self._trained[name]): each for name, each in trained.items()}
        made = Copy(self.model, self._sources, instead)
        return made.module, made

    def _stepping(self) -> Any:
        return self._learner.module

    def _plain_loss(self, called: Copy, tables: Sequence[Any], trial: Trial) -> Any:
        cut: dict[str, tuple[NDArray[np.int64], Any, int | None]] = {}
        for each, rows, (_, table, at) in zip(self.embeddings, tables, self._variables(trial.keys), strict=True):
            ids = keys_of_stored(trial.keys.tables[table].stored[at]) & ((1 << VALUE_BITS) - 1)
            cut[each.layer] = ids, rows, None if each.fixed is None else each.fixed[0]
        called.lookups = Cut(self._paths, [cut[path] for path in self._paths])
        leaves = [trial.batch[numbered(INPUT, number)] for number in range(len(self._form.inputs))]
        args, kwargs = self._form.arguments([torch.from_numpy(each.copy()) for each in leaves])
        return self._loss(called.module(*args, **kwargs), trial.batch)

    # --- batches ------------------------------------------------------------------------------------------

    def _recorded(self, leaves: Sequence[NDArray[Any]]) -> tuple[list[Noted], dict[int, str]]:
        """Call the module without rows; return its lookups, and by table which function used one as a whole."""
        if not self._sources:
            return [], {}
        recording = Recording(self._paths, self._widths, has_values=self._needs_values, stop_after=self._stop_after)
        args, kwargs = self._form.arguments(self._tensors(leaves))
        with self._turn:
            self._recorder.lookups = recording
            noted = recording.run(lambda: self._recorder.module(*args, **kwargs))
        return noted, recording.used_whole

    def _make_recorder(self) -> None:
        """Make a copy of the module in which tables answer for themselves, and parameters have no values."""
        self._paths = [source.path for source in self._sources]
        self._widths = [source.shape[1] for source in self._sources]
        without_values: dict[int, Any] = {}
        if not self._needs_values:
            without_values = {
                id(each): unknown(each.shape, f"the parameter {name}", each.dtype)
                for name, each in self.model.named_parameters()
                if each.requires_grad
            }
        self._recorder = Copy(self.model, self._sources, without_values)

    def _tensors(self, leaves: Sequence[NDArray[Any]]) -> list[Any]:
        return [torch.from_numpy(each.copy() if self._copies_inputs else each) for each in leaves]

    def _batch(self, leaves: Sequence[NDArray[Any]], targets: Batch, start: int, length: int) -> Batch:
        noted, used_whole = self._recorded(leaves)
        for number, function in used_whole.items():
            source = self._sources[number]
            raise whole_refused(source.path, self._sources[number].shape, function)
        batch: dict[str, Any] = {**targets, SAMPLES: np.array(length), **_lookups_of(noted)}
        batch |= {numbered(INPUT, number): leaf for number, leaf in enumerate(leaves)}
        batch |= {numbered(_KEYS, number): self._keys(number, noted, start) for number in range(len(self.tables))}
        return batch

    def _keys(self, group: int, noted: Sequence[Noted], start: int) -> NDArray[np.int64]:
        """Return the keys of a table of the store: the keys of its lookups, one after the other."""
        mine = [each for each in noted if self._place[each.table][0] == group]
        if not mine:
            return np.zeros(0, np.int64)
        sizes = [each.ids.size for each in mine]
        keys = np.concatenate([each.ids.reshape(-1) for each in mine])
        limits = np.repeat([self._sources[each.table].shape[0] for each in mine], sizes)
        if (keys.view(np.uint64) >= limits.view(np.uint64)).any():  # a negative id is a very large one
            raise self._outside(mine, start)
        keys |= np.repeat([self._place[each.table][1] << VALUE_BITS for each in mine], sizes)
        return keys

    def _outside(self, noted: Sequence[Noted], start: int) -> DataError:
        for each in noted:
            ids_max = self._sources[each.table].shape[0]
            bad = np.argwhere((each.ids < 0) | (each.ids >= ids_max))
            if len(bad):
                where = f"sample {start + int(bad[0, 0])}" if each.ids.ndim > 1 else f"the samples from {start} on"
                return DataError(
                    f"{where}: layer {self._sources[each.table].path} has no row {int(each.ids[tuple(bad[0])])}: its "
                    f"ids are 0 to {ids_max - 1}; raise its num_embeddings, or map the values into it, as by % in read"
                )
        raise AssertionError("some id is outside its table")

    def _ids(self, batch: Batch) -> Sequence[NDArray[np.int64]]:
        return [batch[numbered(_KEYS, number)] for number in range(len(self.tables))]

    # --- computation --------------------------------------------------------------------------------------

    def _gathered(self, rows: Sequence[F32], keys: KeyBatch) -> list[Any]:
        """Return the rows of each table in the order of the lookups' ids: [ids, dimension]."""
        whole = self._tables.whole(rows, keys)
        return [
            torch.nn.functional.embedding(self._given(of.inverse), self._given(each))
            for each, of in zip(whole, keys.tables, strict=True)
        ]

    def _called(
        self, of: Copy, gathered: Sequence[Any], parameters: list[Any], buffers: dict[str, Any], batch: Batch
    ) -> Any:
        """Call a copy of the module; `buffers` then has the new ones. Return its output as it gives it."""
        noted = _noted_in(batch)
        pieces: list[Any] = [None] * len(noted)
        for group, rows in enumerate(gathered):
            mine = [place for place, each in enumerate(noted) if self._place[each.table][0] == group]
            for place, piece in zip(mine, rows.split([noted[place].ids.size for place in mine]), strict=True):
                pieces[place] = piece
        leaves = [batch[numbered(INPUT, number)] for number in range(len(self._form.inputs))]
        args, kwargs = self._form.arguments([each.to(self._device) for each in self._tensors(leaves)])
        of.lookups = Feeding(self._paths, noted, pieces)
        return self._functional(of.module, parameters, buffers, args, kwargs)

    def _gradients(self, rows: Sequence[F32], keys: KeyBatch, dense: F32, state: F32, batch: Batch) -> Gradients:
        gathered = [each.requires_grad_() for each in self._gathered(rows, keys)]
        parameters = [each.requires_grad_() for each in self._parameters(dense)]
        buffers = self._buffers(state)
        with self._refusing("forward"):
            output = self._called(self._learner, gathered, parameters, buffers, batch)
        with self._refusing("the loss"):
            loss = self._loss(output, batch)
            found: Any = torch.autograd.grad(loss, [*gathered, *parameters], allow_unused=True, materialize_grads=True)
        of_rows = tuple(summed(each, of.inverse, len(of)) for of, each in zip(keys.tables, found, strict=False))
        for number, place, _ in self._tables.fixed(keys):
            of_rows[number][place] = 0.0
        of_dense = flat([each.cpu().numpy() for each in found[len(rows) :]])
        return Gradients(float(loss.detach()), of_rows, of_dense, self._state_delta(buffers, state))

    def _loss(self, output: Any, batch: Batch) -> Any:
        labels, weights = self._form.split([self._given(each) for each in self._form.targets(batch)])
        return self._objective.loss(labels, output, weights)

    def _nested(self, rows: Sequence[F32], keys: KeyBatch, dense: F32, state: F32, batch: Batch) -> Any:
        """Return the output of the module in evaluation mode, as it gives it."""
        with self._predicting, torch.no_grad():
            parameters, buffers = self._parameters(dense), self._buffers(state)
            return self._called(self._predictor, self._gathered(rows, keys), parameters, buffers, batch)

    def _arrays(self, rows: Sequence[F32], keys: KeyBatch, dense: F32, state: F32, batch: Batch) -> list[NDArray[Any]]:
        return [each.cpu().numpy() for each in leaves_of(self._nested(rows, keys, dense, state, batch))]

    def _packed(self, arrays: Sequence[Any]) -> Any:
        return nested(list(arrays), self._output_structure)

    def _loss_and_outputs(
        self, rows: Sequence[F32], keys: KeyBatch, dense: F32, state: F32, batch: Batch
    ) -> tuple[float, Any]:
        with torch.no_grad(), self._refusing("the loss"):
            output = self._nested(rows, keys, dense, state, batch)
            return float(self._loss(output, batch)), output

    def restore(self, tables: Mapping[str, F32]) -> None:
        """Give the embedding layers their weights back: the module is the user's own again."""
        for source in self._sources:
            source.parameter.data = torch.from_numpy(np.ascontiguousarray(tables[source.path]))


# --- pure parts ---------------------------------------------------------------------------------------------


def _lookups_of(noted: Sequence[Noted]) -> Batch:
    """Return lookups as arrays of a batch."""
    places = [(each.table, -1 if each.padding is None else each.padding) for each in noted]
    ids = {numbered(_IDS, number): each.ids for number, each in enumerate(noted)}
    return {_LOOKUPS: np.array(places, np.int64).reshape(-1, 2), **ids}


def _noted_in(batch: Batch) -> list[Noted]:
    """Return the lookups that ``_lookups_of`` was given."""
    return [
        Noted(table, batch[numbered(_IDS, number)], None if padding < 0 else padding)
        for number, (table, padding) in enumerate(batch[_LOOKUPS].tolist())
    ]


def _check_is_plain(model: Any) -> None:
    """Raise ModelRefused for a module that is compiled: its lookups cannot be told apart from its other operations."""
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule) or type(module).__name__ == "OptimizedModule":
            raise ModelRefused(
                f"module {name or type(module).__name__} is compiled (torch.jit.script, torch.compile), so its lookups "
                "cannot be told apart; return the plain module from build()"
            )
