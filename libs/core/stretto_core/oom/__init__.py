"""Growth of parameter servers' memory, and their need of it (DLRover-RM section 5.3)."""
