"""Suggestions for misspelled names."""

import difflib
from collections.abc import Iterable


def suggest(name: object, known: Iterable[str], prefix: str = "") -> str:
    """Return "did you mean 'x'? " for the known name closest to `name`, or "" if none is close.

    Args:
        name: The unknown name.
        known: The names to choose from.
        prefix: Text to put in front of the suggested name.

    >>> suggest("marginn", ["margin", "k"]), suggest("zzz", ["margin", "k"])
    ("did you mean 'margin'? ", '')
    """
    matches = difflib.get_close_matches(str(name), list(known), n=1)
    return f"did you mean {prefix + matches[0]!r}? " if matches else ""
