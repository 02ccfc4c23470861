"""Extended resources, such as GPUs: what Kubernetes counts beyond cores and memory, by names like nvidia.com/gpu.

A pod of a role always has the same number of each. Planning chooses how many pods there are, never their devices.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field, WithJsonSchema
from stretto_messages.values import EXTENDED_MAX, EXTENDED_NAME

PER_POD_MAX = 1000
"""Largest number of one extended resource that a pod may ask for."""
_NAME = re.compile(EXTENDED_NAME)


def checked_name(name: str) -> str:
    """Return ``name`` if Kubernetes takes it for an extended resource. Raises ValueError, with the remedy."""
    if _NAME.fullmatch(name) is None:
        raise ValueError("the vendor's domain and a name, as in nvidia.com/gpu")
    if "kubernetes.io/" in name or name.startswith("requests."):
        raise ValueError("a vendor's domain, as in nvidia.com/gpu: kubernetes.io and requests. are Kubernetes' own")
    return name


Name = Annotated[str, AfterValidator(checked_name), WithJsonSchema({"type": "string", "pattern": EXTENDED_NAME})]
PerPod = Annotated[dict[Name, Annotated[int, Field(ge=1, le=PER_POD_MAX)]], Field(max_length=EXTENDED_MAX)]
"""Units of one pod, by name."""
OfCluster = Annotated[dict[Name, Annotated[int, Field(ge=0, le=10**6)]], Field(max_length=EXTENDED_MAX)]
"""Units of a whole cluster, by name."""
