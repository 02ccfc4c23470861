"""Sends each event as it is to a webhook."""

from __future__ import annotations

import time

from stretto_bus.reading.ordered_consumer import Stored

from stretto_forwarder import handlers
from stretto_forwarder.posting import Poster
from stretto_forwarder.retrying import AttemptOutcome
from stretto_forwarder.settings import EndpointTarget


class Webhook:
    """A receiver of signed events."""

    def __init__(self, target: EndpointTarget, poster: Poster) -> None:
        self._secrets = target.secrets
        self._poster = poster

    async def send(self, stored: Stored, traceparent: str) -> AttemptOutcome:
        """Make one attempt. Raises NotForwardable."""
        post = handlers.post_of(stored)
        headers = handlers.signed(post, self._secrets, time.time())
        return await self._poster.post(headers | ({"traceparent": traceparent} if traceparent else {}), post.body)
