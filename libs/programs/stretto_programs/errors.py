"""The errors of this package, and how an error is told in one line."""

from stretto_pipeline.errors import PipelineError


class ProgramRefused(PipelineError):
    """A program whose step cannot be taken: it has none, it fails before, or it trains in a way that has no graph."""


class HookMissing(PipelineError):
    """A method of TensorFlow, Keras or PyTorch that a hook replaces is missing: its version is not a known one."""


def in_words(error: BaseException) -> str:
    """Return an error in one line: the text of a PipelineError, of any other error its type and its first line."""
    try:
        text = str(error).strip()
    except Exception:  # an error of the program's own may have a text that fails
        text = ""
    if isinstance(error, PipelineError):
        return text
    return f"{type(error).__name__}: {text.partition(chr(10))[0]}"
