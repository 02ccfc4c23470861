"""The gateway: its parts, over one projection of the stream.

The gateway owns no partition: any number of replicas may run, each with the whole projection.
"""

from __future__ import annotations

from collections.abc import Callable

from .read_model.follower import Follower
from .read_model.job_views import JobViews
from .read_model.past import Past
from .requests.changes import Changes
from .requests.inquiries import Inquiries
from .requests.submissions import Submissions
from .requests.team_bytes import TeamBytes
from .settings import GatewaySettings
from .streams.bus import StreamBus
from .streams.continuity import EndLost
from .streams.fullness import Fullness
from .streams.soundness import Soundness


class Gateway:
    """A replica of the gateway. The follower keeps the projection, from which all other parts read.

    ``clock``: seconds since 1970-01-01 UTC.
    """

    def __init__(self, bus: StreamBus, settings: GatewaySettings, clock: Callable[[], float]) -> None:
        self.settings = settings
        self.bus = bus
        self.follower = Follower(bus, settings.ended_bytes, clock)
        self.fullness = Fullness(bus, settings.stream_look_s)
        self.soundness = Soundness(bus, lambda: self.follower.ready)
        self.views = JobViews(self.follower, bus, Past(bus), clock, self.soundness.damages)
        self._team_bytes = TeamBytes(settings.team_bytes_per_day, self.follower.projection.jobs, clock)
        self.submissions = Submissions(settings, self.follower, self.views, self._team_bytes, self.fullness.shares, bus)
        self.changes = Changes(self.follower, self.views, self._team_bytes, bus, bus, settings.call_timeout_s)
        self.inquiries = Inquiries(
            settings,
            self.follower,
            self.views,
            self.submissions,
            self.fullness.shares,
            self.soundness.damages,
            bus,
            clock,
        )

    async def follow(self) -> None:
        """Keep the projection up to date, and count the bytes that teams cause; never returns. Raises Fault."""
        try:
            await self.follower.follow(self._team_bytes.charge)
        except EndLost:
            self._team_bytes.clear()
            raise
