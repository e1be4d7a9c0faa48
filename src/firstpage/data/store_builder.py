"""Building a pixel store: in parallel, resumable after `kill -9`, never half-written.

While a store is built its folder is called `building-PLAN`, where PLAN is a digest of the settings and the
relative paths, and contains

- `pixels.bin`; of a raw store, allocated in full at the start, so that a full disk shows before an hour is
  spent. Workers write raw pixels to their places; JPEGs are appended in the order in which they finish;
- `journal`, one line per finished chunk of images: where its pixels begin, a record of every file in it, the
  folder of the files and the version of Pillow that decoded them.

The process that builds holds a lock, the file `building-PLAN.lock` beside the folder. A finished store is
renamed into place in one step; see `store_index` for its contents. Its name ends in PLAN and a digest of all
fingerprints. A process that updates a finished store holds a lock beside it, too.
"""

import errno
import hashlib
import json
import os
import re
import shutil
import warnings
import zlib
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

import numpy as np
import PIL

from firstpage import durable
from firstpage._text import format_size
from firstpage.data.catalog import Catalog
from firstpage.data.decode import NO_MEMORY, Box
from firstpage.data.framing import FileRecord, Framing, decode_rows, file_state, fingerprint_files
from firstpage.data.locking import exclusive
from firstpage.data.progress import progress_bar
from firstpage.data.store_index import (
    FILES,
    PIXELS,
    RECORDS,
    VERSION,
    About,
    Index,
    damaged_rows,
    describe_damage,
    read_index,
    write_index,
    wrong_rows,
)
from firstpage.data.workers import Workers
from firstpage.errors import UserError

STORED = ("checksum", "height", "width", "offset", "length")  # entries of `FILES` about what is stored
CHUNK = 64  # images decoded by one task and recorded together
JPEG_BYTES = 20_000  # of an image of 256 pixels, about
Task = tuple[Framing, str, list[str], list[Box] | None, str | None, int, bool]  # arguments of `decode_rows`


class Chunk(NamedTuple):
    """A chunk of decoded images.

    Attributes:
        base: Where its pixels begin in `pixels.bin`.
        records: Of its files.
    """

    base: int
    records: list[FileRecord]

    def files(self) -> np.ndarray:
        """Return the entries of its files in the index."""
        offset, entries = self.base, []
        for bytes, mtime, fingerprint, checksum, height, width, length, _ in self.records:
            entries.append((bytes, mtime, fingerprint.encode(), checksum, height, width, offset, length))
            offset += length
        return np.array(entries, FILES)


@dataclass(frozen=True)
class Builder:
    """Finds or builds the pixel store of a catalog.

    Args:
        catalog: The images.
        folder: The folder of all stores.
        framing: How images are scaled.
        workers: Number of decoding processes. 0 decodes in this process. Defaults to one per usable core.
        progress: Show a progress bar.
        kind: `raw` stores pixels, `jpeg` stores JPEGs of them.

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Image.new("RGB", (9, 9)).save(Path(folder, "a.png"))
    ...     catalog = Catalog("toy", Path(folder), ["a.png"], np.zeros(1, np.int64), ["a"], {})
    ...     builder = Builder(catalog, Path(folder, "stores"), Framing(4), workers=0, progress=False)
    ...     sorted(file.name for file in builder.find_or_build().iterdir())
    ['files.bin', 'pixels.bin', 'store.json']
    """

    catalog: Catalog
    folder: Path
    framing: Framing
    workers: int | None = None
    progress: bool = True
    kind: Literal["raw", "jpeg"] = "raw"

    def find_or_build(self) -> Path:
        """Return the folder of the finished store, which is built if necessary.

        Files whose folder, size and modification time are as recorded are not read again. If another process
        is building the same store, this one waits for it. What is damaged is built again, with a warning.

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
                    store = self._find_finished(tell=True) or self._build()
            return store
        except OSError as error:
            remedy = "choose another folder"
            if error.errno in durable.FULL:
                size = len(self.catalog) * (self.framing.row_bytes if self.kind == "raw" else JPEG_BYTES)
                remedy = f"free {format_size(size)} or {remedy}"
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
        digest = hashlib.blake2b(
            json.dumps([VERSION, self.kind, asdict(self.framing)]).encode(), digest_size=8
        )
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

    def _find_finished(self, tell: bool = False) -> Path | None:
        """Return the finished store of the files in their present state, if there is one."""
        stores = [store for store in sorted(self.folder.glob(f"*-{self._plan}-*")) if store.is_dir()]
        indices = {store: index for store in stores if (index := self._read_index(store, tell))}
        if not indices:
            return None
        files = self._current_files(list(indices.values()))
        for store, index in indices.items():
            if store.name.endswith(self._content_digest(files)):
                return store if self._update(store, index, files) else None
        return None

    def _read_index(self, store: Path, tell: bool) -> Index | None:
        """Return the index of a store, or None if it is damaged, with a warning if `tell`."""
        try:
            index = read_index(store)
            if not store.name.endswith(self._content_digest(index.files)):
                raise UserError(f"{store}: the pixel store is damaged ({RECORDS} is not its own)")
        except (UserError, FileNotFoundError) as error:
            # Nothing of it is lost by building it again: `_publish` replaces it.
            if tell:
                warnings.warn(f"{error}; building it again", stacklevel=2)
            return None
        return index

    def _current_files(self, indices: list[Index]) -> np.ndarray:
        """Return the present state of all files; only those that changed since the last build are read."""
        root, paths = os.fspath(self.catalog.root), self.catalog.paths
        files = np.zeros(len(paths), FILES)
        states = np.array([file_state(os.path.join(root, path)) for path in paths], np.int64).reshape(-1, 2)
        files["bytes"], files["mtime"] = states.T
        for about, recorded in indices:
            if about.root == self._real_root:
                same = (recorded["bytes"] == files["bytes"]) & (recorded["mtime"] == files["mtime"])
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

    def _update(self, store: Path, index: Index, files: np.ndarray) -> bool:
        """Mend a store, and record where its files are, their sizes and times, and which can be read by now.

        Returns:
            Whether the store can be used. If not, it could not be mended: it cannot be written, or a file has
            just changed.
        """
        damaged = damaged_rows(store, index, self.progress)
        for name in STORED:
            files[name] = index.files[name]
        current = index.about.root == self._real_root and np.array_equal(index.files, files)
        if current and not damaged and not index.about.rows_to_retry:
            return True
        if damaged:
            warnings.warn(f"{describe_damage(store, damaged, index)}; decoding them again", stacklevel=2)
        # Unless it is damaged, this only saves work the next time, so that a read-only folder is no error.
        with suppress(OSError), exclusive(store), open(store / PIXELS, "r+b", opener=_make) as pixels:
            about, recorded = index = read_index(store)
            for name in STORED:
                files[name] = recorded[name]
            if self.kind == "raw":
                pixels.truncate(len(self.catalog) * self.framing.row_bytes)
            # Another process may have mended it while this one waited for the lock.
            rows = sorted({*(damaged_rows(store, index) if damaged else []), *about.rows_to_retry})
            reasons = dict(about.unreadable)
            whole = self._decode_again(pixels, reasons, rows, files)
            os.fsync(pixels.fileno())
            about = replace(about, root=self._real_root, pillow=PIL.__version__, unreadable=reasons)
            write_index(store, Index(about, files))
            return whole
        return not damaged

    def _decode_again(
        self, pixels: BinaryIO, reasons: dict[str, str], rows: list[int], files: np.ndarray
    ) -> bool:
        """Decode rows of a finished store again, and update their reasons and what is stored of them.

        Returns:
            Whether all their files are still the same.
        """
        many, whole = len(rows) > CHUNK, True
        with (
            Workers(self.workers if many else 0) as workers,
            progress_bar("decoding again", len(rows), self.progress and many) as advance,
        ):
            tasks = [self._task(Path(pixels.name), row, row + 1) for row in rows]
            for index, (records, content) in workers.map(decode_rows, tasks):
                row, record = rows[index], records[0]
                entry = self._stored(pixels, row, records, content).files()[0]
                if entry["fingerprint"] == files["fingerprint"][row]:
                    for name in STORED:
                        files[name][row] = entry[name]
                    reasons.pop(str(row), None)
                    reasons |= {str(row): record.reason} if record.reason else {}
                else:  # it has just changed; the checksum tells that these are not its pixels
                    whole = False
                advance(1)
        return whole

    def _task(self, target: Path, first: int, end: int) -> Task:
        crops = None if self._crops is None else self._crops[first:end].tolist()
        root, paths = os.fspath(self.catalog.root), self.catalog.paths[first:end]
        if self.kind == "jpeg":
            return self.framing, root, paths, crops, None, 0, True
        return self.framing, root, paths, crops, str(target), first * self.framing.row_bytes, True

    def _stored(self, pixels: BinaryIO, first: int, records: list[FileRecord], content: bytes) -> Chunk:
        """Append the JPEGs of a chunk; raw pixels have been written already. Both are on the disk then."""
        base = first * self.framing.row_bytes if self.kind == "raw" else pixels.seek(0, os.SEEK_END)
        pixels.write(content)
        pixels.flush()
        return Chunk(base, records)

    def _build(self) -> Path:
        catalog, target = self.catalog, self._building / PIXELS
        self._building.mkdir(exist_ok=True)
        done = self._resume()
        if self.kind == "raw":
            _allocate(target, len(catalog) * self.framing.row_bytes, fresh=not done)
        starts = [first for first in range(0, len(catalog), CHUNK) if first not in done]
        tasks = [self._task(target, first, first + CHUNK) for first in starts]
        with (
            open(target, "r+b", opener=_make) as pixels,
            open(self._building / "journal", "ab") as journal,
            Workers(self.workers if len(tasks) > 1 else 0) as workers,
            progress_bar(f"decoding {catalog.name}", len(catalog), self.progress) as advance,
        ):
            advance(sum(len(chunk.records) for chunk in done.values()))
            for index, (records, content) in workers.map(decode_rows, tasks):
                first = starts[index]
                chunk = done[first] = self._stored(pixels, first, records, content)
                os.fsync(pixels.fileno())  # a line in the journal must hold even after a power cut
                journal.write(self._journal_line(first, chunk))
                journal.flush()
                advance(len(records))
        return self._publish([done[first] for first in sorted(done)])

    def _resume(self) -> dict[int, Chunk]:
        """Return the chunks of an interrupted build that are still valid, and drop the others."""
        chunks: dict[int, Chunk] = {}
        journal = self._building / "journal"
        complete = journal.exists() and (self._building / PIXELS).exists()
        for line in journal.read_bytes().splitlines() if complete else []:
            checksum, _, content = line.partition(b" ")
            if checksum != b"%08x" % zlib.crc32(content):  # half-written, or damaged
                continue
            first, base, recorded, *origin = json.loads(content)
            chunk = Chunk(base, [FileRecord(*record) for record in recorded])
            paths = self.catalog.paths[first : first + CHUNK]
            states = [file_state(os.path.join(self.catalog.root, path)) for path in paths]
            unchanged = states == [(record.bytes, record.mtime) for record in chunk.records]
            retry = any(record.reason == NO_MEMORY for record in chunk.records)
            ours = origin == [self._real_root, PIL.__version__]
            if ours and unchanged and not retry and not wrong_rows(self._building / PIXELS, chunk.files()):
                chunks[first] = chunk
        # Before any pixels are overwritten: the journal must never promise more than they hold.
        journal.write_bytes(b"".join(self._journal_line(*item) for item in chunks.items()))
        return chunks

    def _journal_line(self, first: int, chunk: Chunk) -> bytes:
        content = json.dumps([first, *chunk, self._real_root, PIL.__version__]).encode()
        return b"%08x %s\n" % (zlib.crc32(content), content)

    def _publish(self, chunks: list[Chunk]) -> Path:
        """Complete the folder of a build and rename it into place."""
        files = np.concatenate([chunk.files() for chunk in chunks])
        records = [record for chunk in chunks for record in chunk.records]
        about = About(
            version=VERSION,
            name=self.catalog.name,
            root=self._real_root,
            images=len(records),
            framing=self.framing,
            kind=self.kind,
            pillow=PIL.__version__,
            unreadable={str(row): record.reason for row, record in enumerate(records) if record.reason},
        )
        write_index(self._building, Index(about, files))
        name = re.sub(r"[^\w.-]+", "_", self.catalog.name)[:64]
        size = "x".join(str(side) for side in dict.fromkeys(self.framing.least))
        parts = name, size, self.framing.resize, self._plan, self._content_digest(files)
        store = self.folder / "-".join(parts)
        try:
            os.rename(self._building, store)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            # It is damaged, or the files changed during this build, to a state that had been built before.
            old = self.folder / f"building-{self._plan}.old"
            shutil.rmtree(old, ignore_errors=True)  # of a killed process
            os.rename(store, old)
            os.rename(self._building, store)
            shutil.rmtree(old, ignore_errors=True)
        os.unlink(store / "journal")
        return store


def _make(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CREAT, 0o666)


def _allocate(path: Path, size: int, fresh: bool) -> None:
    """Allocate the space of a file."""
    try:
        with open(path, "w+b" if fresh else "r+b") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            file.truncate(size)
    except OSError:
        if fresh:
            shutil.rmtree(path.parent)
        raise
