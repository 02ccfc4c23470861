"""The part of a specification about pods on Kubernetes; other backends ignore it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, ValidationInfo, field_validator

from .part import Spec

MANAGED_BY, PART_OF = "app.kubernetes.io/managed-by", "app.kubernetes.io/part-of"
INSTALLATION, JOB, POD, ROLE = "stretto.dev/installation", "stretto.dev/job", "stretto.dev/pod", "stretto.dev/role"
"""Labels by which pods are found. The value of the first two is ``stretto``."""

_SUBDOMAIN = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?){0,10}"
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"

ObjectName = Annotated[str, StringConstraints(pattern=rf"^{_SUBDOMAIN}$", max_length=253)]
LabelKey = Annotated[str, StringConstraints(pattern=rf"^({_SUBDOMAIN}/)?{_LABEL}$", max_length=317)]
LabelValue = Annotated[str, StringConstraints(pattern=rf"^({_LABEL})?$")]


class Toleration(Spec):
    """A taint of nodes that the pods tolerate."""

    key: LabelKey | None = Field(default=None, description="key of the taint; none, with operator Exists: every taint")
    operator: Literal["Equal", "Exists"] = Field(
        default="Equal", validate_default=True, description="comparison with the taint's value; Exists needs no value"
    )
    value: LabelValue = Field(default="", description="value of the taint; only with operator Equal")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default=None, description="effect of the taint; none: every effect"
    )
    seconds: Annotated[int, Field(ge=0, le=10**7)] | None = Field(
        default=None, description="seconds for which a taint with effect NoExecute is tolerated; none: for ever"
    )

    @field_validator("operator")
    @classmethod
    def _says_which(cls, operator: str, info: ValidationInfo) -> str:
        if operator == "Equal" and info.data.get("key") is None:
            raise ValueError("Exists, or name the taint in key")
        return operator

    @field_validator("value")
    @classmethod
    def _compared(cls, value: str, info: ValidationInfo) -> str:
        if value and info.data.get("operator") == "Exists":
            raise ValueError("leave it out with operator Exists, which compares no value")
        return value

    @field_validator("seconds")
    @classmethod
    def _evicted(cls, seconds: int | None, info: ValidationInfo) -> int | None:
        if seconds is not None and info.data.get("effect") != "NoExecute":
            raise ValueError("only with effect NoExecute")
        return seconds


class KubernetesSpec(Spec):
    """Nodes, identity and queue of a job's pods. The installation may allow less, and adds its own settings."""

    node_selector: Annotated[dict[LabelKey, LabelValue], Field(max_length=30)] = Field(
        default_factory=dict[str, str], description="labels that a node must have"
    )
    tolerations: Annotated[tuple[Toleration, ...], Field(strict=False, max_length=30)] = Field(
        default=(), description="taints of nodes that the pods tolerate"
    )
    priority_class: ObjectName | None = Field(default=None, description="an existing PriorityClass")
    image_pull_secrets: Annotated[tuple[ObjectName, ...], Field(strict=False, max_length=10)] = Field(
        default=(), description="existing Secrets in the pods' namespace that may pull the job's image"
    )
    service_account: ObjectName | None = Field(
        default=None,
        description="a service account that the installation allows to jobs; its token is not mounted",
    )
    queue: Annotated[LabelValue, StringConstraints(min_length=1)] | None = Field(
        default=None, description="Kueue's LocalQueue; the pods wait until it admits them"
    )
