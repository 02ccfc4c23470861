"""The errors of this package, and the text of an error in one line."""

from stretto_pipeline.errors import PipelineError


class ProgramRefused(PipelineError):
    """A program without a step that can be captured or split, such as a step without a graph."""


class HookMissing(PipelineError):
    """A method of the framework that a hook replaces does not exist: this version of the framework is not known."""


def in_words(error: BaseException) -> str:
    """Return an error in one line.

    A PipelineError is told by its own text, any other error by its type and the first line of its text.
    """
    try:
        text = str(error).strip()
    except Exception:  # the program's own exceptions may raise in __str__
        text = ""
    if isinstance(error, PipelineError):
        return text
    return f"{type(error).__name__}: {text.partition(chr(10))[0]}"
