"""The errors of this package."""


class PipelineError(Exception):
    """Base of every error of this package. Its text names what failed, the value, and the remedy."""


def in_words(error: BaseException) -> str:
    """Return an error in one line: the text of one of ours, of another one its type and its first line."""
    try:
        text = str(error).strip()
    except Exception:  # an error of the program's own may have a text that fails
        text = ""
    if isinstance(error, PipelineError):
        return text
    return f"{type(error).__name__}: {text.partition(chr(10))[0]}"


class ArraysRefused(PipelineError):
    """Arrays that do not travel, or bytes that are none."""


class ProgramRefused(PipelineError):
    """A program whose step cannot be taken: it has none, it fails before, or it trains in a way that has no graph."""


class HookMissing(PipelineError):
    """A place of TensorFlow or Keras where a hook belongs is not there: another version than the one known."""
