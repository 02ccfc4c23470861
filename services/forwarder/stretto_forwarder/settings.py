"""The forwarder's settings: its endpoints, the events that each gets, and the pauses between attempts."""

from __future__ import annotations

import base64
import binascii
import difflib
import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

import httpcore
import yaml
from pydantic import BaseModel, ConfigDict, Field, SecretBytes, StringConstraints, TypeAdapter, ValidationError
from stretto_runtime import Settings, SettingsFault
from stretto_wire import CHANNELS
from stretto_wire.findings import findings_of
from stretto_wire.given_file import JOB_BYTES, read_given, text_of

EVENTS = tuple(channel.name for channel in CHANNELS if channel.kind == "evt")
SECRET_PREFIX = "whsec_"
LEAST_SECRET_BYTES = 24

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class ForwarderSettings(Settings):
    """Settings from ``STRETTO_FORWARDER_<FIELD>``, or from ``STRETTO_<FIELD>`` as in every service."""

    endpoints_file: Path | None = Field(None, description="YAML or JSON: a list of endpoints; none: nothing is posted")
    allow_networks: tuple[Network, ...] = Field(
        (), description='private networks that may be posted to, also in plain HTTP, as in ["10.1.0.0/16"]'
    )
    ca: Path | None = Field(
        None, description="certificates (PEM) that endpoints are verified against; none: the system's"
    )
    timeout_s: float = Field(10.0, gt=0, le=300, description="an attempt that takes longer has failed")
    silence_s: float = Field(
        15.0, ge=1, le=300, description="silence of a replica after which another one posts its event"
    )
    retry_s: float = Field(1.0, gt=0, le=3600, description="pause after a failure, about; it doubles with each …")
    retry_max_s: float = Field(300.0, gt=0, le=86400, description="… up to this")
    give_up_s: float = Field(
        3 * 86400.0, gt=0, le=30 * 86400, description="time of failures only, after which events go to the dead letters"
    )


class Endpoint(BaseModel):
    """One entry of the file. Empty ``events`` and ``jobs`` mean all; a job may contain ``*``.

    ``form``: what is sent: events as they are, or the points of metrics that they have. ``folder`` is TensorBoard's,
    which has no url. ``experiment`` is MLflow's.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$")]
    form: Literal["webhook", "mlflow", "tensorboard"] = "webhook"
    url: Annotated[str, StringConstraints(pattern=r"^https?://[^\s@#]+$")] = ""
    folder: Path | None = None
    experiment: Annotated[str, StringConstraints(min_length=1, max_length=250)] = "stretto"
    secret_file: Path | None = None
    secret_env: str | None = None
    events: tuple[str, ...] = ()
    jobs: tuple[Annotated[str, StringConstraints(pattern=r"^[a-z0-9*-]{1,63}$")], ...] = ()
    start: Literal["now", "beginning"] | Annotated[int, Field(ge=1)] = "now"


class EndpointTarget(BaseModel):
    """An endpoint and its secrets: the newest first, older ones until the receiver has changed over."""

    model_config = ConfigDict(frozen=True)

    endpoint: Endpoint
    secrets: tuple[SecretBytes, ...]

    @classmethod
    def of(cls, endpoint: Endpoint, environ: Mapping[str, str]) -> Self:
        """Read the endpoint's secrets. Raises SettingsFault, whose text never contains a part of a secret."""
        where = f"endpoint {endpoint.name}"
        if endpoint.form != "webhook" and endpoint.secret_file is None and endpoint.secret_env is None:
            return cls(endpoint=endpoint, secrets=())
        if (endpoint.secret_file is None) == (endpoint.secret_env is None):
            raise SettingsFault(f"{where}: give either secret_file or secret_env")
        if endpoint.secret_file is not None:
            try:
                text = text_of(read_given(endpoint.secret_file, JOB_BYTES))
            except (OSError, UnicodeDecodeError) as error:
                raise SettingsFault(f"{where}: secret_file {endpoint.secret_file} cannot be read: {error}") from None
        else:
            text = environ.get(endpoint.secret_env or "", "")
        if not text.split():
            raise SettingsFault(f"{where}: there is no secret in {endpoint.secret_file or endpoint.secret_env}")
        if endpoint.form == "mlflow":
            return cls(endpoint=endpoint, secrets=(SecretBytes(text.split()[0].encode()),))
        return cls(endpoint=endpoint, secrets=tuple(_secret(each, where) for each in text.split()))


_ENDPOINTS = TypeAdapter(tuple[Endpoint, ...])


def targets_of(settings: ForwarderSettings, environ: Mapping[str, str] = os.environ) -> tuple[EndpointTarget, ...]:
    """Read the endpoints of the file. Raises SettingsFault with endpoint, field and remedy."""
    path = settings.endpoints_file
    if path is None:
        return ()
    try:
        endpoints = _ENDPOINTS.validate_python(yaml.safe_load(text_of(read_given(path, JOB_BYTES))) or ())
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsFault(f"STRETTO_FORWARDER_ENDPOINTS_FILE={path} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise SettingsFault(f"{path} is not YAML: {' '.join(str(error).split())[:300]}") from None
    except ValidationError as error:
        found = findings_of(list(error.errors()))[0]
        raise SettingsFault(f"{path}: {found.field} = {found.value}: give {found.remedy}") from None
    names = [endpoint.name for endpoint in endpoints]
    for endpoint in endpoints:
        if names.count(endpoint.name) > 1:
            raise SettingsFault(
                f"{path}: {names.count(endpoint.name)} endpoints are called {endpoint.name}: give each its own name"
            )
        _check(endpoint, path)
    return tuple(EndpointTarget.of(endpoint, environ) for endpoint in endpoints)


def _check(endpoint: Endpoint, path: Path) -> None:
    for name in endpoint.events:
        if name not in EVENTS:
            near = difflib.get_close_matches(name, EVENTS, n=1)
            meant = f"did you mean {near[0]}?" if near else f"known are {', '.join(EVENTS)}"
            raise SettingsFault(f"{path}: endpoint {endpoint.name}: no event is called {name}; {meant}")
    if endpoint.form == "tensorboard":
        if endpoint.folder is None or not endpoint.folder.is_absolute() or endpoint.url:
            raise SettingsFault(
                f"{path}: endpoint {endpoint.name}: give the absolute folder of TensorBoard, and no url"
            )
        return
    if endpoint.folder is not None:
        raise SettingsFault(f"{path}: endpoint {endpoint.name}: folder is for form: tensorboard; leave it out")
    if endpoint.form == "mlflow" and "?" in endpoint.url:
        raise SettingsFault(f"{path}: endpoint {endpoint.name}: give the url of the tracking server, without a query")
    try:
        parts = httpcore.URL(endpoint.url)
        reachable = bool(parts.host.decode().encode("idna")) and parts.port != 0
    except (ValueError, TypeError):  # a bad port or label, or characters that are not ASCII
        reachable = False
    if not reachable:
        raise SettingsFault(
            f"{path}: endpoint {endpoint.name}: url = {endpoint.url} cannot be posted to: give a host name or address, "
            "a port from 1 to 65535 if any, and nothing but ASCII"
        )


def _secret(text: str, where: str) -> SecretBytes:
    try:
        secret = base64.b64decode(text.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        secret = b""
    if not text.startswith(SECRET_PREFIX) or len(secret) < LEAST_SECRET_BYTES:
        raise SettingsFault(
            f"{where}: a secret is {SECRET_PREFIX} and at least {LEAST_SECRET_BYTES} bytes in base64, as in "
            f'`echo "{SECRET_PREFIX}$(openssl rand -base64 32)"`'
        )
    return SecretBytes(secret)
