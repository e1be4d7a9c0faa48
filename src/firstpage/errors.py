"""The exception for mistakes that the user can correct."""

from firstpage._text import escape, shorten


class UserError(ValueError):
    """Wrong input: an argument, a setting, a file or data that the user can correct.

    Its message is one line that names what was given and how to correct it. Control characters in what it
    quotes are escaped, and of a message of more than 2,000 characters the middle is left out. Files that are
    missing or cannot be written raise `FileNotFoundError` and other `OSError`s, as usual. The command line
    prints both as one line; any other exception is a bug and keeps its traceback.

    >>> raise UserError("TopKPrecision(k=0): k must be at least 1")
    Traceback (most recent call last):
    firstpage.errors.UserError: TopKPrecision(k=0): k must be at least 1
    """

    def __str__(self) -> str:
        return shorten(escape(super().__str__()))
