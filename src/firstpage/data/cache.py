"""Where firstpage keeps what can be made or fetched again: drawn glyphs, decoded pixels, public weights."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["cache_folder"]


def cache_folder() -> Path:
    """$FIRSTPAGE_CACHE, or the folder `firstpage` of the user's cache.

    >>> import os
    >>> os.environ["FIRSTPAGE_CACHE"] = "somewhere"
    >>> cache_folder().name
    'somewhere'
    >>> del os.environ["FIRSTPAGE_CACHE"]
    """
    own = os.environ.get("FIRSTPAGE_CACHE")
    shared = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return (Path(own) if own else Path(shared) / "firstpage").expanduser()
