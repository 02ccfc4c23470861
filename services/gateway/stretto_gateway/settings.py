"""Settings of the gateway, from ``STRETTO_GATEWAY_*`` and the ones every service has."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, SecretStr
from stretto_runtime import Settings
from stretto_runtime.access.tokens import Role


class GatewaySettings(Settings):
    """Where the gateway listens and whom it lets in."""

    host: str = Field("127.0.0.1", description="loopback unless told otherwise")
    port: int = Field(0, ge=0, le=65535, description="0: any free port, written to run/gateway.json")
    token: SecretStr | None = Field(
        None, description="bearer token; none: the one in the token file, made if absent; empty: everybody is let in"
    )
    token_file: Path | None = Field(None, description="none: gateway.token in the state folder; mode 600")
    tokens_file: Path | None = Field(
        None, description="tokens with roles, as `stretto token` writes it; none: gateway.tokens.json there"
    )
    oidc_issuer: str | None = Field(None, description="OpenID issuer whose tokens are accepted too, as in their iss")
    oidc_audience: str = Field("", description="what must stand in their aud")
    oidc_jwks_url: str | None = Field(None, description="the issuer's keys; none: as its discovery document says")
    oidc_name_claim: str = Field("sub", description="the claim that names the caller, always the same one alike")
    oidc_role_claim: str = Field("roles", description="a text or list; dots go into objects: realm_access.roles")
    oidc_roles: dict[str, Role] = Field(
        default_factory=dict[str, Role], description="value of that claim -> role; empty: it names the roles themselves"
    )
    rate_per_s: float = Field(50.0, ge=0, le=10**6, description="requests of one caller; 0: as many as they like")
    rate_burst: int = Field(200, ge=1, le=10**6, description="of them at once, after a quiet while")
    connections: int = Field(1000, ge=1, le=10**6, description="open at once, event streams among them")
    cors_origins: tuple[str, ...] = Field((), description='pages that may call, as in ["https://a.example"]; or none')
    tls_certificate: Path | None = Field(None, description="PEM, with the chain; none: plain HTTP")
    tls_key: Path | None = Field(None, description="PEM, of that certificate")
    proxies: str = Field("", description="addresses of proxies whose X-Forwarded-For is believed, with commas; *: all")
    body_bytes: int = Field(128 * 1024, ge=1024, le=4 << 20, description="larger request bodies are refused")
    body_s: float = Field(30.0, gt=0, le=600, description="a body that takes longer to arrive is refused")
    call_timeout_s: float = Field(5.0, gt=0, le=60, description="patience with services asked on a user's behalf")
    keepalive_s: float = Field(15.0, gt=0, le=300, description="a comment is sent on a quiet event stream so often")
    trainingjobs: bool = Field(False, description="serve TrainingJobs of Kubernetes, too; one gateway per namespace")
    installation: str = Field(
        "stretto",
        pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$",
        description="as the actuator's: whose pods a deleted TrainingJob waits for",
    )
    trainingjobs_namespace: str = Field("", description="of the objects; none: the gateway's own")
    trainingjobs_config: Path | None = Field(None, description="a kubeconfig; none: the service account of this pod")
    trainingjobs_s: float = Field(2.0, gt=0.01, le=60, description="between looks at objects that nobody changes")
    trainingjobs_lease_s: float = Field(15.0, ge=1, le=300, description="a writing replica silent for so long is dead")
