"""The cache folder, for files that can be created or downloaded again: glyphs, pixels, public weights."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return `$FIRSTPAGE_CACHE`, or the folder `firstpage` in the user's cache folder.

    >>> import os
    >>> os.environ["FIRSTPAGE_CACHE"] = "somewhere"
    >>> cache_folder().name
    'somewhere'
    >>> del os.environ["FIRSTPAGE_CACHE"]
    """
    own = os.environ.get("FIRSTPAGE_CACHE")
    shared = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return (Path(own) if own else Path(shared) / "firstpage").expanduser()
