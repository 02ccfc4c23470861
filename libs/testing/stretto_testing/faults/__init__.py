"""Faults of an installation: those of processes, lines and the server, rolling upgrades, a loss and its backup."""
