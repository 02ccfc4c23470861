"""Services of Stretto in one deterministic process: virtual time, a bus in memory, faults from a seed."""
