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


def one_line(error: Exception) -> str:
    r"""Return the message of an exception on one printable line of at most 300 characters.

    The type comes first, unless the exception is a `ValueError`, whose messages are sentences.

    >>> one_line(KeyError("k")), one_line(UserError("two\nlines"))
    ("KeyError: 'k'", 'two lines')
    """
    text = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    return shorten(escape(" ".join(text.split())), 300)
