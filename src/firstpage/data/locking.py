"""Locks between processes, for files that only one of them may write at a time."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path

from filelock import FileLock, Timeout
from rich.console import Console

from firstpage._text import escape

try:
    import fcntl
except ImportError:  # Windows, which removes no file that is open
    fcntl = None  # type: ignore[assignment]


@contextmanager
def exclusive(target: Path, message: str = "", *, wait: bool = True) -> Iterator[None]:
    """Hold the lock of a file or folder, waiting for any other process that holds it.

    The lock is a file `TARGET.lock` beside the target, which therefore can be renamed. The operating system
    releases it when this process dies, however it dies. The lock file is removed by whoever releases it; a
    killed process leaves it behind, and the next one that takes the lock removes it.

    Args:
        target: The file or folder to protect, in an existing folder.
        message: Printed to standard error if another process holds the lock.
        wait: Wait for the other process.

    Raises:
        Timeout: Another process holds the lock, and this one does not wait.
        OSError: The folder cannot be written, or its file system supports no locks.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with exclusive(Path(folder, "store")):
    ...         print(os.listdir(folder))
    ...     os.listdir(folder)
    ['store.lock']
    []
    """
    file = target.with_name(f"{target.name}.lock")
    posix = os.name == "posix"
    lock = FileLock(file, preserve_lock_file=posix)  # on Windows it can only remove its file itself
    try:
        lock.acquire(blocking=False)
    except Timeout:
        if not wait:
            raise
        if message:
            Console(stderr=True).print(escape(message), markup=False, highlight=False)
        lock.acquire()
    try:
        yield
    finally:
        if posix:
            # Before the release: a process that has opened the removed file notices, and opens a new one.
            with suppress(OSError):
                file.unlink()
        lock.release()


def open_in_use(path: Path) -> BufferedReader:
    """Open a file for reading, and let other processes know that it is in use until it is closed.

    A file that is mapped stays in use until it is no longer mapped.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     with open_in_use(Path(file.name)):
    ...         print(is_in_use(Path(file.name)))
    ...     is_in_use(Path(file.name))
    True
    False
    """
    file = open(path, "rb")  # noqa: SIM115
    if fcntl is not None:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_SH)
    return file


def is_in_use(path: Path) -> bool:
    """Return whether `open_in_use` holds a file open, in this process or another."""
    if fcntl is None or not path.exists():
        return False
    with open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
    return False
