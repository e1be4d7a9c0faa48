"""Building a pixel store: in parallel, resumable after `kill -9`, never half-written.

A store is a folder. While it is built it is called `building-PLAN`, where PLAN is a digest of the settings
and the relative paths, and contains

- `pixels.bin`, the rows one after another and nothing else, allocated in full at the start, so that a full
  disk shows before an hour is spent;
- `journal`, one line per finished chunk of rows: the size, modification time and fingerprint of every file in
  it, the checksum of its pixels, the folder of the files and the version of Pillow that decoded them.

The process that builds holds a lock, the file `building-PLAN.lock` beside the folder. A finished store is
renamed into place in one step. Its name ends in PLAN and a digest of all fingerprints. Instead of the journal
it contains `files.bin`, a record of `FILES` for each row, and `store.json`.

`store.json` records the folder of the files. Only for files in that folder do size and time show that nothing
changed: files extracted from different archives often have the same time. It also records the version of
Pillow that last tried the unreadable files: another version tries them again, and files that failed for lack
of memory are always tried again. A process that updates a finished store holds a lock beside it, too.

No byte is trusted. Rows whose pixels do not have their checksum are decoded again. `store.json` contains its
own checksum, and the name of the folder is that of the fingerprints in `files.bin`: if these do not agree,
the store is built again. A wrong size, time or checksum in `files.bin` only costs reading a file again.
"""

import errno
import hashlib
import json
import os
import re
import shutil
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import PIL

from firstpage import durable
from firstpage._text import format_size
from firstpage.data.catalog import Catalog
from firstpage.data.decode import NO_MEMORY, Box, open_regular
from firstpage.data.framing import FileRecord, Framing, decode_rows, file_state, fingerprint_files
from firstpage.data.locking import exclusive
from firstpage.data.progress import progress_bar
from firstpage.data.workers import Workers, usable_cores
from firstpage.errors import UserError

VERSION = 2  # of the files above and of the pixels: a change of either rebuilds every store
CHUNK = 64  # rows decoded by one task and recorded together
PIXELS, RECORDS, METADATA = "pixels.bin", "files.bin", "store.json"
Task = tuple[Framing, str, list[str], list[Box] | None, str, int, bool]  # the arguments of `decode_rows`
FILES = np.dtype([("size", "<i8"), ("mtime", "<i8"), ("fingerprint", "S32"), ("checksum", "<u4")])
# What `store.json` contains, besides its checksum, and its entry "framing".
_KINDS = {"version": int, "name": str, "root": str, "images": int, "framing": dict, "pillow": str} | {
    "unreadable": dict
}
_FRAMING = {"size": int, "resize": str, "boxes": bool, "margin": int | float}


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
    ['files.bin', 'pixels.bin', 'store.json']
    """

    catalog: Catalog
    folder: Path
    framing: Framing
    workers: int | None = None
    progress: bool = True

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
                size = len(self.catalog) * self._row_bytes
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

    def _read_index(self, store: Path, tell: bool) -> "Index | None":
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

    def _current_files(self, indices: "list[Index]") -> np.ndarray:
        """Return the present state of all files; only those that changed since the last build are read."""
        root, paths = os.fspath(self.catalog.root), self.catalog.paths
        files = np.array([(*file_state(os.path.join(root, path)), b"", 0) for path in paths], FILES)
        for about, recorded in indices:
            if about["root"] == self._real_root:
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

    def _update(self, store: Path, index: "Index", files: np.ndarray) -> bool:
        """Mend a store, and record where its files are, their sizes and times, and which can be read by now.

        Returns:
            Whether the store can be used. If not, it could not be mended: it cannot be written, or a file has
            just changed.
        """
        damaged = damaged_rows(store, index, self.progress)
        files["checksum"] = index.files["checksum"]
        current = index.about["root"] == self._real_root and np.array_equal(index.files, files)
        if current and not damaged and not _rows_to_retry(index.about):
            return True
        if damaged:
            warnings.warn(f"{describe_damage(store, damaged, index)}; decoding them again", stacklevel=2)
        # Unless it is damaged, this only saves work the next time, so that a read-only folder is no error.
        with suppress(OSError), exclusive(store), open(store / PIXELS, "ab") as pixels:
            about, recorded = index = read_index(store)
            pixels.truncate(len(self.catalog) * self._row_bytes)
            # Another process may have mended it while this one waited for the lock.
            rows = sorted({*(damaged_rows(store, index) if damaged else []), *_rows_to_retry(about)})
            files["checksum"] = recorded["checksum"]
            whole = self._decode_again(store, about["unreadable"], rows, files)
            os.fsync(pixels.fileno())
            about |= {"root": self._real_root, "pillow": PIL.__version__}
            _write_index(store, about, files)
            return whole
        return not damaged

    def _decode_again(self, store: Path, reasons: dict[str, str], rows: list[int], files: np.ndarray) -> bool:
        """Decode rows of a finished store again, and update their reasons and checksums.

        Returns:
            Whether all their files are still the same.
        """
        many, whole = len(rows) > CHUNK, True
        with (
            Workers(self.workers if many else 0) as workers,
            progress_bar("decoding again", len(rows), self.progress and many) as advance,
        ):
            tasks = [self._task(store / PIXELS, row, row + 1) for row in rows]
            for index, [(_, _, digest, checksum, reason)] in workers.map(decode_rows, tasks):
                row = rows[index]
                if digest.encode() == files["fingerprint"][row]:
                    files["checksum"][row] = checksum
                    reasons.pop(str(row), None)
                    reasons |= {str(row): reason} if reason else {}
                else:  # it has just changed; the checksum tells that these are not its pixels
                    whole = False
                advance(1)
        return whole

    @property
    def _row_bytes(self) -> int:
        return self.framing.size**2 * 3

    def _task(self, target: Path, first: int, end: int) -> Task:
        crops = None if self._crops is None else self._crops[first:end].tolist()
        root, paths = os.fspath(self.catalog.root), self.catalog.paths[first:end]
        return self.framing, root, paths, crops, str(target), first * self._row_bytes, True

    def _build(self) -> Path:
        catalog, target = self.catalog, self._building / PIXELS
        self._building.mkdir(exist_ok=True)
        done = self._resume()
        _allocate(target, len(catalog) * self._row_bytes, fresh=not done)
        starts = [first for first in range(0, len(catalog), CHUNK) if first not in done]
        tasks = [self._task(target, first, first + CHUNK) for first in starts]
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
        complete = journal.exists() and (self._building / PIXELS).exists()
        for line in journal.read_bytes().splitlines() if complete else []:
            checksum, _, content = line.partition(b" ")
            if checksum != b"%08x" % zlib.crc32(content):  # half-written, or damaged
                continue
            first, records, *origin = json.loads(content)
            paths = self.catalog.paths[first : first + CHUNK]
            states = [file_state(os.path.join(self.catalog.root, path)) for path in paths]
            unchanged = states == [(size, mtime) for size, mtime, *_ in records]
            retry = any(reason == NO_MEMORY for *_, reason in records)
            if origin == [self._real_root, PIL.__version__] and unchanged and not retry:
                checksums = [checksum for *_, checksum, _ in records]
                if not _wrong_rows(self._building / PIXELS, self._row_bytes, first, checksums):
                    chunks[first] = records
        # Before any pixels are overwritten: the journal must never promise more than they hold.
        journal.write_bytes(b"".join(self._journal_line(*chunk) for chunk in chunks.items()))
        return chunks

    def _journal_line(self, first: int, records: list[FileRecord]) -> bytes:
        content = json.dumps([first, records, self._real_root, PIL.__version__]).encode()
        return b"%08x %s\n" % (zlib.crc32(content), content)

    def _publish(self, records: list[FileRecord]) -> Path:
        """Complete the folder of a build and rename it into place."""
        files = np.array(
            [(size, time, code.encode(), check) for size, time, code, check, _ in records], FILES
        )
        about = {
            "version": VERSION,
            "name": self.catalog.name,
            "root": self._real_root,
            "images": len(records),
            "framing": asdict(self.framing),
            "pillow": PIL.__version__,
            "unreadable": {str(row): reason for row, (*_, reason) in enumerate(records) if reason},
        }
        _write_index(self._building, about, files)
        name = re.sub(r"[^\w.-]+", "_", self.catalog.name)[:64]
        parts = name, str(self.framing.size), self.framing.resize, self._plan, self._content_digest(files)
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


class Index(NamedTuple):
    """The contents of `store.json`, and the records of `files.bin`."""

    about: dict[str, Any]
    files: np.ndarray

    @property
    def row_bytes(self) -> int:
        """Number of bytes of the pixels of one row."""
        size: int = self.about["framing"]["size"]
        return size**2 * 3


def read_index(store: Path) -> Index:
    """Read all of a finished store but its pixels.

    Raises:
        FileNotFoundError: There is no store.
        UserError: It is damaged, or of another version.

    >>> read_index(Path("nowhere"))
    Traceback (most recent call last):
    ...
    FileNotFoundError: nowhere: not a pixel store; make one with PixelStore.build
    """
    if not (store / METADATA).exists():
        raise FileNotFoundError(f"{store}: not a pixel store; make one with PixelStore.build")
    try:
        about = _parse_metadata(store / METADATA)
        if about["version"] == VERSION:
            with open_regular(store / RECORDS) as file:
                files = np.frombuffer(file.read(), FILES)
            if len(files) != about["images"]:
                raise ValueError(f"{RECORDS} has {len(files)} records, not {about['images']}")
            return Index(about, files)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{store}: the pixel store is damaged ({error})") from error
    raise UserError(f"{store}: pixel store of version {about['version']}, expected {VERSION}")


def damaged_rows(store: Path, index: Index, progress: bool = False) -> list[int]:
    """Return the rows whose pixels do not have their checksum. Reads all pixels, on all usable cores.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, PIXELS).write_bytes(bytes(12))  # four pixels
    ...     files = np.array([(1, 1, b"", check) for check in (4282505490, 7, 4282505490, 7, 7)], FILES)
    ...     damaged_rows(Path(folder), Index({"framing": {"size": 1}}, files))
    [1, 3, 4]
    """
    step = max(1, 2**22 // index.row_bytes)
    checksums = index.files["checksum"].tolist()
    starts = range(0, len(checksums), step)
    long = progress and len(checksums) * index.row_bytes > 2**30
    wrong = []
    with (
        ThreadPoolExecutor(usable_cores()) as pool,
        progress_bar("verifying pixels", len(checksums), long) as advance,
    ):
        parts = [checksums[start : start + step] for start in starts]
        check = partial(_wrong_rows, store / PIXELS, index.row_bytes)
        for part, found in zip(parts, pool.map(check, starts, parts), strict=True):
            wrong += found
            advance(len(part))
    return wrong


def describe_damage(store: Path, rows: list[int], index: Index) -> str:
    """Return one line about the damaged rows of a store.

    >>> describe_damage(Path("birds"), [7], Index({}, np.zeros(9, FILES)))
    'birds: the pixel store is damaged (1 of 9 rows, the first is 7)'
    """
    count = f"{len(rows):,} of {len(index.files):,} rows"
    return f"{store}: the pixel store is damaged ({count}, the first is {rows[0]})"


def _wrong_rows(pixels: Path, row_bytes: int, first: int, checksums: list[int]) -> list[int]:
    """Return those of the rows from `first` on whose pixels do not have their checksum."""
    # Not mapped: the end of a file that another process cuts off would end this one with a bus error.
    try:
        with open(pixels, "rb", buffering=0) as file:
            file.seek(first * row_bytes)
            content = memoryview(file.read(len(checksums) * row_bytes))
    except OSError:  # it is missing, or the disk cannot read it
        content = memoryview(b"")
    rows = (content[start : start + row_bytes] for start in range(0, len(checksums) * row_bytes, row_bytes))
    return [
        first + number
        for number, (row, checksum) in enumerate(zip(rows, checksums, strict=True))
        if len(row) < row_bytes or zlib.crc32(row) != checksum
    ]


def _write_index(store: Path, about: dict[str, Any], files: np.ndarray) -> None:
    sealed = about | {"checksum": _checksum(about)}
    durable.write(store / METADATA, json.dumps(sealed, indent=1).encode())
    durable.write(store / RECORDS, files.tobytes())


def _parse_metadata(file: Path) -> dict[str, Any]:
    """Return the contents of `store.json`, of any version.

    Raises:
        ValueError: It is damaged.
    """
    with open_regular(file) as opened:
        about = json.load(opened)
    if not isinstance(about, dict) or type(about.get("version")) is not int:
        raise ValueError(f"{METADATA} states no version")
    if about["version"] == VERSION:
        checksum = about.pop("checksum", None)
        if checksum != _checksum(about):
            raise ValueError(f"{METADATA} does not have its checksum")
        if about.keys() != _KINDS.keys() or any(type(about[key]) is not kind for key, kind in _KINDS.items()):
            raise ValueError(f"{METADATA} does not state {', '.join(_KINDS)}")
        unreadable, framing = about["unreadable"], about["framing"]
        if not all(
            isinstance(reason, str) and row.isdecimal() and len(row) < 16 and int(row) < about["images"]
            for row, reason in unreadable.items()
        ):
            raise ValueError(f"{METADATA} lists unreadable rows that are not there")
        if framing.keys() != _FRAMING.keys() or any(
            not isinstance(framing[key], kind) for key, kind in _FRAMING.items()
        ):
            raise ValueError(f"{METADATA} states no framing")
        Framing(**framing)
    return about


def _checksum(about: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(about, sort_keys=True).encode())


def _rows_to_retry(about: dict[str, Any]) -> list[int]:
    """Return the unreadable rows of a store that may be readable by now."""
    another_pillow = about["pillow"] != PIL.__version__
    return [int(row) for row, reason in about["unreadable"].items() if another_pillow or reason == NO_MEMORY]


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
