"""Helpers of the readers: recognizing a layout, listing images, and reading tables."""

import csv
import os
from collections.abc import Iterable, Iterator, Sequence
from io import BufferedReader, TextIOWrapper
from itertools import chain, count
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from firstpage import durable
from firstpage.data.decode import has_heif
from firstpage.errors import UserError

MAX_BYTES = 2**32  # of a table: 40 million rows
MAX_LINE = 2**20  # characters

# Files and folders that only this dataset contains, by which it is recognized.
MARKERS: dict[str, tuple[str, ...]] = {
    "cub": ("image_class_labels.txt",),
    "cars": (
        "cars_annos.mat",
        "devkit/cars_train_annos.mat",
        "train/AM General Hummer SUV 2000",
        "test/AM General Hummer SUV 2000",
        "AM General Hummer SUV 2000",
    ),
    "sop": ("Ebay_train.txt",),
    "inshop": ("Eval/list_eval_partition.txt", "list_eval_partition.txt"),
    "hotels50k": ("train_set.csv", "input/dataset/train_set.csv", "dataset/train_set.csv"),
    "casia": ("0000045",),
    "lfw": ("pairs.txt",),
    "glyphs": ("glyphs.json",),
}

HEIF_SUFFIXES = frozenset({".heic", ".heif"})  # of phones

# Files are listed by their names; only the decoder knows whether they can be read.
IMAGE_SUFFIXES = frozenset(
    [
        ".jpg",
        ".jpeg",
        ".jpe",
        ".jfif",
        ".png",
        ".bmp",
        ".gif",
        ".webp",
        ".tif",
        ".tiff",
        ".ppm",
        ".pgm",
        ".pbm",
        ".pnm",
        ".avif",
        ".jp2",
        ".j2k",
        ".jpf",
        ".jpx",
    ]
) | (HEIF_SUFFIXES if has_heif() else frozenset())

# Formats that the decoder does not support; such files are counted and reported.
UNREAD_SUFFIXES = (
    frozenset(
        ".heic .heif .svg .psd .jxl .tga .exr .raw .dng .cr2 .cr3 .nef .arw .orf .rw2 .raf".split()  # noqa: SIM905
    )
    - IMAGE_SUFFIXES
)

LISTED_SUFFIXES = IMAGE_SUFFIXES | UNREAD_SUFFIXES

SPLITS = ("train", "val", "test", "query", "gallery")
OTHER_NAMES = {"training": "train", "validation": "val", "valid": "val", "testing": "test"}

# The parent of a dataset contains few folders; if there are more, they are classes and not searched.
MAX_SEARCHED = 64


def find_root(path: Path, kind: str) -> Path | None:
    """Return the folder of a dataset: `path` or a folder in it that is not a split; None if it is neither.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as parent:
    ...     folder = Path(parent, "Stanford_Online_Products")
    ...     folder.mkdir()
    ...     _ = folder.joinpath("Ebay_train.txt").write_text("")
    ...     print(find_root(Path(parent), "sop").name, find_root(folder, "cub"))
    Stanford_Online_Products None
    """
    below = list_folders(path)
    # Reading only one of several split folders would lose the others.
    inner = (path / name for name in below if normalize_split(name) not in SPLITS)
    for folder in [path, *inner] if len(below) <= MAX_SEARCHED else [path]:
        if any((folder / marker).exists() for marker in MARKERS[kind]):
            return folder
    return None


def require_root(path: Path, kind: str) -> Path:
    """Return the folder of a dataset like `find_root`, or raise an error.

    Raises:
        FileNotFoundError: Neither `path` nor a folder in it is this dataset.

    >>> require_root(Path("nowhere"), "sop")
    Traceback (most recent call last):
    FileNotFoundError: read('nowhere', kind='sop'): neither it nor a folder in it contains Ebay_train.txt
    """
    folder = find_root(path, kind)
    if folder is None:
        markers = " or ".join(MARKERS[kind])
        raise FileNotFoundError(
            f"read({str(path)!r}, kind={kind!r}): neither it nor a folder in it contains {markers}"
        )
    return folder


def list_folders(path: Path) -> list[str]:
    """Return the sorted names of the visible folders in a folder, including links to folders.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     for name in ("wren", "auk", ".cache"):
    ...         Path(root, name).mkdir()
    ...     list_folders(Path(root))
    ['auk', 'wren']
    """
    if not path.is_dir():
        return []
    with os.scandir(path) as entries:
        # os.path.isdir, because DirEntry.is_dir raises an error for a link to itself.
        return sorted(entry.name for entry in entries if entry.name[0] != "." and os.path.isdir(entry.path))


def list_image_files(root: Path, folder: str, empty: list[str] | None = None) -> list[str]:
    """Return the sorted paths, relative to `root`, of all image files in a folder and its subfolders.

    Files of unsupported formats are included. Links to folders are not followed, as a link to a parent would
    never end. A folder named like an image is listed, not entered: the pixel store will report it.

    Args:
        root: The folder that paths are relative to.
        folder: The folder to list.
        empty: Folders without images and without folders are added to this list.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     Path(root, "wren", "nest").mkdir(parents=True)
    ...     for name in ("b.HEIC", "nest/a.png", "notes.txt"):
    ...         Path(root, "wren", name).touch()
    ...     list_image_files(Path(root), "wren")
    ['wren/b.HEIC', 'wren/nest/a.png']
    """
    files: list[str] = []
    pending = [folder]
    while pending:
        current = pending.pop()
        before = len(files) + len(pending)
        with os.scandir(root / current) as entries:
            for entry in entries:
                name = f"{current}/{entry.name}" if current else entry.name
                if entry.name.startswith("."):
                    continue
                ending = suffix(entry.name)
                if ending not in IMAGE_SUFFIXES and entry.is_dir(follow_symlinks=False):
                    pending.append(name)
                elif ending in LISTED_SUFFIXES:
                    files.append(name)
        if empty is not None and len(files) + len(pending) == before:
            empty.append(current)
    return sorted(files)


def suffix(name: str) -> str:
    """Return the suffix of a file name in lower case.

    >>> suffix("wren.JPG")
    '.jpg'
    """
    return os.path.splitext(name)[1].lower()


def is_image(name: str) -> bool:
    """Return whether a file is named like an image.

    >>> is_image("wren.JPG"), is_image("labels.txt")
    (True, False)
    """
    return suffix(name) in IMAGE_SUFFIXES


def normalize_split(name: str) -> str:
    """Return the usual name of a known split, and any other name unchanged.

    >>> normalize_split("Train"), normalize_split("validation"), normalize_split("Auk")
    ('train', 'val', 'Auk')
    """
    usual = OTHER_NAMES.get(name.lower(), name.lower())
    return usual if usual in SPLITS else name


def encode_names(names: Iterable[str]) -> tuple[NDArray[np.int64], list[str]]:
    """Return names as indices into a sorted list, and that list; integers are sorted numerically.

    >>> codes, names = encode_names(["10", "9", "10"])
    >>> codes.tolist(), names
    ([1, 0, 1], ['9', '10'])
    """
    first_codes: dict[str, int] = {}
    codes = np.fromiter((first_codes.setdefault(name, len(first_codes)) for name in names), np.int64)
    numeric = all(name.isdecimal() for name in first_codes)
    ordered = sorted(first_codes, key=lambda name: (int(name) if numeric else 0, name))
    rank = np.empty(len(first_codes), np.int64)
    rank[[first_codes[name] for name in ordered]] = np.arange(len(first_codes))
    return rank[codes], ordered


def rows_by_name(names: Sequence[str]) -> dict[str, NDArray[np.int64]]:
    """Return the rows of each name, in the order in which names first appear, without rows named "".

    >>> {name: rows.tolist() for name, rows in rows_by_name(["train", "", "test", "train"]).items()}
    {'train': [0, 3], 'test': [2]}
    """
    rows: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        rows.setdefault(name, []).append(row)
    return {name: np.array(rows_of, np.int64) for name, rows_of in rows.items() if name}


def split_first_classes(labels: NDArray[np.int64], count: int) -> dict[str, NDArray[np.int64]]:
    """Return the usual class-disjoint split: the first `count` classes are for training.

    >>> {name: rows.tolist() for name, rows in split_first_classes(np.array([0, 1, 2]), 1).items()}
    {'train': [0], 'test': [1, 2]}
    """
    return {"train": np.flatnonzero(labels < count), "test": np.flatnonzero(labels >= count)}


def open_table(file: Path, most: int = MAX_BYTES) -> BufferedReader:
    """Open a file of a dataset that is not an image.

    Args:
        file: The file.
        most: Its largest size in bytes.

    Raises:
        FileNotFoundError: There is no such file.
        UserError: It is not a regular file, or larger.

    >>> open_table(Path("nowhere.txt"))
    Traceback (most recent call last):
    FileNotFoundError: nowhere.txt: no such file; the dataset is incomplete
    """
    try:
        return durable.open_regular(file, most)
    except FileNotFoundError:
        raise FileNotFoundError(f"{file}: no such file; the dataset is incomplete") from None


def read_lines(file: Path, newline: str | None = None) -> Iterator[str]:
    r"""Yield the lines of a text file with their ends.

    Args:
        file: The file.
        newline: As for `open`.

    Raises:
        FileNotFoundError: There is no such file.
        UserError: It is not a regular file, or one of its lines is too long for a table.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     _ = Path(root, "a.txt").write_text("1\n2")
    ...     list(read_lines(Path(root, "a.txt")))
    ['1\n', '2']
    """
    # surrogateescape, as in os.listdir: file names need not be UTF-8.
    with TextIOWrapper(open_table(file), "utf-8-sig", "surrogateescape", newline) as lines:
        for number in count(1):
            line = lines.readline(MAX_LINE + 1)
            if len(line) > MAX_LINE:
                raise UserError(f"{file}:{number}: a line of more than {MAX_LINE:,} characters: not a table")
            if not line:
                return
            yield line


def read_columns(file: Path, fields: int, *, header: int = 0, spaces: str = "last") -> list[tuple[str, ...]]:
    r"""Read the columns of a text table whose fields are separated by blanks.

    Args:
        file: The table.
        fields: Number of columns.
        header: Number of lines to skip.
        spaces: Which column may contain blanks, "first" or "last": the one with file names.

    Raises:
        FileNotFoundError: There is no such file.
        UserError: A row has too few fields, or there are no rows.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     _ = Path(root, "images.txt").write_text("1 a wren.jpg\n2 auk.jpg\n")
    ...     read_columns(Path(root, "images.txt"), 2)
    [('1', '2'), ('a wren.jpg', 'auk.jpg')]
    """
    split = str.rsplit if spaces == "first" else str.split
    rows = []
    for line_number, line in enumerate(read_lines(file), 1):
        if line_number <= header or not line.strip():
            continue
        row = split(line.strip(), None, fields - 1)
        if len(row) != fields:
            raise UserError(
                f"{file}:{line_number}: expected {fields} fields, got {len(row)}: {line.strip()!r}"
            )
        rows.append(row)
    if not rows:
        raise UserError(f"{file}: has no rows")
    return list(zip(*rows, strict=True))


def read_csv_rows(file: Path) -> Iterator[tuple[int, list[str]]]:
    r"""Yield the nonempty rows of a csv file, each with the number of its last line.

    The delimiter is the most frequent of comma, semicolon and tab in the first line.

    Raises:
        FileNotFoundError: There is no such file.
        UserError: A row cannot be parsed.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     _ = Path(root, "a.csv").write_text('path,label\n"a, b.jpg",wren\n')
    ...     list(read_csv_rows(Path(root, "a.csv")))
    [(1, ['path', 'label']), (2, ['a, b.jpg', 'wren'])]
    """
    lines = read_lines(file, newline="")
    first = next(lines, "")
    delimiter = max(",;\t", key=first.count)
    reader = csv.reader(chain([first], lines), delimiter=delimiter, skipinitialspace=True)
    try:
        for row in reader:
            if row:
                yield reader.line_num, row
    except csv.Error as error:
        raise UserError(f"{file}:{reader.line_num}: {error}") from None
