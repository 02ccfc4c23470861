"""The errors of this package."""


class PipelineError(Exception):
    """Base of every error of this package. Its text names what failed, the value, and the remedy."""


class ArraysRefused(PipelineError):
    """Arrays that do not travel, or bytes that are none."""
