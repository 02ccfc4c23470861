"""Settings of the gateway, from ``STRETTO_GATEWAY_*`` and the variables that every service reads."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, SecretStr
from stretto_messages.base import DEFAULT_TEAM
from stretto_messages.gateway import CallerRole
from stretto_runtime.access.tokens import TeamName
from stretto_runtime.settings import AllowedSettings, DeviceSettings, ExtendedSettings, TeamsSettings

ENDED_BYTES = 64 << 20
"""Default bound of the views of all ended jobs together; in memory they take 1.7 to 5 times as much."""


class GatewaySettings(AllowedSettings, ExtendedSettings, DeviceSettings, TeamsSettings):
    """Addresses, authentication and limits of the gateway, and what jobs may ask for."""

    host: str = Field("127.0.0.1", description="address to listen on; default: loopback")
    port: int = Field(0, ge=0, le=65535, description="port to listen on; 0: any free port, written to run/gateway.json")
    listener: int | None = Field(
        None, ge=3, description="descriptor of a socket that the parent listens at for us; none: host, port"
    )
    local_listener: int | None = Field(
        None, ge=3, description="descriptor of such a Unix socket, for commands here; none: run/gateway.sock"
    )
    token: SecretStr | None = Field(
        None,
        description="admin's bearer token; none: the one in the token file, made if absent; empty: accept everybody",
    )
    token_file: Path | None = Field(
        None, description="file of the admin token, mode 600; none: gateway.token in the state folder"
    )
    tokens_file: Path | None = Field(
        None,
        description="file of tokens with roles (`stretto token`); none: gateway.tokens.json in the state folder",
    )
    oidc_issuer: str | None = Field(None, description="OpenID issuer whose tokens are accepted too, as in their iss")
    oidc_audience: str = Field("", description="audience that their claim aud must contain")
    oidc_jwks_url: str | None = Field(None, description="URL of the issuer's keys; none: from its discovery document")
    oidc_name_claim: str = Field("sub", description="claim that names the caller; it must never change for a person")
    oidc_role_claim: str = Field(
        "roles", description="claim that holds roles, a text or list; dots separate nested objects: realm_access.roles"
    )
    oidc_roles: dict[str, CallerRole] = Field(
        default_factory=dict[str, CallerRole],
        description="map from the claim's values to roles; empty: they are roles",
    )
    oidc_team_claim: str = Field(
        "", description="claim that names the caller's team, a text; dots as in the role's; empty: all in one team"
    )
    oidc_client_id: str = Field(
        "",
        description="public client of the issuer with which a browser signs people in (code and PKCE); empty: none",
    )
    oidc_scopes: str = Field("openid", description="scopes that a browser asks for, separated by spaces")
    rate_per_s: float = Field(50.0, ge=0, le=10**6, description="requests per second of one caller; 0: unlimited")
    rate_burst: int = Field(200, ge=1, le=10**6, description="requests of one caller at once, after a quiet time")
    connections: int = Field(
        1000, ge=1, le=10**6, description="open connections: half for callers with a token, half for others"
    )
    address_connections: int = Field(
        100,
        ge=1,
        le=10**6,
        description="of them, of one caller, or of one address (IPv6: of one /64); trusted proxies: unlimited",
    )
    streams: int = Field(20, ge=1, le=10**6, description="event streams of one caller at once")
    headers_s: float = Field(10.0, gt=0, le=600, description="longest time for the headers of a request to arrive")
    cors_origins: tuple[str, ...] = Field((), description='origins whose pages may call, e.g. ["https://a.example"]')
    tls_certificate: Path | None = Field(None, description="PEM file with the certificate chain; none: plain HTTP")
    tls_key: Path | None = Field(None, description="PEM file with the key of that certificate")
    proxies: str = Field(
        "", description="addresses of proxies whose X-Forwarded-For is trusted, separated by commas; *: all"
    )
    code_is_here: bool = Field(
        False,
        description="pods are processes of this machine: a job whose model.entry is in no folder of it is refused; "
        "`stretto up` sets it",
    )
    body_bytes: int = Field(128 * 1024, ge=1024, le=4 << 20, description="greatest size of a request body")
    spec_bytes: int = Field(
        64 * 1024, ge=4096, le=128 * 1024, description="greatest size of a job's specification, as it is stored"
    )
    team_bytes_per_day: int = Field(
        16 << 20,
        ge=1 << 20,
        description="bytes of submissions, added data and requested plans of one team: so many at once, and in a day",
    )
    ended_bytes: int = Field(
        ENDED_BYTES,
        ge=1 << 20,
        description="bytes of the views of ended jobs, as JSON with what is retained of them. Beyond it the oldest "
        "leave, first those of the team that has most; their names stay taken",
    )
    body_s: float = Field(30.0, gt=0, le=600, description="longest time for a request body to arrive")
    call_timeout_s: float = Field(
        5.0, gt=0, le=60, description="longest wait for a service's answer to a user's request"
    )
    traces_url: str = Field(
        "",
        pattern=r"^$|^https?://[^\s/@?#]+(/[^\s?#]*)?$",
        description="query API of the collector that has the spans: Tempo's (http://tempo:3200) or Jaeger's "
        "(http://jaeger:16686); empty: spans of this machine only",
    )
    traces_headers: SecretStr | None = Field(
        None,
        description="headers of those requests, as in OTEL_EXPORTER_OTLP_HEADERS: "
        "Authorization=Bearer%20…,X-Scope-OrgID=1",
    )
    keepalive_s: float = Field(15.0, gt=0, le=300, description="interval of comments on a quiet event stream")
    trainingjobs: bool = Field(
        False, description="serve TrainingJob objects of Kubernetes too; one installation per namespace"
    )
    installation: str = Field(
        "stretto",
        pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$",
        description="name of the installation, as in the actuator's settings: a deleted TrainingJob waits for its pods",
    )
    trainingjobs_namespace: str = Field("", description="namespace of the objects; empty: the gateway's own")
    trainingjobs_team: TeamName = Field(DEFAULT_TEAM, description="team of the jobs of TrainingJob objects")
    trainingjobs_config: Path | None = Field(None, description="kubeconfig file; none: the service account of this pod")
    trainingjobs_s: float = Field(2.0, gt=0.01, le=60, description="interval of checks of unchanged objects")
    trainingjobs_lease_s: float = Field(
        15.0, ge=1, le=300, description="a writing replica that is silent this long counts as dead"
    )
