"""The shard ledger of a job: leases, books, order (DLRover-RM section 5.1)."""
