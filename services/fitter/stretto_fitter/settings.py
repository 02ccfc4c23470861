"""Settings of the fitter: the form of the model, and the rate at which old windows are forgotten."""

from __future__ import annotations

from pydantic import Field
from stretto_core.fitter.machine import FitterSettings as MachineSettings
from stretto_runtime import Settings


class FitterSettings(Settings):
    """Read from ``STRETTO_FITTER_<FIELD>``, or from ``STRETTO_<FIELD>`` as every service's settings are."""

    algorithm: str = Field("robust", description="as `stretto whatif algorithms` lists them for `fit`")
    form: str = Field("default", pattern="^(default|paper)$", description="default: a1..a7; paper: DLRover-RM Eq. 1-6")
    half_life_s: float = Field(900.0, ge=10, le=10**7, description="a window counts half after that time")
    windows_kept: int = Field(24, ge=4, le=200, description="windows kept per configuration")
    first_windows: int = Field(5, ge=1, description="of a configuration: each of them publishes a model …")
    every_windows: int = Field(5, ge=1, description="… then every so many …")
    drift: float = Field(0.1, gt=0, le=2, description="… and whenever log step time moved by this")
    few_configurations: int = Field(4, ge=0, le=32, description="measured, up to which a similar job's model counts")

    def machine(self) -> MachineSettings:
        return MachineSettings(
            form=self.form,
            half_life_s=self.half_life_s,
            windows_kept=self.windows_kept,
            first_windows=self.first_windows,
            every_windows=self.every_windows,
            drift=self.drift,
            few_configurations=self.few_configurations,
        )
