"""Locks between processes, for files that only one of them may write at a time."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout
from rich.console import Console

from firstpage._text import escape


@contextmanager
def exclusive(target: Path, message: str = "") -> Iterator[None]:
    """Hold the lock of a file or folder, waiting for any other process that holds it.

    The lock is a file `TARGET.lock` beside the target, which therefore can be renamed. The operating system
    releases it when this process dies, however it dies. The lock file is removed by whoever releases it; a
    killed process leaves it behind, and the next one that takes the lock removes it.

    Args:
        target: The file or folder to protect, in an existing folder.
        message: Printed to standard error if another process holds the lock.

    Raises:
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
