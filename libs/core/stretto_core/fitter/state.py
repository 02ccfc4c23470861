"""State of the fitter's machine, and its settings."""

from __future__ import annotations

from dataclasses import dataclass, field

from stretto_messages.values import KnownModel

from stretto_core.model.throughput import Configuration, FormName


@dataclass(frozen=True, slots=True)
class FitterSettings:
    """``half_life_s``: a window counts half after that time. ``windows_kept`` per configuration.

    A model is published for each of the first ``first_windows`` windows of a configuration, then for every
    ``every_windows``-th, for the first window of a new plan, and whenever the step time moved by ``drift`` since the
    last one. A similar job's model counts until more than ``few_configurations`` were measured.
    """

    form: FormName = "default"
    half_life_s: float = 900.0
    windows_kept: int = 24
    first_windows: int = 5
    every_windows: int = 5
    drift: float = 0.1
    few_configurations: int = 4


@dataclass(frozen=True, slots=True)
class Window:
    """One measured window: when it came (seconds since the epoch), its step time and components in seconds."""

    at_s: float
    step_time_s: float
    components_s: dict[str, float]


@dataclass(slots=True)
class ConfigurationWindows:
    """The windows of one configuration, oldest first; ``seen`` counts those that were dropped too."""

    configuration: Configuration
    windows: list[Window] = field(default_factory=list[Window])
    seen: int = 0


@dataclass(slots=True)
class FitState:
    """Everything measured of one job, and the model of a job like this one.

    ``published_step_time_s``, ``published_of_devices`` (further groups of a mixed plan) and ``published_version`` are
    what the last published model was fitted under.
    """

    measured: list[ConfigurationWindows] = field(default_factory=list[ConfigurationWindows])
    windows: int = 0
    published_step_time_s: float = 0.0
    published_of_devices: dict[str, float] = field(default_factory=dict[str, float])
    published_version: int = 0
    similar: KnownModel | None = None
