"""Checking a catalog before a GPU hour is spent on it: counts, unreadable files, duplicates, leakage."""

import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from firstpage.data.catalog import Catalog
from firstpage.data.decode import shown
from firstpage.data.duplicates import equal_pairs, groups, near_pairs
from firstpage.data.looking import THUMBNAIL, Look, look_at
from firstpage.data.progress import progress_bar
from firstpage.data.workers import Workers

CHUNK = 64  # files looked at by one task


@dataclass(frozen=True, eq=False)
class Report:
    """What is in a catalog, and what is wrong with it. Groups are lists of rows of the catalog.

    Attributes:
        catalog: what was checked.
        looks: what was found out about each file.
        exact: groups with the same bytes.
        near: groups that show the same picture, not all with the same bytes.
        two_labels: groups, exact or near, that show one picture under more than one label.
        two_splits: groups, exact or near, that show one picture in more than one split: leakage.

    >>> from pathlib import Path
    >>> catalog = Catalog("toy", Path(), ["a.jpg"], np.zeros(1, np.int64), ["bird"], {"train": np.array([0])})
    >>> print(Report(catalog, [Look("empty file")], [], [], [], []).text())
    toy: 1 image, 1 class, 0.00 GB; train 1
    images in a class: 1 to 1, median 1
    unreadable: 1
        a.jpg: empty file
    exact duplicates: none
    near duplicates: none
    one picture under two labels: none
    one picture in two splits: none
    """

    catalog: Catalog
    looks: list[Look]
    exact: list[list[int]]
    near: list[list[int]]
    two_labels: list[list[int]]
    two_splits: list[list[int]]

    @property
    def unreadable(self) -> dict[int, str]:
        """Row → reason.

        >>> from pathlib import Path
        >>> catalog = Catalog("toy", Path(), ["a.jpg"], np.zeros(1, np.int64), ["bird"], {})
        >>> Report(catalog, [Look("empty file")], [], [], [], []).unreadable
        {0: 'empty file'}
        """
        return {row: look.reason for row, look in enumerate(self.looks) if look.reason}

    @property
    def class_counts(self) -> np.ndarray:
        """Images of each class, by label.

        >>> from pathlib import Path
        >>> catalog = Catalog("toy", Path(), ["a.jpg", "b.jpg"], np.array([0, 2]), ["x", "y", "z"], {})
        >>> Report(catalog, [], [], [], [], []).class_counts
        array([1, 0, 1])
        """
        return np.bincount(self.catalog.labels, minlength=len(self.catalog.classes))

    def text(self, most: int = 1000) -> str:
        """The report for people; of each kind of fault at most `most` lines.

        >>> from pathlib import Path
        >>> catalog = Catalog("toy", Path(), ["a.jpg"], np.zeros(1, np.int64), ["bird"], {})
        >>> Report(catalog, [Look("empty file")], [], [], [], []).text().splitlines()[2:4]
        ['unreadable: 1', '    a.jpg: empty file']
        """
        paths = self.catalog.paths
        faults = {"unreadable": [f"{shown(paths[row])}: {reason}" for row, reason in self.unreadable.items()]}
        for title, found in self._groups().items():
            faults[title] = [" = ".join(self._line(row) for row in rows) for rows in found]
        lines = list(self._summary())
        for title, named in faults.items():
            lines.append(f"{title}: {len(named) or 'none'}")
            lines += [f"    {line}" for line in named[:most]]
            lines += [f"    and {len(named) - most} more"] if len(named) > most else []
        return "\n".join(lines)

    def json(self) -> str:
        """The report for programs, complete.

        >>> from pathlib import Path
        >>> catalog = Catalog("toy", Path(), ["a.jpg"], np.zeros(1, np.int64), ["bird"], {})
        >>> json.loads(Report(catalog, [Look("empty file")], [], [], [], []).json())["unreadable"]
        [{'path': 'a.jpg', 'reason': 'empty file'}]
        """
        catalog, paths = self.catalog, self.catalog.paths
        readable = [look for look in self.looks if not look.reason]
        about = {
            "name": catalog.name,
            "images": len(catalog),
            "bytes": sum(look.length for look in readable),
            "formats": Counter(look.format for look in readable),
            "sizes": Counter(f"{look.width}x{look.height}" for look in readable),
            "splits": {split: len(rows) for split, rows in catalog.splits.items()},
            "classes": [
                [name, int(count)] for name, count in zip(catalog.classes, self.class_counts, strict=True)
            ],
            "warnings": catalog.warnings,
            "unreadable": [{"path": paths[row], "reason": reason} for row, reason in self.unreadable.items()],
        }
        for title, found in self._groups().items():
            about[title] = [[self._named(row) for row in rows] for rows in found]
        return json.dumps(about, indent=1)

    def figure(self) -> Figure:
        """The class histogram: how many classes have how many images.

        >>> from pathlib import Path
        >>> catalog = Catalog("toy", Path(), ["a.jpg", "b.jpg"], np.array([0, 1]), ["x", "y"], {})
        >>> Report(catalog, [], [], [], [], []).figure().axes[0].get_xlabel()
        'images in a class'
        """
        counts = self.class_counts
        top = int(counts.max(initial=0))
        step = 1 + top // 60  # at most 61 bars, each of whole numbers
        figure = Figure(figsize=(6, 3.6), layout="constrained")
        axes = figure.add_subplot()
        axes.hist(counts, bins=[edge - 0.5 for edge in range(0, top + step + 1, step)], color="#35618f")
        axes.set_xlabel("images in a class")
        axes.set_ylabel("classes")
        axes.set_title(f"{self.catalog.name}: {len(self.catalog):,} images, {len(counts):,} classes")
        return figure

    def _groups(self) -> dict[str, list[list[int]]]:
        return {
            "exact duplicates": self.exact,
            "near duplicates": self.near,
            "one picture under two labels": self.two_labels,
            "one picture in two splits": self.two_splits,
        }

    def _named(self, row: int) -> dict[str, Any]:
        label = self.catalog.classes[self.catalog.labels[row]]
        splits = [split for split, rows in self.catalog.splits.items() if np.isin(row, rows)]
        return {"path": self.catalog.paths[row], "label": label, "splits": splits}

    def _line(self, row: int) -> str:
        named = self._named(row)
        return f"{shown(named['path'])} ({', '.join([shown(named['label']), *named['splits']])})"

    def _summary(self) -> Iterator[str]:
        catalog, counts = self.catalog, self.class_counts
        readable = [look for look in self.looks if not look.reason]
        splits = ", ".join(f"{split} {len(rows):,}" for split, rows in catalog.splits.items()) or "no splits"
        size = sum(look.length for look in readable) / 1e9
        images = f"{len(catalog):,} {'image' if len(catalog) == 1 else 'images'}"
        classes = f"{len(counts):,} {'class' if len(counts) == 1 else 'classes'}"
        yield f"{catalog.name}: {images}, {classes}, {size:.2f} GB; {splits}"
        if len(counts):
            yield f"images in a class: {counts.min()} to {counts.max()}, median {np.median(counts):g}"
        if readable:
            sizes = sorted(readable, key=lambda look: look.width * look.height)
            ends = (sizes[0], sizes[-1], sizes[len(sizes) // 2])
            least, largest, median = (f"{look.width} × {look.height}" for look in ends)
            formats = Counter(look.format for look in readable).most_common()
            yield f"width × height: {least} to {largest}, median {median}"
            yield f"formats: {', '.join(f'{name} {count:,}' for name, count in formats)}"
        yield from (f"warning: {warning}" for warning in catalog.warnings)


def check(
    catalog: Catalog, *, near: float = 0.98, workers: int | None = None, progress: bool = True
) -> Report:
    """Decode every image of a catalog once, and report what is there and what is wrong.

    Args:
        catalog: the images.
        near: two images count as near duplicates from this correlation of their thumbnails on.
        workers: decoding processes; None for one per usable core, 0 for this process alone.
        progress: show a progress bar on standard error.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("a.png", "b.png"):
    ...         Image.linear_gradient("L").save(Path(folder, name))
    ...     splits = {"train": np.array([0]), "test": np.array([1])}
    ...     catalog = Catalog("toy", Path(folder), ["a.png", "b.png"], np.array([0, 1]), ["x", "y"], splits)
    ...     report = check(catalog, workers=0, progress=False)
    >>> report.exact, report.near, report.two_labels, report.two_splits
    ([[0, 1]], [], [[0, 1]], [[0, 1]])
    """
    if not -1 <= near <= 1:
        raise ValueError(f"near={near}: must be a correlation, from -1 to 1")
    looks = _look_at_all(catalog, workers, progress)
    contents = np.array([look.fingerprint for look in looks], dtype="U32")
    thumbnails = np.frombuffer(b"".join(look.thumbnail for look in looks), np.uint8)
    exact = equal_pairs(contents)
    alike = np.concatenate([exact, near_pairs(thumbnails.reshape(-1, THUMBNAIL, THUMBNAIL), near)])
    pictures = groups(alike, len(catalog))
    splits = np.zeros((len(catalog), len(catalog.splits)), dtype=bool)
    for column, rows in enumerate(catalog.splits.values()):
        splits[rows, column] = True

    def leaks(rows: list[int]) -> bool:
        # A row may be in several splits (a train set that is the gallery as well): that alone is no leakage.
        inside = splits[rows][splits[rows].any(axis=1)]
        return bool((inside != inside[:1]).any())

    return Report(
        catalog,
        looks,
        exact=groups(exact, len(catalog)),
        near=[rows for rows in pictures if len(set(contents[rows])) > 1],
        two_labels=[rows for rows in pictures if len(set(catalog.labels[rows])) > 1],
        two_splits=[rows for rows in pictures if leaks(rows)],
    )


def _look_at_all(catalog: Catalog, workers: int | None, progress: bool) -> list[Look]:
    looks: list[Look] = [Look("")] * len(catalog)
    root, starts = os.fspath(catalog.root), range(0, len(catalog), CHUNK)
    tasks = [(root, catalog.paths[first : first + CHUNK]) for first in starts]
    with (
        Workers(workers if len(tasks) > 1 else 0) as pool,
        progress_bar(f"checking {catalog.name}", len(catalog), progress) as advance,
    ):
        for index, found in pool.map(look_at, tasks):
            looks[starts[index] : starts[index] + len(found)] = found
            advance(len(found))
    return looks
