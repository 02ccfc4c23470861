"""The errors of this package."""


class PipelineError(Exception):
    """Base of every error of this package. Its text names what failed, the value, and the remedy."""


class ArraysRefused(PipelineError):
    """Arrays that do not travel, or bytes that are none."""


class ProgramRefused(PipelineError):
    """A program whose step cannot be taken: it has none, it fails before, or it trains in a way that has no graph."""


class HookMissing(PipelineError):
    """A place of TensorFlow or Keras where a hook belongs is not there: another version than the one known."""
