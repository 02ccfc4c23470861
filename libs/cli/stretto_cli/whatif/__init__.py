"""Every decision as a command on exported or invented data: one module for each, and one that reads files."""

from stretto_core.algorithms import KINDS as KINDS
