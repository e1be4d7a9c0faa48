"""Checking a dataset before training: broken files, duplicates, conflicting labels, leakage."""

import os
from functools import partial
from typing import NamedTuple

import numpy as np
from PIL import Image

from firstpage.data.catalog import Catalog
from firstpage.data.decode import Unreadable, decode_image, open_regular
from firstpage.data.file_structure import sign_of_cut
from firstpage.data.near_duplicates import link_near_duplicates, look_closer, sketch
from firstpage.data.progress import progress_bar
from firstpage.data.readers.layout import SPLITS
from firstpage.data.readers.survey import unread_notes
from firstpage.data.report import EXAMPLES, DatasetReport, DuplicateGroup
from firstpage.data.training_plan import fit_batch_size, plan_training
from firstpage.data.workers import Workers, usable_cores
from firstpage.errors import UserError
from firstpage.recipes.recipe import Recipe

CHUNK = 64  # files inspected by one task
GRAY = (128, 128, 128)
SMALL = 64  # sides of images that are looked at, at least
MIN_GRAY = 0.03  # share of the lines of an image


class _FileInfo(NamedTuple):
    """The properties of one image file, or the reason why it cannot be read."""

    reason: str
    format: str = ""  # Pillow's name of it
    width: int = 0  # as stored, before the orientation is applied
    height: int = 0
    fingerprint: str = ""
    sketch: tuple[int, bytes] | None = None  # hash and thumbnail; None without contrast
    cut: str = ""  # what suggests that the end of the image is missing


def check_dataset(
    catalog: Catalog,
    *,
    recipe: Recipe | None = None,
    workers: int | None = None,
    progress: bool = True,
) -> DatasetReport:
    """Decode every image of a dataset once and report all problems, including those that prevent training.

    Args:
        catalog: The dataset.
        recipe: The recipe to train with. Defaults to that of `firstpage train`.
        workers: Number of decoding processes. 0 decodes in this process. Defaults to one per usable core.
        progress: Show a progress bar.

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
    files = _inspect_catalog(catalog, workers, progress)
    readable = [row for row, file in enumerate(files) if not file.reason]
    formats, format_counts = np.unique([files[row].format for row in readable], return_counts=True)
    # Unsupported files are reported as a problem, not as a warning as well.
    reported = {f"{catalog.name}: {note}" for note in unread_notes(catalog.unread)}
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
        sizes=np.array([files[row][2:4] for row in readable], np.int64).reshape(-1, 2),
        unreadable={
            path: file.reason for path, file in zip(catalog.paths, files, strict=True) if file.reason
        },
        cut={catalog.paths[row]: files[row].cut for row in readable if files[row].cut},
        flat=[catalog.paths[row] for row in readable if files[row].sketch is None],
        **_find_duplicates(catalog, files, readable, progress),
        unread=catalog.unread,
        refusal=_training_error(recipe or Recipe(), catalog, [not file.reason for file in files]),
        warnings=[warning for warning in catalog.warnings if warning not in reported],
        notes=catalog.notes + _split_notes(catalog),
    )


def _split_notes(catalog: Catalog) -> list[str]:
    """Return lines about splits that are not used, and about classes that are trained on and tested."""
    labels, splits = catalog.labels, catalog.splits
    unknown = [name for name in splits if name not in SPLITS]
    notes = []
    if unknown:
        names = ", ".join(map(repr, unknown[:EXAMPLES])) + (", …" if len(unknown) > EXAMPLES else "")
        notes.append(f"neither trained on nor tested: split {names}; the names are {', '.join(SPLITS)}")
    tested = [splits[name] for name in ("test", "query") if name in splits]
    if "train" in splits and tested:
        classes = np.unique(labels[np.concatenate(tested)])
        shared = int(np.isin(classes, labels[splits["train"]]).sum())
        count = f"{shared:,} of {len(classes):,} test classes"
        notes += [f"{count} are in training, too: it is no test of new classes"] if shared else []
    return notes


def _inspect_files(root: str, paths: list[str]) -> list[_FileInfo]:
    """Inspect some files. Workers run this."""
    return [_inspect_file(os.path.join(root, path)) for path in paths]


def _inspect_file(path: str) -> _FileInfo:
    try:
        with open_regular(path) as file:
            image = decode_image(file, min_side=SMALL)
            cut = sign_of_cut(file.getvalue(), file.format) or _gray_remainder(image, file.format)
            return _FileInfo("", file.format, *file.size, file.fingerprint(), sketch(image), cut)
    except Unreadable as error:
        return _FileInfo(error.reason)


def _gray_remainder(image: Image.Image, format: str) -> str:
    """Return how much of a JPEG is the exact gray that its decoder puts in place of missing data."""
    width, height = image.size
    corners = [image.getpixel((x, y)) for x in (0, width - 1) for y in (0, height - 1)]
    if format not in ("JPEG", "MPO") or corners.count(GRAY) < 2:
        return ""
    gray = (np.asarray(image) == GRAY).all(2)
    edges = (gray, gray[::-1], gray.T, gray.T[::-1])  # the image may be turned
    share = max(float(np.logical_and.accumulate(edge.all(1)).mean()) for edge in edges)
    return f"its last {share:.0%} are gray" if MIN_GRAY <= share < 1 else ""


def _inspect_catalog(catalog: Catalog, workers: int | None, progress: bool) -> list[_FileInfo]:
    root, starts = os.fspath(catalog.root), range(0, len(catalog), CHUNK)
    tasks = [(root, catalog.paths[start : start + CHUNK]) for start in starts]
    parts: list[list[_FileInfo]] = [[] for _ in tasks]
    with (
        Workers(min(usable_cores() if workers is None else workers, len(tasks))) as pool,
        progress_bar(f"checking {catalog.name}", len(catalog), progress) as advance,
    ):
        for index, part in pool.map(_inspect_files, tasks):
            parts[index] = part
            advance(len(part))
    return [file for part in parts for file in part]


def _find_duplicates(
    catalog: Catalog, files: list[_FileInfo], readable: list[int], progress: bool
) -> dict[str, list[DuplicateGroup]]:
    """Return the groups of equal images, by the attribute of the report that lists them."""
    from scipy.sparse import coo_array  # type: ignore[import-untyped] # workers need no scipy
    from scipy.sparse.csgraph import connected_components  # type: ignore[import-untyped]

    first: dict[str, int] = {}
    copies = [(first.setdefault(files[row].fingerprint, row), row) for row in readable]
    sketches = {row: sketch for row in first.values() if (sketch := files[row].sketch)}
    rows = np.array(list(sketches), np.int64)
    hashes = np.array([code for code, _ in sketches.values()], np.uint64)
    thumbnails = np.frombuffer(b"".join(thumb for _, thumb in sketches.values()), np.uint8).reshape(-1, 192)
    links = rows[link_near_duplicates(hashes, thumbnails)]
    with progress_bar("comparing", len(np.unique(links)), progress and len(links) > CHUNK) as advance:
        near = look_closer(links, partial(_picture, catalog), advance)
    links = np.concatenate([np.array(copies, np.int64).reshape(-1, 2), near])
    graph = coo_array((np.ones(len(links)), links.T), shape=(len(catalog),) * 2)
    splits: list[list[str]] = [[] for _ in catalog.paths]
    for name, split in catalog.splits.items():
        for row in split.tolist():
            splits[row].append(name)

    def group(rows: list[int], identical: bool) -> DuplicateGroup:
        paths = [catalog.paths[row] for row in rows]
        names = [catalog.classes[catalog.labels[row]] for row in rows]
        return DuplicateGroup(paths, names, [splits[row] for row in rows], identical)

    def labels_differ(rows: list[int]) -> bool:
        return len({int(catalog.labels[row]) for row in rows}) > 1

    def leaks(rows: list[int]) -> bool:
        # If one image is in all the splits of the other, the dataset is made that way: no leakage. Nor is it
        # one if a query looks like an image of the gallery: it has to be found.
        memberships = {frozenset(splits[row]) for row in rows}
        return any(
            not (one <= other or other <= one or one ^ other <= {"query", "gallery"})
            for one in memberships
            for other in memberships
        )

    attributes = ("exact_duplicates", "near_duplicates", "two_labels", "two_splits")
    found: dict[str, list[DuplicateGroup]] = {name: [] for name in attributes}
    components = connected_components(graph, directed=False)[1]
    order = np.argsort(components, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(components[order])) + 1)
    for members in sorted(part.tolist() for part in parts if part.size > 1):
        by_content: dict[str, list[int]] = {}
        for row in members:
            by_content.setdefault(files[row].fingerprint, []).append(row)
        copied = [rows for rows in by_content.values() if len(rows) > 1]
        found["exact_duplicates"] += [group(rows, True) for rows in copied]
        found["near_duplicates"] += [group(members, False)] if len(by_content) > 1 else []
        for name, conflict in (("two_labels", labels_differ), ("two_splits", leaks)):
            if conflict(members):
                found[name].append(group(members, any(map(conflict, by_content.values()))))
    return found


def _picture(catalog: Catalog, row: int) -> Image.Image:
    try:
        with open_regular(catalog.path(row)) as file:
            return decode_image(file, min_side=SMALL)
    except Unreadable:  # it is gone by now
        return Image.new("RGB", (SMALL, SMALL))


def _training_error(recipe: Recipe, catalog: Catalog, readable: list[bool]) -> str:
    """Return the error of training on a dataset; "" if there is none, or if it has only test or no images."""
    names = catalog.splits.keys()
    if not any(readable) or (names and names <= {"test", "query", "gallery"}):
        return ""
    try:
        plan_training(fit_batch_size(recipe, catalog), catalog, np.array(readable, np.bool_))
    except UserError as error:
        return str(error)
    return ""
