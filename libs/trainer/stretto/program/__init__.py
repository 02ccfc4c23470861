"""A worker that runs a program of the user's and leases its samples for it; ``python -m stretto.program``."""
