"""What the readers share: recognizing a layout, listing images, and reading its tables."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from firstpage.errors import UserError

# What only this dataset's folder holds, by which it is recognized.
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

# A file is listed by its name alone; whether it can be read is for the decoder to say.
IMAGE_SUFFIXES = frozenset(
    (
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
    )
)

# Kinds of image that the decoder does not know; such files are counted, so that nobody misses them.
UNREAD_SUFFIXES = frozenset(
    (
        ".heic",
        ".heif",
        ".svg",
        ".psd",
        ".jxl",
        ".jp2",
        ".tga",
        ".exr",
        ".raw",
        ".dng",
        ".cr2",
        ".cr3",
        ".nef",
        ".arw",
        ".orf",
        ".rw2",
        ".raf",
    )
)

SPLITS = ("train", "val", "test", "query", "gallery")

# The parent of a dataset holds a few folders; where there are more, they are classes and not searched.
MAX_SEARCHED = 64


def find_root(path: Path, kind: str) -> Path | None:
    """The folder of a dataset: `path` itself or a folder in it that is no split, or None.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as parent:
        ...     folder = Path(parent, "Stanford_Online_Products")
        ...     folder.mkdir()
        ...     _ = folder.joinpath("Ebay_train.txt").write_text("")
        ...     print(find_root(Path(parent), "sop").name, find_root(folder, "cub"))
        Stanford_Online_Products None
    """
    below = list_folders(path)
    # A split is a part of what lies in `path`: who read it alone would lose the others.
    inner = (
        [path / name for name in below if normalize_split(name) not in SPLITS]
        if len(below) <= MAX_SEARCHED
        else []
    )
    for folder in [path, *inner]:
        if any((folder / marker).exists() for marker in MARKERS[kind]):
            return folder
    return None


def require_root(path: Path, kind: str) -> Path:
    """As `locate`, but a dataset that is not there is an error.

    Raises:
        FileNotFoundError: Neither `path` nor a folder in it is this dataset.

    Example:
        >>> require_root(Path("nowhere"), "sop")
        Traceback (most recent call last):
        FileNotFoundError: read('nowhere', kind='sop'): neither it nor a folder in it holds Ebay_train.txt
    """
    folder = find_root(path, kind)
    if folder is None:
        holds = " or ".join(MARKERS[kind])
        raise FileNotFoundError(
            f"read({str(path)!r}, kind={kind!r}): neither it nor a folder in it holds {holds}"
        )
    return folder


def list_folders(path: Path) -> list[str]:
    """Names of the visible folders in a folder, sorted; links to folders count.

    Example:
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
        # os.path.isdir, because DirEntry.is_dir raises on a link that leads to itself.
        return sorted(entry.name for entry in entries if entry.name[0] != "." and os.path.isdir(entry.path))


def list_images(root: Path, folder: str) -> list[str]:
    """Every image in a folder and the folders in it, as sorted paths relative to `root`.

    Links to folders are not followed, so that a link to a parent cannot go round for ever. A folder named
    like an image is listed, not entered: it is a fault that the pixel store will report.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as root:
        ...     Path(root, "wren", "nest").mkdir(parents=True)
        ...     for name in ("b.JPG", "nest/a.png", "notes.txt"):
        ...         Path(root, "wren", name).touch()
        ...     list_images(Path(root), "wren")
        ['wren/b.JPG', 'wren/nest/a.png']
    """
    return [name for name in list_image_files(root, folder) if is_image(name)]


def list_image_files(root: Path, folder: str) -> list[str]:
    """As `images_below`, with the files of those kinds of image that are not read.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as root:
        ...     for name in ("a.png", "b.HEIC", "notes.txt"):
        ...         Path(root, name).touch()
        ...     list_image_files(Path(root), "")
        ['a.png', 'b.HEIC']
    """
    found: list[str] = []
    pending = [folder]
    while pending:
        here = pending.pop()
        with os.scandir(root / here) as entries:
            for entry in entries:
                name = f"{here}/{entry.name}" if here else entry.name
                if entry.name.startswith("."):
                    continue
                if is_image(entry.name):
                    found.append(name)
                elif entry.is_dir(follow_symlinks=False):
                    pending.append(name)
                elif suffix(name) in UNREAD_SUFFIXES:
                    found.append(name)
    return sorted(found)


def suffix(name: str) -> str:
    """How a file's name ends, in lower case.

    Example:
        >>> suffix("wren.JPG")
        '.jpg'
    """
    return os.path.splitext(name)[1].lower()


def is_image(name: str) -> bool:
    """Whether a file is named like an image.

    Example:
        >>> is_image("wren.JPG"), is_image("labels.txt")
        (True, False)
    """
    return suffix(name) in IMAGE_SUFFIXES


def normalize_split(name: str) -> str:
    """A known split in lower case, whatever its case; any other name as it is.

    Example:
        >>> normalize_split("Train"), normalize_split("Auk")
        ('train', 'Auk')
    """
    return name.lower() if name.lower() in SPLITS else name


def encode_names(names: Iterable[str]) -> tuple[NDArray[np.int64], list[str]]:
    """Names as positions in a sorted list of them; names that are all whole numbers sort as numbers.

    Example:
        >>> codes, names = encode_names(["10", "9", "10"])
        >>> codes.tolist(), names
        ([1, 0, 1], ['9', '10'])
    """
    seen: dict[str, int] = {}
    codes = np.fromiter((seen.setdefault(name, len(seen)) for name in names), np.int64)
    numeric = all(name.isdecimal() for name in seen)
    ordered = sorted(seen, key=lambda name: (int(name) if numeric else 0, name))
    rank = np.empty(len(seen), np.int64)
    rank[[seen[name] for name in ordered]] = np.arange(len(seen))
    return rank[codes], ordered


def rows_by_name(names: Sequence[str]) -> dict[str, NDArray[np.int64]]:
    """The rows at which each name stands, in the order names appear; rows named "" belong to none.

    Example:
        >>> {name: rows.tolist() for name, rows in rows_by_name(["train", "", "test", "train"]).items()}
        {'train': [0, 3], 'test': [2]}
    """
    codes, ordered = encode_names(names)
    return {name: np.flatnonzero(codes == ordered.index(name)) for name in dict.fromkeys(names) if name}


def split_first_classes(labels: NDArray[np.int64], count: int) -> dict[str, NDArray[np.int64]]:
    """The usual class-disjoint split: the first `count` classes train, the others test.

    Example:
        >>> {name: rows.tolist() for name, rows in split_first_classes(np.array([0, 1, 2]), 1).items()}
        {'train': [0], 'test': [1, 2]}
    """
    return {"train": np.flatnonzero(labels < count), "test": np.flatnonzero(labels >= count)}


def read_columns(file: Path, fields: int, *, header: int = 0, spaces: str = "last") -> list[tuple[str, ...]]:
    r"""The columns of a text table whose fields are parted by blanks.

    Args:
        file: The table.
        fields: How many columns it has.
        header: Lines to pass over first.
        spaces: Which column may hold blanks itself, "first" or "last": the one with file names.

    Raises:
        FileNotFoundError: There is no such file.
        UserError: A row has too few fields, or there is no row.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as root:
        ...     _ = Path(root, "images.txt").write_text("1 a wren.jpg\n2 auk.jpg\n")
        ...     read_columns(Path(root, "images.txt"), 2)
        [('1', '2'), ('a wren.jpg', 'auk.jpg')]
    """
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file; is the dataset complete?")
    part = str.rsplit if spaces == "first" else str.split
    rows = []
    # surrogateescape: file names need not be UTF-8, and os.listdir spells the others in the same way.
    with file.open(encoding="utf-8-sig", errors="surrogateescape") as lines:
        for line_number, line in enumerate(lines, 1):
            if line_number <= header or not line.strip():
                continue
            row = part(line.strip(), None, fields - 1)
            if len(row) != fields:
                raise UserError(
                    f"{file}:{line_number}: expected {fields} fields, got {len(row)}: {line.strip()!r}"
                )
            rows.append(row)
    if not rows:
        raise UserError(f"{file}: holds no rows")
    return list(zip(*rows, strict=True))


def read_csv_rows(file: Path) -> Iterator[tuple[int, list[str]]]:
    r"""The rows of a csv file that are not empty, each with the number of its last line.

    Cells are parted by what the first line has most of: commas, semicolons or tabs.

    Raises:
        FileNotFoundError: There is no such file.
        UserError: A row cannot be parsed.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as root:
        ...     _ = Path(root, "a.csv").write_text('path,label\n"a, b.jpg",wren\n')
        ...     list(read_csv_rows(Path(root, "a.csv")))
        [(1, ['path', 'label']), (2, ['a, b.jpg', 'wren'])]
    """
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file; is the dataset complete?")
    with file.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as lines:
        delimiter = max(",;\t", key=lines.readline().count)
        lines.seek(0)
        reader = csv.reader(lines, delimiter=delimiter, skipinitialspace=True)
        try:
            for row in reader:
                if row:
                    yield reader.line_num, row
        except csv.Error as error:
            raise UserError(f"{file}:{reader.line_num}: {error}") from None
