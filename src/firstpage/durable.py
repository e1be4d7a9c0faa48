"""Files that are there whole or not at all, whatever happens while they are written."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from firstpage.errors import UserError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # a disk, a quota or a limit has no room left


def check(path: str | os.PathLike[str]) -> Path:
    """Refuse a path that no file can be written to, before minutes are spent on what shall be in it.

    Raises:
        UserError: it is a folder, or one of its parents is a file.

    >>> check(".")
    Traceback (most recent call last):
    firstpage.errors.UserError: .: is a folder: name a file in it
    """
    target = Path(path)
    if target.is_dir():
        raise UserError(f"{path}: is a folder: name a file in it")
    there = next(parent for parent in target.absolute().parents if parent.exists())
    if not there.is_dir():
        raise UserError(f"{path}: {there} is a file, not a folder: choose another path")
    if not os.access(there, os.W_OK):
        raise UserError(f"{path}: nothing can be written in {there}: choose another path")
    return target


def write(path: str | os.PathLike[str], data: bytes | Callable[[BinaryIO], object]) -> None:
    """Write a file whole: beside its place, out to the disk, then renamed into it.

    A process that dies leaves the file that was there before, and perhaps a `.part` beside it. Any other
    failure removes that too. A link stays one, and what is no file (a pipe, a device) is written to.

    Args:
        path: the file, in a folder that is there.
        data: what shall be in it, or what writes it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(Path(folder, "note"), b"whole")
    ...     [(path.name, path.read_bytes()) for path in Path(folder).iterdir()]
    [('note', b'whole')]
    """
    target = Path(path)
    if target.exists() and not target.is_file():
        with target.open("wb") as file:
            _fill(file, data)
        return
    target = target.resolve()
    part = target.with_name(f"{target.name}.part")
    try:
        with part.open("wb") as file:
            _fill(file, data)
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


def _fill(file: BinaryIO, data: bytes | Callable[[BinaryIO], object]) -> None:
    if isinstance(data, bytes):
        file.write(data)
    else:
        data(file)
