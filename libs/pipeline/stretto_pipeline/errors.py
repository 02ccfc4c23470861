"""The errors of this package, and of what is built on it."""


class PipelineError(Exception):
    """Base of every error of this package. Its text names what failed, the value, and the remedy."""


class ArraysRefused(PipelineError):
    """Arrays that cannot be sent to another process, or received bytes that do not describe arrays."""
