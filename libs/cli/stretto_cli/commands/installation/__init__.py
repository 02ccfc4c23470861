"""Commands that begin, end and save an installation on this machine."""
