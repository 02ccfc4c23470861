"""What the actuator can be told: STRETTO_ACTUATOR_<FIELD> or STRETTO_<FIELD>."""

from __future__ import annotations

import sys
from typing import Literal

from pydantic import Field, SecretStr
from stretto_runtime import Settings


class ActuatorSettings(Settings):
    """Where pods run and how patient the actuator is with them."""

    backend: Literal["local", "docker", "kubernetes"] = Field("local", description="where pods run")
    pod_nats_url: SecretStr | None = Field(None, description="with the pods' credentials; none: nats_url")
    pod_python: str = Field(sys.executable, description="interpreter that pods run with")
    pod_environment: str = Field(
        "",
        description="names of further variables that pods inherit, separated by commas; * stands for anything (AWS_*)",
    )
    redis_url: str = Field("", description="cache of checkpoints, for the pods; empty: none")
    cgroups: bool = Field(True, description="limit pods by control groups where the system allows it")
    start_cpu_cores: float = Field(
        2.0, ge=0, le=1024, description="at least, until a pod is ready; then its own limit holds"
    )
    stop_grace_s: float = Field(15.0, ge=0, le=3600, description="between asking a pod to leave and ending it")
    start_timeout_s: float = Field(180.0, gt=0, description="a pod that is not ready by then is replaced")
    evaluate_timeout_s: float = Field(600.0, gt=0, description="the job finishes without an evaluation after that")
    final_checkpoint_timeout_s: float = Field(180.0, gt=0, description="the pods wait so long for the last checkpoint")
    sweep_s: float = Field(30.0, gt=0.05, description="between looks for pods of jobs that nobody knows")
    poll_s: float = Field(1.0, gt=0.01, le=60, description="between looks at pods when nothing is going on")
