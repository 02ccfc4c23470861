"""The durable shard ledger."""
