"""Building a pixel store: in parallel, resumable after `kill -9`, never half-written.

A store is a folder. While it is built it is called `building-PLAN`, where PLAN is a digest of the settings
and the relative paths, and contains

- `pixels.npy`, allocated in full at the start, so that a full disk shows before an hour is spent;
- `journal`, one line per finished chunk of rows: the size, modification time and fingerprint of every file in
  it, the folder of the files and the version of Pillow that decoded them.

The process that builds holds a lock, the file `building-PLAN.lock` beside the folder. A finished store is
renamed into place in one step. Its name ends in PLAN and a digest of all fingerprints.

`store.json` records the folder of the files. Only for files in that folder do size and time show that nothing
changed: files extracted from different archives often have the same time. It also records the version of
Pillow that last tried the unreadable files: another version tries them again, and files that failed for lack
of memory are always tried again. A process that updates a finished store holds a lock beside it, too.
"""

import errno
import hashlib
import json
import os
import re
import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import PIL
from numpy.lib import format as npy

from firstpage import durable
from firstpage.data.catalog import Catalog
from firstpage.data.decode import NO_MEMORY, Box
from firstpage.data.framing import FileRecord, Framing, decode_rows, file_state, fingerprint_files
from firstpage.data.locking import exclusive
from firstpage.data.progress import progress_bar
from firstpage.data.workers import Workers

VERSION = 1  # of the files above and of the pixels: a change of either rebuilds every store
CHUNK = 64  # rows decoded by one task and recorded together
Task = tuple[Framing, str, list[str], list[Box] | None, str, int, bool]  # the arguments of `decode_rows`
FILES = np.dtype([("size", "i8"), ("mtime", "i8"), ("fingerprint", "S32")])


@dataclass(frozen=True)
class Builder:
    """Finds or builds the pixel store of a catalog.

    Args:
        catalog: The images.
        folder: The folder of all stores.
        framing: How images become squares.
        workers: Number of decoding processes. 0 decodes in this process. Defaults to one per usable core.
        progress: Show a progress bar.

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Image.new("RGB", (9, 9)).save(Path(folder, "a.png"))
    ...     catalog = Catalog("toy", Path(folder), ["a.png"], np.zeros(1, np.int64), ["a"], {})
    ...     builder = Builder(catalog, Path(folder, "stores"), Framing(4), workers=0, progress=False)
    ...     sorted(file.name for file in builder.find_or_build().iterdir())
    ['files.npy', 'pixels.npy', 'store.json']
    """

    catalog: Catalog
    folder: Path
    framing: Framing
    workers: int | None = None
    progress: bool = True

    def find_or_build(self) -> Path:
        """Return the folder of the finished store, which is built if necessary.

        Files whose folder, size and modification time are as recorded are not read again. If another process
        is building the same store, this one waits for it.

        Raises:
            OSError: The store cannot be written. The message states the space it needs if the disk is full.
        """
        waiting = "another process is building the same pixel store; waiting for it" if self.progress else ""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            store = self._find_finished()
            if store is None:
                with exclusive(self._building, waiting):
                    # Another process may have finished it before this one got the lock.
                    store = self._find_finished() or self._build()
            return store
        except OSError as error:
            remedy = "choose another folder"
            if error.errno in durable.FULL:
                size = len(self.catalog) * self._row_bytes
                remedy = f"free {size / 1e9:.1f} GB or {remedy}"
            text = f"cannot write a pixel store to {str(self.folder)!r}: {error.strerror}; {remedy}"
            raise OSError(error.errno, text) from error

    @cached_property
    def _real_root(self) -> str:
        return os.path.realpath(self.catalog.root)

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

    def _content_digest(self, files: np.ndarray) -> str:
        digest = hashlib.blake2b(self._plan.encode(), digest_size=8)
        digest.update(files["fingerprint"].tobytes())
        return digest.hexdigest()

    def _find_finished(self) -> Path | None:
        """Return the finished store of the files in their present state, if there is one."""
        stores = sorted(file.parent for file in self.folder.glob(f"*-{self._plan}-*/files.npy"))
        if not stores:
            return None
        files = self._current_files(stores)
        for store in stores:
            if store.name.endswith(self._content_digest(files)):
                self._update(store, files)
                return store
        return None

    def _current_files(self, stores: list[Path]) -> np.ndarray:
        """Return the present state of all files; only those that changed since the last build are read."""
        root, paths = os.fspath(self.catalog.root), self.catalog.paths
        files = np.array([(*file_state(os.path.join(root, path)), b"") for path in paths], FILES)
        for store in stores:
            if _read_metadata(store).get("root") == self._real_root:
                recorded = np.load(store / "files.npy")
                same = (recorded["size"] == files["size"]) & (recorded["mtime"] == files["mtime"])
                files["fingerprint"] = np.where(same, recorded["fingerprint"], files["fingerprint"])
        # Files that could not be read are tried again: a change of permissions changes neither size nor time.
        (rows,) = np.nonzero(files["fingerprint"] == b"")
        parts = np.split(rows, range(CHUNK, len(rows), CHUNK))
        tasks = [(root, [paths[row] for row in part]) for part in parts]
        many = len(parts) > 1
        with (
            Workers(self.workers if many else 0) as workers,
            progress_bar("reading changed files", len(rows), self.progress and many) as advance,
        ):
            for index, digests in workers.map(fingerprint_files, tasks):
                files["fingerprint"][parts[index]] = digests
                advance(len(digests))
        return files

    def _update(self, store: Path, files: np.ndarray) -> None:
        """Record where the files of a store are now, their sizes and times, and which can be read by now."""
        about = _read_metadata(store)
        current = about.get("root") == self._real_root and np.array_equal(np.load(store / "files.npy"), files)
        if current and not _rows_to_retry(about):
            return
        # This only saves work the next time, so that a read-only folder is no error.
        with suppress(OSError), exclusive(store), open(store / "pixels.npy", "r+b") as pixels:
            about = _read_metadata(store)
            self._retry(store, about["unreadable"], _rows_to_retry(about), files)
            os.fsync(pixels.fileno())
            about |= {"root": self._real_root, "pillow": PIL.__version__}
            durable.write(store / "store.json", json.dumps(about, indent=1).encode())
            durable.write(store / "files.npy", lambda file: np.save(file, files))

    def _retry(self, store: Path, reasons: dict[str, str], rows: list[int], files: np.ndarray) -> None:
        """Decode unreadable rows of a finished store again, and update their reasons."""
        target = store / "pixels.npy"
        offset = target.stat().st_size - len(self.catalog) * self._row_bytes
        many = len(rows) > CHUNK
        with (
            Workers(self.workers if many else 0) as workers,
            progress_bar("retrying unreadable files", len(rows), self.progress and many) as advance,
        ):
            tasks = [self._task(target, offset, row, row + 1) for row in rows]
            for index, [(_, _, digest, reason)] in workers.map(decode_rows, tasks):
                row = rows[index]
                if reason:
                    reasons[str(row)] = reason
                elif digest.encode() == files["fingerprint"][row]:  # otherwise the file has just changed
                    del reasons[str(row)]
                advance(1)

    @property
    def _row_bytes(self) -> int:
        return self.framing.size**2 * 3

    def _task(self, target: Path, offset: int, first: int, end: int) -> Task:
        crops = None if self._crops is None else self._crops[first:end].tolist()
        root, paths = os.fspath(self.catalog.root), self.catalog.paths[first:end]
        return self.framing, root, paths, crops, str(target), offset + first * self._row_bytes, True

    def _build(self) -> Path:
        catalog, framing, target = self.catalog, self.framing, self._building / "pixels.npy"
        self._building.mkdir(exist_ok=True)
        done = self._resume()
        offset = _allocate(target, (len(catalog), framing.size, framing.size, 3), fresh=not done)
        starts = [first for first in range(0, len(catalog), CHUNK) if first not in done]
        tasks = [self._task(target, offset, first, first + CHUNK) for first in starts]
        with (
            open(target, "r+b") as pixels,
            open(self._building / "journal", "ab") as journal,
            Workers(self.workers if len(tasks) > 1 else 0) as workers,
            progress_bar(f"decoding {catalog.name}", len(catalog), self.progress) as advance,
        ):
            advance(sum(map(len, done.values())))
            for index, records in workers.map(decode_rows, tasks):
                os.fsync(pixels.fileno())  # a line in the journal must hold even after a power cut
                journal.write(self._journal_line(starts[index], records))
                journal.flush()
                done[starts[index]] = records
                advance(len(records))
        return self._publish([record for first in sorted(done) for record in done[first]])

    def _resume(self) -> dict[int, list[FileRecord]]:
        """Return the chunks of an interrupted build that are still valid, and drop the others."""
        chunks: dict[int, list[FileRecord]] = {}
        journal = self._building / "journal"
        complete = journal.exists() and (self._building / "pixels.npy").exists()
        lines = journal.read_bytes().splitlines() if complete else []
        with suppress(ValueError):  # the last line may be half-written
            for first, records, *origin in map(json.loads, lines):
                paths = self.catalog.paths[first : first + CHUNK]
                states = [file_state(os.path.join(self.catalog.root, path)) for path in paths]
                unchanged = states == [(size, mtime) for size, mtime, *_ in records]
                retry = any(reason == NO_MEMORY for *_, reason in records)
                if origin == [self._real_root, PIL.__version__] and unchanged and not retry:
                    chunks[first] = records
        # Before any pixels are overwritten: the journal must never promise more than they hold.
        journal.write_bytes(b"".join(self._journal_line(*chunk) for chunk in chunks.items()))
        return chunks

    def _journal_line(self, first: int, records: list[FileRecord]) -> bytes:
        return json.dumps([first, records, self._real_root, PIL.__version__]).encode() + b"\n"

    def _publish(self, records: list[FileRecord]) -> Path:
        """Complete the folder of a build and rename it into place."""
        files = np.array([(size, mtime, digest.encode()) for size, mtime, digest, _ in records], FILES)
        about = {
            "version": VERSION,
            "name": self.catalog.name,
            "root": self._real_root,
            "framing": asdict(self.framing),
            "pillow": PIL.__version__,
            "unreadable": {row: reason for row, (*_, reason) in enumerate(records) if reason},
        }
        durable.write(self._building / "files.npy", lambda file: np.save(file, files))
        durable.write(self._building / "store.json", json.dumps(about, indent=1).encode())
        name = re.sub(r"[^\w.-]+", "_", self.catalog.name)[:64]
        parts = name, str(self.framing.size), self.framing.resize, self._plan, self._content_digest(files)
        store = self.folder / "-".join(parts)
        try:
            os.rename(self._building, store)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            # The files changed during this build, to a state that had been built before.
            shutil.rmtree(self._building, ignore_errors=True)
        else:
            os.unlink(store / "journal")
        return store


def _read_metadata(store: Path) -> dict[str, Any]:
    about: dict[str, Any] = json.loads((store / "store.json").read_bytes())
    return about


def _rows_to_retry(about: dict[str, Any]) -> list[int]:
    """Return the unreadable rows of a store that may be readable by now."""
    another_pillow = about["pillow"] != PIL.__version__
    return [int(row) for row, reason in about["unreadable"].items() if another_pillow or reason == NO_MEMORY]


def _allocate(path: Path, shape: tuple[int, ...], fresh: bool) -> int:
    """Allocate the space of a .npy file, and return the offset of its data."""
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
