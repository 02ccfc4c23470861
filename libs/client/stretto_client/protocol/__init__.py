"""The protocol of the gateway: requests, their repetitions, and streams that survive outages.

Every operation is a coroutine or an asynchronous generator that knows the outside only as a
:class:`~stretto_client.protocol.connection.Connection`. One connection suspends it while it waits, for asyncio; the
other blocks, so that the same operation runs to its end without an event loop (:mod:`stretto_client.blocking`).
"""
