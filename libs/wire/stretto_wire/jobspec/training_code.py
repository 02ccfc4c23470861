"""Where a job's training code comes from, and the packages that it needs beside those of the image."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints, ValidationInfo, field_validator

from ..stores.urls import canonical
from .part import Spec
from .pod_files import PodPath

ARCHIVES = (".whl", ".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
REMOTE = ("s3", "gs", "gcs", "abfs", "abfss", "http", "https")
"""Schemes that workers read; other places are paths of their own file system."""
_LOCAL = "file://"
_KINDS = ", ".join(ARCHIVES)
_NAME = r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?"
_CLAUSE = r"(===|==|~=|!=|<=|>=|<|>)\s*[A-Za-z0-9._*+!-]+"
REQUIREMENT = re.compile(
    rf"(?P<name>{_NAME})\s*(\[\s*{_NAME}(\s*,\s*{_NAME})*\s*\])?\s*({_CLAUSE}(\s*,\s*{_CLAUSE})*)?"
)


def is_remote(url: str) -> bool:
    """Return True if the code is fetched from a store or a server."""
    return "://" in url and not url.startswith(_LOCAL)


def _checked_url(url: str) -> str:
    """Return the place of training code in its one spelling. Raises ValueError, with the remedy."""
    if not is_remote(url):
        place = url.removeprefix(_LOCAL)
        if not place.startswith("/") and _LOCAL in url:
            raise ValueError("a path such as /models/ads, or a URL such as s3://bucket/ads-1.2-py3-none-any.whl")
        return place
    place = canonical(url)
    if place.partition("://")[0] not in REMOTE:
        raise ValueError(f"a path, or a URL with one of {', '.join(REMOTE)}")
    if not place.endswith(ARCHIVES):
        raise ValueError(f"a URL that ends in one of {_KINDS}; only a folder where the pods run has another end")
    return place


def _checked_requirement(text: str) -> str:
    """Return a requirement of pip without URLs, options and markers. Raises ValueError, with the remedy."""
    if not REQUIREMENT.fullmatch(text):
        raise ValueError("a package with its version, such as lightgbm==4.6.0: without URLs, options and markers")
    return text


def normal_spelling(name: str) -> str:
    """Return the name of a package as package indexes compare names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def normal_name(requirement: str) -> str:
    """Return the name of the package that is required."""
    found = REQUIREMENT.fullmatch(requirement)
    return normal_spelling(found["name"]) if found is not None else ""


Requirement = Annotated[str, StringConstraints(max_length=200), AfterValidator(_checked_requirement)]


class CodeSpec(Spec):
    """Training code that each worker unpacks into its own folder at its start, and imports from there."""

    url: Annotated[str, StringConstraints(min_length=1, max_length=1000), AfterValidator(_checked_url)] = Field(
        description=f"a folder where the pods run, or a wheel or archive ({_KINDS}) as a path or as a URL "
        f"({', '.join(REMOTE)}) that the installation allows; on Docker and Kubernetes a URL mostly needs "
        "network.egress"
    )
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")] | None = Field(
        default=None,
        validate_default=True,
        description="SHA-256 of the wheel or archive, in hexadecimal digits, as `sha256sum` prints it; needed with a "
        "URL",
    )
    subfolder: PodPath | None = Field(
        default=None,
        description="folder in it that is put on the import path, as in src; none: the top folder. A single folder "
        "around everything, as archives of git have, does not count",
    )

    @field_validator("sha256")
    @classmethod
    def _known(cls, sha256: str | None, info: ValidationInfo) -> str | None:
        url = str(info.data.get("url", ""))
        if sha256 is None and is_remote(url):
            raise ValueError(
                "the SHA-256 of the file: what the URL gives may change, and pods start at different times"
            )
        if sha256 is not None and url and not url.endswith(ARCHIVES):
            raise ValueError("leave it out for a folder")
        return sha256

    @field_validator("subfolder")
    @classmethod
    def _below(cls, subfolder: str | None) -> str | None:
        if subfolder is not None and subfolder.startswith("/"):
            raise ValueError("a path within the code, such as src")
        return subfolder
