"""The identity of a pod: credentials for the bus, of its own and for a limited time, and its job's key for the plane.

The key of a job is derived from a secret of the installation: the key that vouches for pods, or where pods are
processes and there is none, a file of random bytes in the state folder. So every replica of the actuator lays the same
key, and nothing of it has to be kept.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path

from stretto_bus.faults import IdentityFault
from stretto_core.actuator.machine import ActuatorMachine
from stretto_messages.actuator import RenewCredentials, RenewCredentialsReply
from stretto_plane import Key as PlaneKey
from stretto_runtime import SettingsFault
from stretto_runtime.access.identity import Key, mint, parts_of, pods_account_of, renew
from stretto_wire.errors import WireError

from ..settings import ActuatorSettings

CREDENTIALS_FILE = "bus.creds"
CA_FILE = "ca.crt"
PLANE_KEY_FILE = "plane.pem"
SECRET_FILE = "plane.secret"
SECRET_BYTES = 32
SECRET_MODE = 0o600
OPEN_SECRET = hashlib.sha256(b"an installation whose bus is open to everybody").digest()
"""Where containers run without a signing key: whoever reaches the bus may do everything there (`nats.insecure`), and
can compute the keys of jobs as well. Parameter servers still tell the pods of different jobs apart."""


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
        self._plane_secret = OPEN_SECRET
        try:
            if settings.nats_ca is not None:
                self._files[CA_FILE] = settings.nats_ca.read_bytes()
            if settings.signing_key_file is not None:
                self._key = Key(settings.signing_key_file.read_text().strip())
                self._account = _account_of(settings)
                _check_life(settings)
                self._plane_secret = self._key.seed.encode()
            elif settings.backend == "local":
                self._plane_secret = secret_of(settings.state_folder)
        except (OSError, IdentityFault) as error:
            raise SettingsFault(
                f"STRETTO_ACTUATOR_SIGNING_KEY_FILE={settings.signing_key_file}, "
                f"STRETTO_NATS_CREDENTIALS={settings.nats_credentials}, STRETTO_NATS_CA={settings.nats_ca}: {error}"
            ) from None

    def files(self, job: str, pod: str, now: float) -> dict[str, bytes]:
        """Return the files of a pod that is about to start."""
        files = {**self._files, PLANE_KEY_FILE: PlaneKey.derive(self._plane_secret, job).pem}
        if self._key is not None:
            minted = mint(self._key, self._account, job, pod, now, self._life_s)
            files[CREDENTIALS_FILE] = minted.encode()
        return files

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


def secret_of(folder: Path) -> bytes:
    """Return the secret of a state folder, which the first caller makes. Raises OSError, SettingsFault."""
    path = folder / SECRET_FILE
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        draft = folder / f"{SECRET_FILE}.{os.getpid()}.{secrets.token_hex(4)}"
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, SECRET_MODE), "wb") as file:
            file.write(secrets.token_bytes(SECRET_BYTES))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)  # fails where another replica was faster, and never shows half a file
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    secret = path.read_bytes()
    if len(secret) != SECRET_BYTES:
        raise SettingsFault(
            f"{path} has {len(secret)} bytes, not {SECRET_BYTES}: it is damaged; end the pods and remove it, and the "
            "actuator makes another"
        )
    return secret


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
