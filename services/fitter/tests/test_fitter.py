"""A window's way through the fitter, and its settings."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from stretto_core.machine import Emit
from stretto_core.model.throughput import Configuration, FittedModel, Inputs
from stretto_fitter.service import Fitter
from stretto_fitter.settings import FitterSettings
from stretto_messages.base import example_of
from stretto_messages.fitter import ModelFitted
from stretto_messages.planner import HistoryMatched
from stretto_messages.profiler import ProfileMeasured
from stretto_messages.values import KnownModel, StepTimes
from stretto_runtime import SettingsFault
from stretto_wire.codec import decode, encode

from tests.live_bus import plan_of


def profile(step_time_s: float, workers: int = 1, settled: bool = True) -> ProfileMeasured:
    times = StepTimes(emb_s=step_time_s / 4, grad_s=step_time_s / 2, upd_s=0.001, sync_s=0.002)
    rate = workers * 512 / max(step_time_s, 1e-3)
    told = {"plan": plan_of(workers), "step_time_s": step_time_s, "times": times, "throughput": rate}
    return replace(example_of(ProfileMeasured), job="a", settled=settled, feed=None, workers=(), ps=(), **told)


def fitted(*messages: ProfileMeasured) -> list[ModelFitted]:
    service = Fitter(FitterSettings())
    machine = service.machine("a", None)
    result = []
    for i, message in enumerate(messages):
        for action in machine.handle(message, 1000.0 + i):
            assert isinstance(action, Emit)
            result.append(action.fact)
    return result


def test_windows_become_models_that_any_reader_can_parse() -> None:
    models = fitted(profile(0.05), profile(0.052), profile(0.06, workers=2))
    assert [model.configurations for model in models] == [1, 1, 2]
    last = models[-1]
    assert decode(ModelFitted, encode(last)) == last
    assert len(last.covariance) == len(last.coefficients)
    assert last.predicted_interval_s.low < last.predicted_step_time_s < last.predicted_interval_s.high
    assert last.measured[-1].workers == 2
    assert "a1" in last.unidentified
    assert "a2_grad" in last.coefficients, "measured components have constants of their own"


def test_unsettled_windows_and_those_without_steps_give_no_model() -> None:
    assert fitted(profile(0.05, settled=False), profile(0.0), profile(0.05, workers=0)) == []


def test_the_form_can_be_the_papers() -> None:
    service = Fitter(FitterSettings(form="paper"))
    machine = service.machine("a", None)
    (action,) = machine.handle(profile(0.05), 1000.0)
    assert {"alpha_grad", "beta_emb"} <= action.fact.coefficients.keys()


def test_an_unknown_form_is_refused_by_name() -> None:
    with pytest.raises(SettingsFault, match="STRETTO_FITTER_FORM"):
        FitterSettings.load("fitter", {"STRETTO_FITTER_FORM": "cubic"})


def test_the_model_of_a_similar_job_counts_while_little_is_measured_unless_its_form_is_another() -> None:
    """It grew with the workers, of which one window says nothing."""
    known = KnownModel(form="default", coefficients={"a1": 0.00004, "a4": 0.03})
    heard = HistoryMatched(job="a", metadata={}, matches=(), smoothing=0.5, plan=None, model=known)
    other, unknown = (
        replace(heard, model=replace(known, **changed))
        for changed in ({"form": "paper", "coefficients": {}}, {"coefficients": {"z9": 0.03}})
    )
    grows = {}
    cases = (("nothing", []), ("another form", [other]), ("another version's terms", [unknown]), ("similar", [heard]))
    for name, said in cases:
        service = Fitter(FitterSettings())
        machine = service.machine("a", None)
        for message in (*said, profile(0.05)):
            told = machine.handle(message, 1000.0)
        x = Inputs.of([Configuration(workers, 1, 1.0, 1.0, 512) for workers in (1, 8)])
        one, eight = FittedModel.of(told[0].fact).step_time_s(x)
        grows[name] = eight / one
    assert grows["similar"] > 2 > grows["nothing"] == grows["another form"] == grows["another version's terms"]


def test_an_overlap_of_computing_and_communicating_reaches_the_planner() -> None:
    windows = list[ProfileMeasured]()
    for workers in range(1, 17):
        times = StepTimes(emb_s=0.0, grad_s=0.05, upd_s=0.0, sync_s=0.01 * workers)
        measured = profile(max(times.grad_s, times.sync_s), workers=workers)
        windows.append(replace(measured, times=times))
    last = fitted(*windows)[-1]
    assert last.overlap > 1
    assert last.predicted_step_time_s == pytest.approx(0.16, rel=0.1)
    assert decode(ModelFitted, encode(last)).overlap == last.overlap


def test_the_algorithm_is_chosen_by_name() -> None:
    """A hung window moves the fit on plain seconds far more; an unknown name is refused with what there is."""
    said = {}
    for name in ("robust", "least-squares"):
        service = Fitter(FitterSettings(algorithm=name))
        machine = service.machine("a", None)
        for number, workers in enumerate((1, 2, 3, 4, 5, 6, 7)):
            step_time_s = 5.0 if workers == 4 else 0.1 + 0.01 * workers
            facts = machine.handle(profile(step_time_s, workers), 1000.0 + number)
        (emit,) = facts
        assert isinstance(emit, Emit)
        said[name] = emit.fact.predicted_step_time_s
    assert abs(said["robust"] - 0.17) < abs(said["least-squares"] - 0.17) / 2
    with pytest.raises(SettingsFault, match=r"STRETTO_FITTER_ALGORITHM='magic'.*installed for fit are robust"):
        Fitter(FitterSettings(algorithm="magic"))


def test_a_decision_imports_nothing_that_was_not_imported_with_the_first_input() -> None:
    """Each later import would keep all jobs waiting for it."""
    script = (
        "import sys, test_fitter as tests\n"
        "for name in tests.Fitter.late_imports: __import__(name)\n"
        "before = {*sys.modules}\n"
        "model = tests.FittedModel.of(tests.fitted(tests.profile(0.05))[-1])\n"
        "model.quantile()\n"
        "print(*sorted(name for name in sys.modules.keys() - before if name.startswith('scipy')))\n"
    )
    folder = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": str(folder.parents[2])}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
