"""The protocol of the gateway: requests, their repetitions, and streams that survive outages.

Every operation is a coroutine or an asynchronous generator that knows nothing of the outside but a
:class:`~stretto_client.protocol.connection.GatewayConnection`. One connection suspends the operation while it waits,
for asyncio; the other blocks, so that the same operation runs to its end without an event loop
(:mod:`stretto_client.blocking`).
"""
