"""Faults of an installation: of processes, lines and the server, rolling upgrades, a loss and its backup."""
