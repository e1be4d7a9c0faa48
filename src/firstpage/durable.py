"""Files that are there whole or not at all, whatever happens while they are written."""

import errno
import os
import platform
import secrets
import stat
import tempfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from firstpage.errors import UserError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # a disk, a quota or a limit has no room left
_PATIENCE = 3600.0  # seconds without a write after which a part is taken for a dead writer's, without a lock


def check(path: str | os.PathLike[str]) -> Path:
    """Refuse a path that no file can be written to, before minutes are spent on what shall be in it.

    Raises:
        UserError: It is a folder, one of its parents is a file, or its folder cannot be written.

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
    try:  # what os.access says does not hold for root, and for some network file systems
        with tempfile.TemporaryFile(dir=there):
            return target
    except OSError:
        raise UserError(f"{path}: nothing can be written in {there}: choose another path") from None


def open_regular(path: str | os.PathLike[str], most: int) -> BufferedReader:
    """Open a file for reading, if it is a regular file: a FIFO or a device may never end.

    Args:
        path: The file, or a link to it.
        most: Its largest size in bytes.

    Raises:
        FileNotFoundError: There is no such file.
        UserError: It is not a regular file, or larger.

    >>> open_regular(".", 1000)
    Traceback (most recent call last):
    firstpage.errors.UserError: .: is a folder, a pipe or a device, not a regular file
    """
    file = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # a FIFO would wait for its other end
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise UserError(f"{os.fspath(path)}: is a folder, a pipe or a device, not a regular file")
        if status.st_size > most:
            raise UserError(f"{os.fspath(path)}: has {status.st_size:,} bytes, more than {most:,}")
    except BaseException:
        os.close(file)
        raise
    return os.fdopen(file, "rb")


def write(path: str | os.PathLike[str], data: bytes | Callable[[BinaryIO], object]) -> None:
    """Write a file whole: beside its place, out to the disk, then renamed into it.

    Any number of threads, processes and machines may write the same file: each writes a part of its own,
    `.NAME.….part`, and the last one to finish wins. A process that dies leaves the file that was there
    before, and its part, which the next write of the file removes. Any other failure removes the part at
    once. A link stays one, and what is no file (a pipe, a device) is written to.

    Args:
        path: The file, in an existing folder.
        data: Its content, or a function that writes it into the file that it is given.

    Raises:
        OSError: The file cannot be written; it is as it was before.

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
    target = Path(os.path.realpath(target))
    try:
        _write_part(target, data)
    except OSError as error:
        error.filename = os.fspath(path)  # a failed write does not say of which file
        raise
    # The name is on the disk only when its folder is: a power cut must not bring the old file back.
    if fcntl is not None:  # Windows opens no folders
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _write_part(target: Path, data: bytes | Callable[[BinaryIO], object]) -> None:
    """Write a part and rename it to `target`, with its lock held: nobody takes it for a leftover."""
    # A name has 255 bytes at most. Not every file system shows a lock to other machines: the name does.
    prefix = f".{target.name[:50]}."
    own = f"{prefix}{zlib.crc32(platform.node().encode()):08x}."
    while True:
        part = target.with_name(f"{own}{secrets.token_hex(4)}.part")
        with part.open("xb") as file:
            try:
                _lock(file.fileno(), wait=True)
                if not part.exists():  # another writer took it for a leftover before it was locked
                    continue
                _remove_leftovers(part, prefix, own, os.fstat(file.fileno()).st_mtime)
                _fill(file, data)
                file.flush()
                os.fsync(file.fileno())
                if fcntl is None:  # Windows renames no open file
                    file.close()
                os.replace(part, target)
            except BaseException:
                part.unlink(missing_ok=True)
                raise
            return


def _remove_leftovers(part: Path, prefix: str, own: str, now: float) -> None:
    """Remove the parts that killed processes left, but none that is being written.

    Args:
        part: The part of this writer.
        prefix: How the names of all parts of the file begin.
        own: How the names of those of this machine begin.
        now: The time by the clock of the file system.
    """
    for name in os.listdir(part.parent):
        if not (name.startswith(prefix) and name.endswith(".part")) or name == part.name:
            continue
        # An error: it is being written, or its writer has just finished.
        with suppress(OSError), part.with_name(name).open("r+b") as file:
            locks = _lock(file.fileno(), wait=False)
            if (locks and name.startswith(own)) or now - os.fstat(file.fileno()).st_mtime > _PATIENCE:
                part.with_name(name).unlink()


def _lock(file: int, *, wait: bool) -> bool:
    """Lock an open file and return whether the file system has locks.

    Raises:
        BlockingIOError: Someone else holds the lock, and this one does not wait.
    """
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return False
    return fcntl is not None


def _fill(file: BinaryIO, data: bytes | Callable[[BinaryIO], object]) -> None:
    if isinstance(data, bytes):
        file.write(data)
    else:
        data(file)
