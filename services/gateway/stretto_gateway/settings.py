"""Settings of the gateway, from ``STRETTO_GATEWAY_*`` and the ones every service has."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, SecretStr
from stretto_runtime import Settings


class GatewaySettings(Settings):
    """Where the gateway listens and whom it lets in."""

    host: str = Field("127.0.0.1", description="loopback unless told otherwise")
    port: int = Field(0, ge=0, le=65535, description="0: any free port, written to run/gateway.json")
    token: SecretStr | None = Field(
        None, description="bearer token; none: the one in the token file, made if absent; empty: everybody is let in"
    )
    token_file: Path | None = Field(None, description="none: gateway.token in the state folder; mode 600")
    body_bytes: int = Field(128 * 1024, ge=1024, le=4 << 20, description="larger request bodies are refused")
    call_timeout_s: float = Field(5.0, gt=0, le=60, description="patience with services asked on a user's behalf")
    keepalive_s: float = Field(15.0, gt=0, le=300, description="a comment is sent on a quiet event stream so often")
