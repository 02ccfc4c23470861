"""Settings of the checkpoints service: STRETTO_CHECKPOINTS_<FIELD> or STRETTO_<FIELD>."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field
from stretto_runtime import SettingsFault
from stretto_runtime.settings import StoreSettings
from stretto_wire.contract.registry import POD_ANSWER_S

from .cache import Cache, checked
from .memory import SharedMemory
from .stores import Stores


class CheckpointsSettings(StoreSettings):
    """The installation's store of checkpoints, what jobs may name beside it, and the time limits of taking one."""

    redis_url: Annotated[str, AfterValidator(checked)] = Field(
        "", description="cache between machines, with a user who may make users; empty: no cache"
    )
    redis_url_file: Path | None = Field(
        None,
        description="file with redis_url, which goes before; `python -m stretto_installation keys --redis` makes one",
    )
    redis_users: bool = Field(
        True, description="make a user there for each job; false: pods know redis_url and may read all images"
    )
    take_timeout_s: float = Field(
        120.0, gt=0, le=POD_ANSWER_S, description="a checkpoint fails if its images are not in memory by then"
    )
    store_timeout_s: float = Field(
        900.0, gt=0, description="a checkpoint fails if its images are not in the store by then"
    )
    restore_timeout_s: float = Field(
        900.0, gt=0, le=POD_ANSWER_S, description="a restore fails if a server lacks its part by then"
    )
    restore_pause_s: float = Field(
        5.0, ge=0, le=600, description="pause before a restore is tried again, times the failures so far"
    )
    poll_s: float = Field(0.3, gt=0.01, le=60, description="interval of checks of the copies to the store")

    @property
    def memory(self) -> SharedMemory:
        """The shared memory that keeps images for fast restores."""
        return SharedMemory(self.memory_folder, self.state_folder)

    @property
    def cache(self) -> Cache:
        """The cache in which servers on other machines find the newest images."""
        return Cache(self._redis_url(), self.redis_users)

    def _redis_url(self) -> str:
        """Return the cache's URL. Raises SettingsFault: its file cannot be read, or holds no URL."""
        if self.redis_url_file is None:
            return self.redis_url
        try:
            return checked(self.redis_url_file.read_text().strip())
        except (OSError, ValueError) as error:
            raise SettingsFault(f"STRETTO_CHECKPOINTS_REDIS_URL_FILE={self.redis_url_file}: {error}") from None

    @property
    def stores(self) -> Stores:
        """All places where a checkpoint may be."""
        return Stores(self.store, self.allowed)
