"""The fitter: one throughput model per job."""

from __future__ import annotations

from typing import ClassVar

from stretto_core.algorithms import FIT
from stretto_core.fitter.machine import FitMachine
from stretto_core.fitter.state import FitState
from stretto_runtime import Service
from stretto_runtime.algorithms import algorithm

from stretto_fitter.settings import FitterSettings


class Fitter(Service[FitterSettings, FitState, FitMachine]):
    """Refits a job's model with every settled window, and says how sure it is."""

    name = "fitter"
    version = FitMachine.version
    settings_type = FitterSettings
    state_types: ClassVar[dict[str, type]] = {"job": FitState}
    late_imports = ("scipy.optimize", "scipy.special")

    def __init__(self, settings: FitterSettings) -> None:
        super().__init__(settings)
        self._algorithm = algorithm(FIT, settings.algorithm, "STRETTO_FITTER_ALGORITHM")

    def machine(self, key: str, state: FitState | None) -> FitMachine:
        return FitMachine(state, self.settings.machine(), self._algorithm)
