"""Files that are there whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import errno
import os
from pathlib import Path

__all__ = ["FULL", "write"]

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # a disk, a quota or a limit has no room left


def write(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file whole: beside its place, out to the disk, then renamed into it.

    A process that dies leaves the file that was there before, and perhaps a `.part` beside it. Any other
    failure removes that too.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(Path(folder, "note"), b"whole")
    ...     [(path.name, path.read_bytes()) for path in Path(folder).iterdir()]
    [('note', b'whole')]
    """
    target = Path(path)
    part = target.with_name(f"{target.name}.part")
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, target)
    except BaseException as error:
        part.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = os.fspath(path)  # a failed write does not say of which file
        raise
    # The name is on the disk only when its folder is: a power cut must not bring the old file back.
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
