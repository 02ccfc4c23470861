"""The protocol of the gateway without I/O: generators that yield commands and take their results.

A driver performs the commands (:mod:`stretto_client.drivers`). What to send, what to repeat and when to give up is
decided here alone.
"""
