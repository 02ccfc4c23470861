"""Flash checkpoints: shared memory, Redis, persistent store."""
