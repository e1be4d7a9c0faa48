"""Building a pixel store: in parallel, resumable after `kill -9`, never half-written.

A store is a folder. While it is built it is called `building-PLAN`, where PLAN is a digest of the settings
and the relative paths, and holds

- `pixels.npy`, its space taken at the start, so that a full disk is known before an hour is spent;
- `journal`, one line for each finished chunk of rows with the size, time and fingerprint of every file in it,
  the folder they lie in and the version of Pillow that read them.
  The process that builds holds a lock on it, which the kernel lets go when the process dies, however it dies.

A finished store is renamed into place in one step. Its name ends in PLAN and in a digest of all fingerprints.
`store.json` names the folder its files lie in. Only there do size and time tell that a file is as it was:
what is extracted from an archive often has the same time. It also names the version of Pillow that last tried
what is unreadable: another one tries again, and for want of memory every one does.
"""

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import PIL
from numpy.lib import format as npy
from rich.console import Console

from firstpage import durable
from firstpage.data.catalog import Catalog
from firstpage.data.decode import NO_MEMORY, Box
from firstpage.data.framing import Framing, Row, decode_rows, file_state, fingerprints
from firstpage.data.progress import progress_bar
from firstpage.data.workers import Workers

VERSION = 1  # of the files below and of the pixels: a change of either makes every store anew
CHUNK = 64  # rows decoded by one task and recorded together
Task = tuple[Framing, str, list[str], list[Box] | None, str, int, bool]  # what `decode_rows` takes
FILES = np.dtype([("size", "i8"), ("mtime", "i8"), ("fingerprint", "S32")])


@dataclass(frozen=True)
class Builder:
    """Finds or makes the pixel store of a catalog.

    Args:
        catalog: the images.
        folder: where stores are kept.
        framing: how images become squares.
        workers: decoding processes; None for one per usable core, 0 for this process alone.
        progress: whether to show a progress bar.

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Image.new("RGB", (9, 9)).save(Path(folder, "a.png"))
    ...     catalog = Catalog("toy", Path(folder), ["a.png"], np.zeros(1, np.int64), ["a"], {})
    ...     path = Builder(catalog, Path(folder, "stores"), Framing(4), workers=0, progress=False).path()
    ...     sorted(file.name for file in path.iterdir())
    ['files.npy', 'pixels.npy', 'store.json']
    """

    catalog: Catalog
    folder: Path
    framing: Framing
    workers: int | None = None
    progress: bool = True

    def path(self) -> Path:
        """The folder of the finished store, made now if it is not there yet.

        Files whose folder, size and modification time are as remembered are not read again. A second process
        that asks for the same store waits for the first.

        Raises:
            OSError: the store cannot be written; one line, with the room it needs where room is what lacks.

        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile() as file:
        ...     catalog = Catalog("toy", Path(), ["a.png"], np.zeros(1, np.int64), ["a"], {})
        ...     Builder(catalog, Path(file.name), Framing()).path()
        Traceback (most recent call last):
        ...
        FileExistsError: [Errno 17] no pixel store can be written to ...: File exists; choose another folder
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            found = self._finished()
            while found is None:
                with self._claimed() as journal:
                    if journal is not None:
                        found = self._finished()
                        if found is None:
                            found = self._build(journal)
                        else:  # another process finished it between the first look and the lock
                            shutil.rmtree(self._building, ignore_errors=True)
            return found
        except OSError as error:
            remedy = "choose another folder"
            if error.errno in durable.FULL:
                size = len(self.catalog) * self._row_bytes
                remedy = f"make {size / 1e9:.1f} GB of room or {remedy}"
            text = f"no pixel store can be written to {str(self.folder)!r}: {error.strerror}; {remedy}"
            raise OSError(error.errno, text) from error

    @cached_property
    def _root(self) -> str:
        return os.fspath(self.catalog.root)

    @cached_property
    def _place(self) -> str:
        return os.path.realpath(self._root)

    @cached_property
    def _crops(self) -> np.ndarray | None:
        return self.framing.crops(self.catalog)

    @cached_property
    def _plan(self) -> str:
        digest = hashlib.blake2b(json.dumps([VERSION, asdict(self.framing)]).encode(), digest_size=8)
        digest.update(b"\0".join(map(os.fsencode, self.catalog.paths)))
        digest.update(b"" if self._crops is None else self._crops.tobytes())
        return digest.hexdigest()

    @property
    def _building(self) -> Path:
        return self.folder / f"building-{self._plan}"

    def _content(self, files: np.ndarray) -> str:
        digest = hashlib.blake2b(self._plan.encode(), digest_size=8)
        digest.update(files["fingerprint"].tobytes())
        return digest.hexdigest()

    def _finished(self) -> Path | None:
        """The finished store of the files as they are now."""
        stores = sorted(file.parent for file in self.folder.glob(f"*-{self._plan}-*/files.npy"))
        if not stores:
            return None
        files = self._files(stores)
        for store in stores:
            if store.name.endswith(self._content(files)):
                self._remember(store, files)
                return store
        return None

    def _files(self, stores: list[Path]) -> np.ndarray:
        """The files as they are now; reads only those that changed since a store of this place was built."""
        paths = self.catalog.paths
        files = np.array([(*file_state(os.path.join(self._root, path)), b"") for path in paths], FILES)
        for store in stores:
            if _about(store).get("root") == self._place:
                known = np.load(store / "files.npy")
                same = (known["size"] == files["size"]) & (known["mtime"] == files["mtime"])
                files["fingerprint"] = np.where(same, known["fingerprint"], files["fingerprint"])
        # What could not be read then is tried again: permissions show neither in the size nor in the time.
        (rows,) = np.nonzero(files["fingerprint"] == b"")
        parts = np.split(rows, range(CHUNK, len(rows), CHUNK))
        tasks = [(self._root, [paths[row] for row in part]) for part in parts]
        many = len(parts) > 1
        with (
            Workers(self.workers if many else 0) as workers,
            progress_bar("reading changed files", len(rows), self.progress and many) as advance,
        ):
            for index, found in workers.map(fingerprints, tasks):
                files["fingerprint"][parts[index]] = found
                advance(len(found))
        return files

    def _remember(self, store: Path, files: np.ndarray) -> None:
        """Note where the files of a store lie now, their sizes and times, and what can be read by now."""
        about = _about(store)
        known = about.get("root") == self._place and np.array_equal(np.load(store / "files.npy"), files)
        if known and not _to_retry(about):
            return
        # A courtesy to the next reader: the folder may be read-only.
        with suppress(OSError), open(store / "pixels.npy", "r+b") as pixels:
            fcntl.flock(pixels, fcntl.LOCK_EX)  # one process at a time writes here
            about = _about(store)
            self._retry(store, about["unreadable"], _to_retry(about), files)
            os.fsync(pixels.fileno())
            about |= {"root": self._place, "pillow": PIL.__version__}
            durable.write(store / "store.json", json.dumps(about, indent=1).encode())
            durable.write(store / "files.npy", lambda file: np.save(file, files))

    def _retry(self, store: Path, reasons: dict[str, str], rows: list[int], files: np.ndarray) -> None:
        """Decode some unreadable rows into a finished store, and bring their reasons up to date."""
        target = store / "pixels.npy"
        offset = target.stat().st_size - len(self.catalog) * self._row_bytes
        many = len(rows) > CHUNK
        with (
            Workers(self.workers if many else 0) as workers,
            progress_bar("trying unreadable files again", len(rows), self.progress and many) as advance,
        ):
            tasks = [self._task(target, offset, row, row + 1) for row in rows]
            for index, [(_, _, digest, reason)] in workers.map(decode_rows, tasks):
                row = rows[index]
                if reason:
                    reasons[str(row)] = reason
                elif digest.encode() == files["fingerprint"][row]:  # else it changed just now
                    del reasons[str(row)]
                advance(1)

    @property
    def _row_bytes(self) -> int:
        return self.framing.size**2 * 3

    def _task(self, target: Path, offset: int, first: int, end: int) -> Task:
        crops = None if self._crops is None else self._crops[first:end].tolist()
        paths = self.catalog.paths[first:end]
        return self.framing, self._root, paths, crops, str(target), offset + first * self._row_bytes, True

    @contextmanager
    def _claimed(self) -> Iterator[BinaryIO | None]:
        """The journal, locked; None if another process finished the store while this one waited."""
        with suppress(FileExistsError):  # mkdir(exist_ok=True) fails if the folder is renamed at that moment
            self._building.mkdir()
        try:
            journal = open(self._building / "journal", "a+b")  # noqa: SIM115 - closed below
        except FileNotFoundError:  # finished, and renamed just now
            yield None
            return
        with journal:
            try:
                fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if self.progress:
                    Console(stderr=True).print("another process builds the same pixel store: waiting for it")
                fcntl.flock(journal, fcntl.LOCK_EX)
            try:
                current = os.path.samestat(os.stat(self._building / "journal"), os.fstat(journal.fileno()))
            except FileNotFoundError:
                current = False
            yield journal if current else None

    def _build(self, journal: BinaryIO) -> Path:
        catalog, framing, target = self.catalog, self.framing, self._building / "pixels.npy"
        done = self._resume(journal)
        offset = _allocate(target, (len(catalog), framing.size, framing.size, 3), fresh=not done)
        starts = [first for first in range(0, len(catalog), CHUNK) if first not in done]
        tasks = [self._task(target, offset, first, first + CHUNK) for first in starts]
        with (
            open(target, "r+b") as pixels,
            Workers(self.workers if len(tasks) > 1 else 0) as workers,
            progress_bar(f"decoding {catalog.name}", len(catalog), self.progress) as advance,
        ):
            advance(sum(map(len, done.values())))
            for index, rows in workers.map(decode_rows, tasks):
                os.fsync(pixels.fileno())  # a line in the journal is a promise, power cut or not
                journal.write(self._line(starts[index], rows))
                journal.flush()
                done[starts[index]] = rows
                advance(len(rows))
        return self._publish([row for first in sorted(done) for row in done[first]])

    def _resume(self, journal: BinaryIO) -> dict[int, list[Row]]:
        """The chunks of an interrupted build whose files are as and where they were; only these are kept."""
        chunks: dict[int, list[Row]] = {}
        journal.seek(0)
        lines = journal.readlines() if (self._building / "pixels.npy").exists() else []
        with suppress(ValueError):  # the last line may be half-written
            for first, rows, *made in map(json.loads, lines):
                paths = self.catalog.paths[first : first + CHUNK]
                now = [file_state(os.path.join(self._root, path)) for path in paths]
                lacking = any(reason == NO_MEMORY for *_, reason in rows)
                if made == self._made and not lacking and now == [(size, mtime) for size, mtime, *_ in rows]:
                    chunks[first] = rows
        journal.truncate(0)
        journal.writelines(self._line(first, rows) for first, rows in chunks.items())
        journal.flush()
        return chunks

    @property
    def _made(self) -> list[str]:
        return [self._place, PIL.__version__]

    def _line(self, first: int, rows: list[Row]) -> bytes:
        return json.dumps([first, rows, *self._made]).encode() + b"\n"

    def _publish(self, rows: list[Row]) -> Path:
        files = np.array([(size, mtime, digest.encode()) for size, mtime, digest, _ in rows], FILES)
        about = {
            "version": VERSION,
            "name": self.catalog.name,
            "root": self._place,
            "framing": asdict(self.framing),
            "pillow": PIL.__version__,
            "unreadable": {index: reason for index, (*_, reason) in enumerate(rows) if reason},
        }
        durable.write(self._building / "files.npy", lambda file: np.save(file, files))
        durable.write(self._building / "store.json", json.dumps(about, indent=1).encode())
        name = re.sub(r"[^\w.-]+", "_", self.catalog.name)[:64]
        store = self.folder / "-".join(
            [name, str(self.framing.size), self.framing.resize, self._plan, self._content(files)]
        )
        try:
            os.rename(self._building, store)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            # The files changed under this build, to what had been built before.
            shutil.rmtree(self._building, ignore_errors=True)
        else:
            os.unlink(store / "journal")
        return store


def _about(store: Path) -> dict[str, Any]:
    about: dict[str, Any] = json.loads((store / "store.json").read_bytes())
    return about


def _to_retry(about: dict[str, Any]) -> list[int]:
    """The unreadable rows of a store that may be readable by now."""
    other = about["pillow"] != PIL.__version__
    return [int(row) for row, reason in about["unreadable"].items() if other or reason == NO_MEMORY]


def _allocate(path: Path, shape: tuple[int, ...], fresh: bool) -> int:
    """Take the space of a .npy file at once; returns where its data begins."""
    try:
        with open(path, "w+b" if fresh else "r+b") as file:
            npy.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
            offset = file.tell()
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, offset + int(np.prod(shape)))
            file.truncate(offset + int(np.prod(shape)))
            return offset
    except OSError:
        if fresh:
            shutil.rmtree(path.parent)
        raise
