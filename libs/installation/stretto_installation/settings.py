"""Settings for making the streams of an installation, and for the server that holds them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from pydantic import Field
from stretto_bus.reading.servers import interval_s_of
from stretto_runtime.process.faults import SettingsFault
from stretto_runtime.settings import DAY_S, PREFIX, Settings
from stretto_wire.contract.registry import EVENTS_KEPT_S, TELEMETRY_KEPT_S

FACTS_BYTES, TELEMETRY_BYTES, STATE_BYTES = 20 << 30, 2 << 30, 8 << 30
"""Default bounds of the two streams and of the bucket. A short job stores up to 200 KB of facts: 100,000 in a month."""
EVENTS_LEAST_S = 8 * DAY_S
"""A day more than the longest life of journal frames by default, the arbiter's."""
YEARS_S = 10 * 365 * DAY_S
ENCRYPTION_KEY_LEAST = 32
REST_LEAST_S = 300.0
"""More than twice the interval at which the server syncs unless told otherwise, two minutes."""


class StreamsSettings(Settings):
    """Settings for making the streams, ``STRETTO_STREAMS_<FIELD>``; services read them from the streams."""

    replicas: int = Field(1, ge=1, le=5, description="servers that hold each stream; 3 survive the loss of one")
    sync_interval: str = Field(
        "",
        pattern=r"^(always|[1-9][0-9]*(ms|s|m))?$",
        description="time between syncs of a server's disk, which must not be longer than this; empty: its own",
    )
    encryption_key_file: Path | None = Field(
        None,
        description="file of a key of 32 characters or more that encrypts the streams on the disk of the server of "
        "`stretto up`; another server needs `cipher` and `key` in its own configuration",
    )
    max_bytes: int = Field(FACTS_BYTES, ge=1 << 20, description="bound of the event stream, on each server")
    telemetry_max_bytes: int = Field(
        TELEMETRY_BYTES, ge=1 << 20, description="bound of the reports of pods, on each server; the oldest go first"
    )
    state_max_bytes: int = Field(
        STATE_BYTES, ge=1 << 20, description="bound of what services save of their jobs, on each server"
    )
    events_kept_s: int = Field(
        EVENTS_KEPT_S,
        ge=EVENTS_LEAST_S,
        le=EVENTS_KEPT_S,
        description="age at which events, journals and fences go. Least: a day more than the arbiter's journals "
        "(journal_ttl_s); most: a day less than services remember ended jobs",
    )
    telemetry_kept_s: int = Field(
        TELEMETRY_KEPT_S,
        ge=TELEMETRY_KEPT_S,
        le=EVENTS_KEPT_S,
        description="age at which reports of pods go. Least: the hour in which an owner that comes back replays them",
    )
    dead_letters_kept_s: int = Field(
        EVENTS_KEPT_S,
        ge=DAY_S,
        le=YEARS_S,
        description="age at which dead letters go, and the messages in them. Least: a day to look at them",
    )
    audit_kept_s: int = Field(
        EVENTS_KEPT_S,
        ge=DAY_S,
        le=YEARS_S,
        description="age at which entries of the audit log go. Least: a day to export them",
    )
    external_credentials: Path | None = Field(
        None,
        description="folder of credentials, one file for each tool outside, that may make the tool's own stream of "
        "events; none: tools get live events only",
    )
    external_max_bytes: int = Field(
        1 << 30, ge=1 << 20, description="bound of one tool's stream, on each server; the oldest go first"
    )

    @classmethod
    def read(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Read them from the environment. Raises SettingsFault."""
        return cls.load("streams", environ)

    @classmethod
    def of_streams(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Read them from an environment that also holds settings of services, which pass. Raises SettingsFault."""
        environ = os.environ if environ is None else environ
        return cls.read({name: value for name, value in environ.items() if name.startswith(f"{PREFIX}STREAMS_")})

    @property
    def rest_s(self) -> float:
        """Time after which the server has surely synced a message, seconds: twice its interval, and some minutes."""
        return max(REST_LEAST_S, 2 * (interval_s_of(self.sync_interval) or 0.0))

    @property
    def encryption_key(self) -> str:
        """The key that encrypts the streams, empty for none. Raises SettingsFault."""
        file = self.encryption_key_file
        if file is None:
            return ""
        try:
            key = file.read_text().strip()
        except (OSError, ValueError) as error:
            raise SettingsFault(f"STRETTO_STREAMS_ENCRYPTION_KEY_FILE={file} cannot be read: {error}") from None
        if len(key) < ENCRYPTION_KEY_LEAST:
            raise SettingsFault(
                f"STRETTO_STREAMS_ENCRYPTION_KEY_FILE={file} has a key of {len(key)} characters: give "
                f"{ENCRYPTION_KEY_LEAST} or more, such as those of `openssl rand -hex 32`"
            )
        return key
