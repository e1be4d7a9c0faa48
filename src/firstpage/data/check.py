"""Checking a dataset before a GPU hour is spent on it: broken files, duplicates, wrong labels, leaks."""

from __future__ import annotations

import os
import warnings
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from firstpage.data.catalog import Catalog
from firstpage.data.decode import FORMATS, Unreadable, decode_file, fingerprint, open_regular
from firstpage.data.near_duplicates import link_near_duplicates, sketch
from firstpage.data.progress import progress_bar
from firstpage.data.readers.survey import unread_notes
from firstpage.data.report import DatasetReport, DuplicateGroup
from firstpage.data.workers import Workers

CHUNK = 64  # files looked at by one task


class FileInfo(NamedTuple):
    """What one file is: the reason why it cannot be read, or its properties.

    Attributes:
        reason: Empty for a file that can be read.
        format: As Pillow calls it.
        width: Of the file as stored, before its orientation is applied.
        height: As `width`.
        fingerprint: Of the bytes.
        sketch: Hash and thumbnail; None if the image is flat.

    Example:
        >>> FileInfo("empty file").fingerprint
        ''
    """

    reason: str
    format: str = ""
    width: int = 0
    height: int = 0
    fingerprint: str = ""
    sketch: tuple[int, bytes] | None = None


def inspect_files(root: str, paths: list[str]) -> list[FileInfo]:
    """Looks at some files: what a worker does.

    Example:
        >>> inspect_files("", ["nowhere.jpg"])[0].reason
        'no such file'
    """
    return [_look(os.path.join(root, path)) for path in paths]


def check_dataset(catalog: Catalog, *, workers: int | None = None, progress: bool = True) -> DatasetReport:
    """Opens every image once, and finds what is wrong with a dataset, and whether training would refuse it.

    Args:
        catalog: The dataset.
        workers: Decoding processes; None for one per usable core, 0 for this process alone.
        progress: Whether to show a progress bar.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as root:
        ...     for name in ("a.png", "b.png"):
        ...         Image.linear_gradient("L").save(Path(root, name))
        ...     catalog = Catalog("x", Path(root), ["a.png", "b.png"], np.array([0, 1]), ["a", "b"], {})
        ...     report = check_dataset(catalog, workers=0, progress=False)
        >>> print(report.two_labels[0])
        a.png [a] = b.png [b]
    """
    looks = _looks(catalog, workers, progress)
    readable = [row for row, seen in enumerate(looks) if not seen.reason]
    formats, format_counts = np.unique([looks[row].format for row in readable], return_counts=True)
    exact, near, two_labels, two_splits = _same(catalog, looks, readable)
    told = {f"{catalog.name}: {line}" for line in unread_notes(catalog.unread)}  # a fault, not only a warning
    class_sizes = np.bincount(catalog.labels, minlength=len(catalog.classes))
    return DatasetReport(
        name=catalog.name,
        root=os.fspath(catalog.root),
        images=len(catalog),
        splits={
            name: {"images": rows.size, "classes": np.unique(catalog.labels[rows]).size}
            for name, rows in catalog.splits.items()
        },
        histogram=dict(zip(catalog.classes, class_sizes.tolist(), strict=True)),
        formats=dict(zip(formats.tolist(), format_counts.tolist(), strict=True)),
        sizes=np.array([looks[row][2:4] for row in readable], np.int64).reshape(-1, 2),
        unreadable={
            path: seen.reason for path, seen in zip(catalog.paths, looks, strict=True) if seen.reason
        },
        flat=[catalog.paths[row] for row in readable if looks[row].sketch is None],
        exact_duplicates=exact,
        near_duplicates=near,
        two_labels=two_labels,
        two_splits=two_splits,
        unread=catalog.unread,
        refusal=_refusal(catalog, np.array([not seen.reason for seen in looks], np.bool_)),
        warnings=[warning for warning in catalog.warnings if warning not in told],
    )


def _look(path: str) -> FileInfo:
    try:
        with open_regular(path) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            digest = fingerprint(file)
            image = decode_file(file, min_side=64)
            # The decoded image no longer tells size and format as stored; to open it again is safe by now.
            file.seek(0)
            header = Image.open(file, formats=FORMATS)
            return FileInfo("", header.format or "", *header.size, digest, sketch(image))
    except Unreadable as error:
        return FileInfo(error.reason)


def _looks(catalog: Catalog, workers: int | None, progress: bool) -> list[FileInfo]:
    root, starts = os.fspath(catalog.root), range(0, len(catalog), CHUNK)
    tasks = [(root, catalog.paths[start : start + CHUNK]) for start in starts]
    found: list[list[FileInfo]] = [[] for _ in tasks]
    with (
        Workers(workers if len(tasks) > 1 else 0) as pool,
        progress_bar(f"checking {catalog.name}", len(catalog), progress) as advance,
    ):
        for index, part in pool.map(inspect_files, tasks):
            found[index] = part
            advance(len(part))
    return [seen for part in found for seen in part]


def _same(catalog: Catalog, looks: list[FileInfo], readable: list[int]) -> tuple[list[DuplicateGroup], ...]:
    """Groups of the same images: exact, near, under two labels, in two splits."""
    from scipy.sparse import coo_array  # type: ignore[import-untyped] # workers need no scipy
    from scipy.sparse.csgraph import connected_components  # type: ignore[import-untyped]

    first: dict[str, int] = {}
    copies = [(first.setdefault(looks[row].fingerprint, row), row) for row in readable]
    sketches = {row: known for row in first.values() if (known := looks[row].sketch)}
    rows = np.array(list(sketches), np.int64)
    hashes = np.array([code for code, _ in sketches.values()], np.uint64)
    thumbnails = np.frombuffer(b"".join(thumb for _, thumb in sketches.values()), np.uint8).reshape(-1, 192)
    links = np.concatenate(
        [np.array(copies, np.int64).reshape(-1, 2), rows[link_near_duplicates(hashes, thumbnails)]]
    )
    graph = coo_array((np.ones(len(links)), links.T), shape=(len(catalog),) * 2)
    splits: list[list[str]] = [[] for _ in catalog.paths]
    for name, split in catalog.splits.items():
        for row in split.tolist():
            splits[row].append(name)

    def same(rows: list[int], identical: bool) -> DuplicateGroup:
        names = [catalog.classes[catalog.labels[row]] for row in rows]
        return DuplicateGroup(
            [catalog.paths[row] for row in rows], names, [splits[row] for row in rows], identical
        )

    def differ(rows: list[int]) -> bool:
        return len({int(catalog.labels[row]) for row in rows}) > 1

    def leak(rows: list[int]) -> bool:
        # Two images of which one is in all the splits of the other leak nothing that is not so by design.
        kinds = {frozenset(splits[row]) for row in rows}
        return any(not (one <= other or other <= one) for one in kinds for other in kinds)

    exact: list[DuplicateGroup] = []
    near: list[DuplicateGroup] = []
    two_labels: list[DuplicateGroup] = []
    two_splits: list[DuplicateGroup] = []
    for members in _groups(connected_components(graph, directed=False)[1]):
        by_content: dict[str, list[int]] = {}
        for row in members:
            by_content.setdefault(looks[row].fingerprint, []).append(row)
        exact += [same(rows, True) for rows in by_content.values() if len(rows) > 1]
        near += [same(members, False)] if len(by_content) > 1 else []
        for conflict, found in ((differ, two_labels), (leak, two_splits)):
            if conflict(members):
                found.append(same(members, any(map(conflict, by_content.values()))))
    return exact, near, two_labels, two_splits


def _refusal(catalog: Catalog, readable: NDArray[np.bool_]) -> str:
    """What training says to a dataset; nothing if it is all for testing, or nothing of it can be read."""
    from firstpage.data.splits import split_catalog
    from firstpage.recipes.settings import TrainSettings

    names = catalog.splits.keys()
    if not readable.any() or (names and names <= {"test", "query", "gallery"}):
        return ""
    # Without a test half it is the protocol that has to be another, not the data.
    protocol = "fair" if names and names <= {"train", "val"} else "paper"
    try:
        roles = split_catalog(catalog, readable, TrainSettings(protocol=protocol))
        for search in filter(None, (roles.validation, roles.test)):
            search.check(catalog.labels)
    except ValueError as error:
        return str(error)
    return ""


def _groups(codes: NDArray[np.int32]) -> list[list[int]]:
    """The rows of each code that occurs more than once, by their first row."""
    order = np.argsort(codes, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(codes[order])) + 1)
    return sorted(group.tolist() for group in groups if group.size > 1)
