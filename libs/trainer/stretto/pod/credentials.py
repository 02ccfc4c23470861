"""The credentials that the actuator gave this pod, for a while."""

from __future__ import annotations

from pathlib import Path

from stretto_bus.faults import IdentityFault
from stretto_bus.login import RenewableLogin, tls_options

from ..errors import PodError


def identity_of(credentials: Path | None = None, ca: Path | None = None) -> RenewableLogin:
    """Read the files that STRETTO_NATS_CREDENTIALS and STRETTO_NATS_CA name.

    Raises:
        PodError: a file cannot be used.
    """
    try:
        tls_options(ca)
    except IdentityFault as fault:
        raise PodError(str(fault)) from None
    if credentials is None:
        return RenewableLogin(ca=ca)
    try:
        return RenewableLogin(credentials.read_text() or "nothing", ca)
    except (OSError, ValueError, IdentityFault) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise PodError(f"STRETTO_NATS_CREDENTIALS={credentials}: {reason}; the actuator writes them") from None
