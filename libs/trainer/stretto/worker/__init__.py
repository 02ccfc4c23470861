"""A worker: it leases shards, trains them step by step and reports; ``python -m stretto.worker``."""
