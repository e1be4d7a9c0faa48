"""What somebody may have meant by a name that is not there."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def meant(name: object, known: Iterable[str], prefix: str = "") -> str:
    """`did you mean 'x'? ` for the known name nearest to `name`, or nothing if none is near.

    >>> meant("marginn", ["margin", "k"]), meant("zzz", ["margin", "k"])
    ("did you mean 'margin'? ", '')
    """
    near = difflib.get_close_matches(str(name), list(known), n=1)
    return f"did you mean {prefix + near[0]!r}? " if near else ""
