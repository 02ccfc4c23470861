"""Credentials with which a pod logs in to the bus: its own, for a limited time, and renewable."""

from __future__ import annotations

from stretto_bus.faults import IdentityFault
from stretto_core.actuator import ActuatorMachine
from stretto_messages.actuator import RenewCredentials, RenewCredentialsReply
from stretto_runtime import SettingsFault
from stretto_runtime.access.identity import Key, mint, parts_of, pods_account_of, renew
from stretto_wire.errors import WireError

from .settings import ActuatorSettings

CREDENTIALS_FILE = "bus.creds"
CA_FILE = "ca.crt"


class Issuer:
    """Vouches for pods with the key that the account has bound to what pods may do.

    Raises:
        SettingsFault: a file that the settings name cannot be used, or credentials may end before their pod starts.
    """

    def __init__(self, settings: ActuatorSettings) -> None:
        self._life_s = settings.credentials_s
        self._files: dict[str, bytes] = {}
        self._key: Key | None = None
        self._account = ""
        try:
            if settings.nats_ca is not None:
                self._files[CA_FILE] = settings.nats_ca.read_bytes()
            if settings.signing_key_file is not None:
                self._key = Key(settings.signing_key_file.read_text().strip())
                self._account = _account_of(settings)
                _check_life(settings)
        except (OSError, IdentityFault) as error:
            raise SettingsFault(
                f"STRETTO_ACTUATOR_SIGNING_KEY_FILE={settings.signing_key_file}, "
                f"STRETTO_NATS_CREDENTIALS={settings.nats_credentials}, STRETTO_NATS_CA={settings.nats_ca}: {error}"
            ) from None

    def files(self, job: str, pod: str, now: float) -> dict[str, bytes]:
        """Those of a pod that is about to start."""
        if self._key is None:
            return self._files
        minted = mint(self._key, self._account, job, pod, now, self._life_s)
        return {**self._files, CREDENTIALS_FILE: minted.encode()}

    def renew(self, asked: RenewCredentials, machine: ActuatorMachine | None, now: float) -> RenewCredentialsReply:
        """Raises WireError: the token is not of this pod, or of nobody that this key vouches for."""
        if machine is None or asked.pod not in machine.state.pods:
            return RenewCredentialsReply(job=asked.job, answer="unknown")
        if self._key is None:
            raise WireError(
                "token", "(a token)", "none: the actuator was started without STRETTO_ACTUATOR_SIGNING_KEY_FILE"
            )
        try:
            token = renew(self._key, asked.token, asked.job, asked.pod, now, self._life_s)
        except IdentityFault as fault:
            raise WireError("token", "(a token)", f"the pod's own, while it is valid: {fault}") from None
        return RenewCredentialsReply(job=asked.job, answer="ok", token=token)


def _check_life(settings: ActuatorSettings) -> None:
    """A pod gets its credentials before it waits for room and image; processes wait for neither."""
    waits_s = settings.room_timeout_s + settings.image_timeout_s
    if settings.backend != "local" and settings.credentials_s <= waits_s:
        raise SettingsFault(
            f"STRETTO_ACTUATOR_CREDENTIALS_S={settings.credentials_s:g} is refused: give more than {waits_s:g}, "
            f"STRETTO_ACTUATOR_ROOM_TIMEOUT_S and STRETTO_ACTUATOR_IMAGE_TIMEOUT_S together, or make those shorter: "
            "the credentials of a pod that waits so long have ended when it starts"
        )


def _account_of(settings: ActuatorSettings) -> str:
    """Return the account of pods, which the actuator's own credentials name."""
    if settings.nats_credentials is None:
        raise IdentityFault("pods get credentials only where the actuator has some itself")
    token, _ = parts_of(settings.nats_credentials.read_text())
    return pods_account_of(token)
