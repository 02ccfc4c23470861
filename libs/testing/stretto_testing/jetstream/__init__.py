"""A JetStream server in memory, which speaks the protocol of NATS to the unchanged client."""
