"""An installation of Stretto as an operator makes it: its keys and streams, its backups, its processes on one machine.

Services import nothing of this package. ``python -m stretto_installation`` prepares servers of one's own.
"""
