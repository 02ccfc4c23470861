"""Settings of the fitter: the form of the model, and the rate at which old windows are forgotten."""

from __future__ import annotations

from pydantic import Field
from stretto_core.algorithms import FIT
from stretto_core.fitter.state import FitterSettings as MachineSettings
from stretto_core.model.throughput import FormName
from stretto_runtime import Settings
from stretto_runtime.settings import machine_settings

DEFAULT = MachineSettings()


class FitterSettings(Settings):
    """Read from ``STRETTO_FITTER_<FIELD>``, or from ``STRETTO_<FIELD>`` as every service's settings are."""

    algorithm: str = Field(FIT.default, description="as `stretto whatif algorithms` lists them for `fit`")
    form: FormName = Field(DEFAULT.form, description="default: a1..a7; paper: DLRover-RM Eq. 1-6")
    half_life_s: float = Field(DEFAULT.half_life_s, ge=10, le=10**7, description="a window counts half after that time")
    windows_kept: int = Field(DEFAULT.windows_kept, ge=4, le=200, description="windows kept per configuration")
    first_windows: int = Field(DEFAULT.first_windows, ge=1, description="each of a configuration publishes a model …")
    every_windows: int = Field(DEFAULT.every_windows, ge=1, description="… then every so many …")
    drift: float = Field(DEFAULT.drift, gt=0, le=2, description="… and whenever log step time moved by this")
    few_configurations: int = Field(
        DEFAULT.few_configurations, ge=0, le=32, description="measured, up to which a similar job's model counts"
    )

    def machine(self) -> MachineSettings:
        """Return the settings of the machine."""
        return machine_settings(MachineSettings, self)
