"""The errors of this package, and of what is built on it."""


class PipelineError(Exception):
    """Base of every error of this package. Its text names what failed, the value, and the remedy."""


class ArraysRefused(PipelineError):
    """Arrays that cannot be sent to another process, or received bytes that do not describe arrays."""


class FeedFailed(PipelineError):
    """A feed that cannot go on, after an error in carrying its decisions out; the cause is that error."""
