"""What a job says about its pods on Kubernetes; other places have no such things and pass it over."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, ValidationInfo, field_validator

from .part import Spec

MANAGED_BY, PART_OF = "app.kubernetes.io/managed-by", "app.kubernetes.io/part-of"
INSTALLATION, JOB, POD, ROLE = "stretto.dev/installation", "stretto.dev/job", "stretto.dev/pod", "stretto.dev/role"
"""labels by which pods are found; the first two are ``stretto``"""

_SUBDOMAIN = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?){0,10}"
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"

ObjectName = Annotated[str, StringConstraints(pattern=rf"^{_SUBDOMAIN}$", max_length=253)]
LabelKey = Annotated[str, StringConstraints(pattern=rf"^({_SUBDOMAIN}/)?{_LABEL}$", max_length=317)]
LabelValue = Annotated[str, StringConstraints(pattern=rf"^({_LABEL})?$")]


class Toleration(Spec):
    """A taint of nodes that the pods put up with."""

    key: LabelKey | None = Field(default=None, description="of the taint; none, with operator Exists: every taint")
    operator: Literal["Equal", "Exists"] = Field(default="Equal", validate_default=True)
    value: LabelValue = Field(default="", description="of the taint; only with Equal")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default=None, description="none: any of them"
    )
    seconds: Annotated[int, Field(ge=0, le=10**7)] | None = Field(
        default=None, description="how long a taint NoExecute is put up with; none: for ever"
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
            raise ValueError("none with operator Exists: it asks for no value")
        return value

    @field_validator("seconds")
    @classmethod
    def _evicted(cls, seconds: int | None, info: ValidationInfo) -> int | None:
        if seconds is not None and info.data.get("effect") != "NoExecute":
            raise ValueError("only with effect NoExecute")
        return seconds


class KubernetesSpec(Spec):
    """Where and as whom the pods of a job run. The installation may allow less, and adds what all pods have."""

    node_selector: Annotated[dict[LabelKey, LabelValue], Field(max_length=30)] = Field(
        default_factory=dict[str, str], description="labels that a node must have"
    )
    tolerations: Annotated[tuple[Toleration, ...], Field(strict=False, max_length=30)] = ()
    priority_class: ObjectName | None = Field(default=None, description="an existing PriorityClass")
    image_pull_secrets: Annotated[tuple[ObjectName, ...], Field(strict=False, max_length=10)] = Field(
        default=(), description="existing Secrets of the pods' namespace, for the job's image"
    )
    service_account: ObjectName | None = Field(
        default=None, description="one of those that the installation lets jobs choose; its token is not mounted"
    )
    queue: Annotated[LabelValue, StringConstraints(min_length=1)] | None = Field(
        default=None, description="Kueue's LocalQueue; the pods wait until it admits them"
    )
