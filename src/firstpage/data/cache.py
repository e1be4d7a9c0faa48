"""The cache folder, for files that can be made or downloaded again: pixels, embeddings, weights and more."""

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

from filelock import Timeout

from firstpage._text import format_size
from firstpage.data.locking import exclusive, is_in_use
from firstpage.errors import UserError

# Where each kind of thing is in the cache folder: one entry for each thing.
PARTS = {
    "pixels": "pixels/*",
    "features": "features/*",
    "embeddings": "embeddings/*",
    "glyphs": "glyphs-*",
    "weights": "weights/*",
}


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


def describe_cache() -> str:
    """Return what is in the cache folder: the number, the size and the age of each kind of thing.

    >>> import os
    >>> os.environ["FIRSTPAGE_CACHE"] = "nowhere"
    >>> print(describe_cache())
    nowhere: 0 bytes
    pixels        0  0 bytes
    features      0  0 bytes
    embeddings    0  0 bytes
    glyphs        0  0 bytes
    weights       0  0 bytes
    >>> del os.environ["FIRSTPAGE_CACHE"]
    """
    lines, total = [], 0
    for part in PARTS:
        entries = _entries(part)
        sizes, times = zip(*map(_size_and_time, entries), strict=True) if entries else ((), ())
        total += sum(sizes)
        days = [int((time.time() - changed) / 86_400) for changed in times]
        age = f"  the oldest of {max(days)} days ago" if any(days) else ""
        lines.append(f"{part:10} {len(entries):4,}  {format_size(sum(sizes))}{age}")
    return "\n".join([f"{cache_folder()}: {format_size(total)}", *lines])


def clear_cache(part: str) -> str:
    """Remove what is in the cache folder, except what a process is using.

    Args:
        part: `pixels`, `features`, `embeddings`, `glyphs`, `weights` or `all`.

    Returns:
        What was removed, in one line.

    Raises:
        UserError: There is no such part.

    >>> clear_cache("pixel")
    Traceback (most recent call last):
    firstpage.errors.UserError: cache clear 'pixel': choose one of pixels, features, ...
    """
    if part not in (*PARTS, "all"):
        raise UserError(f"cache clear {part!r}: choose one of {', '.join(PARTS)}, all")
    removed = used = 0
    for entry in [entry for name in PARTS if part in (name, "all") for entry in _entries(name)]:
        size, _ = _size_and_time(entry)
        if _remove(entry):
            removed += size
        else:
            used += 1
    kept = f"; {used} in use {'is' if used == 1 else 'are'} still there" if used else ""
    return f"removed {format_size(removed)} from {cache_folder()}{kept}"


def _entries(part: str) -> list[Path]:
    """Return the things of a part, without locks, and without the files that are being written."""
    return sorted(
        path for path in cache_folder().glob(PARTS[part]) if path.suffix != ".lock" and path.name[0] != "."
    )


def _size_and_time(entry: Path) -> tuple[int, float]:
    """Return the bytes of a file or folder, and the time of its last change."""
    size, changed = 0, 0.0
    for path in [entry, *(entry.rglob("*") if entry.is_dir() else [])]:
        with suppress(OSError):  # removed meanwhile
            status = path.stat()
            size += status.st_size if path.is_file() else 0
            changed = max(changed, status.st_mtime)
    return size, changed


def _remove(entry: Path) -> bool:
    """Remove a file or folder unless it is in use, and return whether it is gone."""
    target = entry.with_name(entry.name.partition(".part")[0])  # of a download
    with suppress(Timeout, OSError), exclusive(target, wait=False):  # a process that writes it holds its lock
        if entry.is_dir():
            if not any(map(is_in_use, entry.glob("*.bin"))):
                shutil.rmtree(entry)
        else:
            entry.unlink()
    return not entry.exists()
