"""Problems of a catalog that show before any image is opened."""

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from firstpage.data.catalog import Catalog
from firstpage.data.decode import HEIF_EXTRA
from firstpage.data.readers.layout import HEIF_SUFFIXES

# Number of images of each split, as published.
PUBLISHED = {
    "cub": {"train": 5_864, "test": 5_924},
    "cars": {"train": 8_054, "test": 8_131},
    "sop": {"train": 59_551, "test": 60_502},
    "inshop": {"train": 25_882, "query": 14_218, "gallery": 12_612},
}


def find_problems(catalog: Catalog) -> list[str]:
    r"""Describe the problems of a catalog: missing or unsupported files, empty classes, unusual counts.

    >>> catalog = Catalog("x", Path("nowhere"), ["wren/1.jpg"], np.array([0]), ["wren", "auk"], {})
    >>> print(*find_problems(catalog), sep="\n")
    x: 1 of 1 images are missing, the first is 'wren/1.jpg'; their rows stay but cannot be decoded
    x: 1 of 2 classes have no image, the first is 'auk'
    """
    problems = unread_notes(catalog.unread)
    missing = _find_missing_rows(catalog.root, catalog.paths)
    if missing:
        problems.append(
            f"{len(missing):,} of {len(catalog):,} images are missing, the first is "
            f"{catalog.paths[missing[0]]!r}; their rows stay but cannot be decoded"
        )
    empty = np.flatnonzero(np.bincount(catalog.labels, minlength=len(catalog.classes)) == 0)
    if empty.size:
        first = catalog.classes[empty[0]]
        problems.append(
            f"{empty.size:,} of {len(catalog.classes):,} classes have no image, the first is {first!r}"
        )
    for split, published in PUBLISHED.get(catalog.name, {}).items():
        count = len(catalog.splits[split])
        if count != published:
            problems.append(f"{split} has {count:,} images, the published split has {published:,}")
    return [f"{catalog.name}: {problem}" for problem in problems]


def unread_notes(counts: Mapping[str, int]) -> list[str]:
    """Return one line per unsupported image format.

    >>> unread_notes({".svg": 12})
    ['12 .svg files are not supported; convert them to JPEG or PNG']
    """
    return [
        f"{count:,} {suffix} files are not read: pip install {HEIF_EXTRA}, or convert them to JPEG"
        if suffix in HEIF_SUFFIXES
        else f"{count:,} {suffix} files are not supported; convert them to JPEG or PNG"
        for suffix, count in sorted(counts.items())
    ]


def _find_missing_rows(root: Path, paths: Sequence[str]) -> list[int]:
    """Return the rows whose files are missing, by listing each folder once instead of testing each file."""
    rows_in: defaultdict[str, list[int]] = defaultdict(list)
    for row, path in enumerate(paths):
        rows_in[path[: path.rfind("/") + 1]].append(row)
    missing = []
    for folder, rows in rows_in.items():
        try:
            names = set(os.listdir(root / folder))
        except (OSError, ValueError):  # ValueError: a null byte in the path
            names = set()
        missing += [row for row in rows if paths[row][len(folder) :] not in names]
    return sorted(missing)
