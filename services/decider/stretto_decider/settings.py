"""Settings of the decider: where the objects are, and how long a size may take."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field
from stretto_core.decider.state import DeciderRules
from stretto_messages.base import DEFAULT_TEAM, Team
from stretto_runtime import Settings
from stretto_runtime.settings import machine_settings

SizedKind = Literal["Job", "JobSet", "RayCluster"]
DEFAULT = DeciderRules()


class DeciderSettings(Settings):
    """Read from ``STRETTO_DECIDER_<FIELD>``, or from ``STRETTO_<FIELD>`` as every service's settings are."""

    kubernetes_namespace: str = Field("", description="namespace of the objects; empty: the decider's own")
    kubernetes_config: Path | None = Field(None, description="kubeconfig file; none: the service account of this pod")
    kinds: tuple[SizedKind, ...] = Field(("Job",), description="kinds of objects whose sizes are decided")
    kueue: bool = Field(True, description="Kueue is installed; without it no object has a queue")
    team: Team = Field(DEFAULT_TEAM, description="team that the jobs of objects belong to")
    refused_after_s: float = Field(
        DEFAULT.refused_after_s, ge=1, le=86400, description="a size that is not accepted for so long is taken back"
    )
    look_s: float = Field(10.0, gt=0, le=600, description="time between two looks at the objects, if nothing happens")

    def rules(self) -> DeciderRules:
        """Return the settings of the machines."""
        return machine_settings(DeciderRules, self)
