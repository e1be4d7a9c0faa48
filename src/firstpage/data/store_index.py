"""The index of a pixel store: what is known of its files, and whether its bytes are still right.

A finished store is a folder with

- `pixels.bin`, the stored images one after another and nothing else;
- `files.bin`, a record of `FILES` for each image, in the order of the catalog;
- `store.json`, an `About`.

No byte is trusted. Images that do not have their checksum are decoded again. `store.json` contains its own
checksum, and the name of the folder is that of the fingerprints in `files.bin`: if these do not agree, the
store is built again. A wrong entry in `files.bin` only costs reading a file again.
"""

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import PIL

from firstpage import durable
from firstpage._reading import json_checksum, parse_json
from firstpage.data.decode import MAX_FILE_BYTES, NO_MEMORY
from firstpage.data.framing import Framing, pixel_checksum
from firstpage.data.progress import progress_bar
from firstpage.data.workers import usable_cores
from firstpage.errors import UserError
from firstpage.recipes.recipe import build_settings

VERSION = 3  # of the files above and of the pixels: a change of either rebuilds every store
PIXELS, RECORDS, METADATA = "pixels.bin", "files.bin", "store.json"
FILES = np.dtype(
    [
        ("bytes", "<i8"),  # of the image file
        ("mtime", "<i8"),
        ("fingerprint", "S32"),
        ("checksum", "<u4"),  # of what is stored: see `pixel_checksum`
        ("height", "<u4"),
        ("width", "<u4"),
        ("offset", "<i8"),  # where in `pixels.bin`
        ("length", "<u4"),
    ]
)


@dataclass(frozen=True)
class About:
    """The contents of `store.json`.

    Args:
        version: Of the format.
        name: Of the dataset.
        root: The folder of the files. Only for files in that folder do size and time show that nothing
            changed: files extracted from different archives often have the same time.
        images: Number of images.
        framing: How they were scaled.
        kind: `raw` or `jpeg`.
        pillow: The version of Pillow that last tried the unreadable files: another one tries them again.
        unreadable: The reason for each row that could not be decoded.

    >>> About(VERSION, "birds", "photos", 1, Framing(64), "raw", "12.0", {}).kind
    'raw'
    """

    version: int
    name: str
    root: str
    images: int
    framing: Framing
    kind: str
    pillow: str
    unreadable: dict[str, str]

    @property
    def rows_to_retry(self) -> list[int]:
        """The unreadable rows that may be readable by now.

        >>> About(VERSION, "birds", "photos", 1, Framing(64), "raw", "1.0", {"0": "broken"}).rows_to_retry
        [0]
        """
        another_pillow = self.pillow != PIL.__version__
        return [int(row) for row, reason in self.unreadable.items() if another_pillow or reason == NO_MEMORY]


class Index(NamedTuple):
    """The contents of `store.json`, and the records of `files.bin`."""

    about: About
    files: np.ndarray


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
        table = parse_json(_read(store / METADATA))
        if not isinstance(table, dict) or type(table.get("version")) is not int:
            raise UserError(f"{METADATA} states no version")
        if table["version"] == VERSION:
            about = _parse_about(table)
            files = np.frombuffer(_read(store / RECORDS), FILES)
            if len(files) != about.images:
                raise UserError(f"{RECORDS} has {len(files)} records, not {about.images}")
            return Index(about, files)
    except (ValueError, FileNotFoundError) as error:
        reason = f"{RECORDS} is missing" if isinstance(error, FileNotFoundError) else error
        raise UserError(f"{store}: the pixel store is damaged ({reason})") from error
    raise UserError(f"{store}: pixel store of version {table['version']}, expected {VERSION}")


def write_index(store: Path, index: Index) -> None:
    """Write all of a store but its pixels.

    >>> import tempfile
    >>> about = About(VERSION, "birds", "photos", 0, Framing(64), "raw", "12.0", {})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_index(Path(folder), Index(about, np.zeros(0, FILES)))
    ...     read_index(Path(folder)).about == about
    True
    """
    table = asdict(index.about)
    sealed = table | {"checksum": json_checksum(table)}
    durable.write(store / METADATA, json.dumps(sealed, indent=1).encode())
    durable.write(store / RECORDS, index.files.tobytes())


def damaged_rows(store: Path, index: Index, progress: bool = False) -> list[int]:
    """Return the rows that do not have their checksum. Reads all pixels, on all usable cores.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, PIXELS).write_bytes(bytes(6))  # two pixels
    ...     right = pixel_checksum(bytes(3), 1, 1)
    ...     files = [(1, 1, b"", *row, 3) for row in ((right, 1, 1, 0), (7, 1, 1, 3), (right, 1, 1, 6))]
    ...     damaged_rows(Path(folder), Index(None, np.array(files, FILES)))
    [1, 2]
    """
    step = 256
    parts = [index.files[first : first + step] for first in range(0, len(index.files), step)]
    long = progress and int(index.files["length"].sum(dtype=np.int64)) > 2**30
    wrong: list[int] = []
    with (
        ThreadPoolExecutor(usable_cores()) as pool,
        progress_bar("verifying pixels", len(index.files), long) as advance,
    ):
        check: Callable[[np.ndarray], list[int]] = lambda part: wrong_rows(store / PIXELS, part)  # noqa: E731
        for number, found in enumerate(pool.map(check, parts)):
            wrong += [number * step + row for row in found]
            advance(len(parts[number]))
    return wrong


def describe_damage(store: Path, rows: list[int], index: Index) -> str:
    """Return one line about the damaged rows of a store.

    >>> describe_damage(Path("birds"), [7], Index(None, np.zeros(9, FILES)))
    'birds: the pixel store is damaged (1 of 9 rows, the first is 7)'
    """
    count = f"{len(rows):,} of {len(index.files):,} rows"
    return f"{store}: the pixel store is damaged ({count}, the first is {rows[0]})"


def wrong_rows(pixels: Path, files: np.ndarray) -> list[int]:
    """Return those of the records whose stored bytes do not have their checksum.

    >>> wrong_rows(Path("nowhere"), np.zeros(2, FILES))
    [0, 1]
    """
    # Not mapped: the end of a file that another process cuts off would end this one with a bus error.
    try:
        with open(pixels, "rb", buffering=0) as file:
            end = os.fstat(file.fileno()).st_size
            return [row for row, record in enumerate(files) if not _is_right(file.fileno(), record, end)]
    except OSError:  # it is missing, or the disk cannot read it
        return list(range(len(files)))


def _is_right(file: int, record: np.void, end: int) -> bool:
    offset, length = int(record["offset"]), int(record["length"])
    if not 0 <= offset <= offset + length <= end:
        return False
    content = os.pread(file, length, offset)
    checksum = pixel_checksum(content, int(record["height"]), int(record["width"]))
    return checksum == int(record["checksum"])


def _read(path: Path) -> bytes:
    with durable.open_regular(path, MAX_FILE_BYTES) as file:
        return file.read()


def _parse_about(table: dict[str, Any]) -> About:
    """Return the contents of `store.json`.

    Raises:
        UserError: It is damaged.
    """
    checksum = table.pop("checksum", None)
    if checksum != json_checksum(table):
        raise UserError(f"{METADATA} does not have its checksum")
    framing = table.get("framing")
    for kind, given in ((About, table), (Framing, framing if isinstance(framing, dict) else {})):
        missing = {field.name for field in fields(kind)} - given.keys()
        if missing:
            raise UserError(f"{METADATA} states no {', '.join(sorted(missing))}")
    about: About = build_settings(About, table, "")
    if about.kind not in ("raw", "jpeg"):
        raise UserError(f"{METADATA} states a kind of store that there is not")
    if not all(row.isdecimal() and len(row) < 16 and int(row) < about.images for row in about.unreadable):
        raise UserError(f"{METADATA} lists unreadable rows that are not there")
    return about
