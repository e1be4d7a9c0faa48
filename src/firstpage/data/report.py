"""The report on a dataset, its problems and its contents, as text, JSON and a figure."""

import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firstpage import durable
from firstpage._text import shorten
from firstpage.data.decode import printable
from firstpage.data.readers.survey import unread_notes
from firstpage.errors import UserError

EXAMPLES = 5  # of each problem in the text; the JSON lists all


@dataclass(frozen=True)
class DuplicateGroup:
    """A group of equal images, with their classes and splits.

    Attributes:
        paths: The files, in the order of the catalog.
        classes: The class of each file.
        splits: The splits of each file.
        identical: Whether the files are identical in every byte. For conflicting labels or splits, whether
            the conflict is between identical files.

    >>> DuplicateGroup(["a.jpg", "b.jpg"], ["wren", "auk"], [["train"], []], identical=True).classes
    ['wren', 'auk']
    """

    paths: list[str]
    classes: list[str]
    splits: list[list[str]]
    identical: bool

    def __str__(self) -> str:
        files = [
            f"{printable(path)} [{', '.join([printable(name), *splits])}]"
            for path, name, splits in zip(self.paths, self.classes, self.splits, strict=True)
        ]
        rest = [f"{len(files) - EXAMPLES:,} more"] if len(files) > EXAMPLES else []
        return (" = " if self.identical else " ≈ ").join(files[:EXAMPLES] + rest)


@dataclass(frozen=True, eq=False)
class DatasetReport:
    """The result of `firstpage.data.check.check_dataset`.

    Two images are equal if their files are identical, or if they look alike: recompressed, resized or
    slightly brightened. A group contains all images that are linked by a chain of such pairs.

    Attributes:
        name: The kind of dataset.
        root: Its folder.
        images: Number of images.
        splits: Number of images and classes of each split.
        histogram: Number of images of each class.
        formats: Number of readable images of each format.
        sizes: [R, 2] Width and height of each readable image, as stored.
        unreadable: The reason for each unreadable file.
        cut: What suggests that an image is cut, for images that can be decoded. A note, not a problem.
        flat: Images without contrast, which are only compared byte by byte: any two would look alike.
        exact_duplicates: Groups of identical files.
        near_duplicates: Groups of images that look alike, with different files.
        two_labels: Groups with more than one label.
        two_splits: Groups with images in different splits (leakage). One image in several splits is no
            problem: some datasets are made that way.
        unread: Number of image files of each unsupported format, by suffix.
        refusal: The error that training would raise. Empty if it would not.
        warnings: Other warnings of the reader.
        notes: How the reader understood the dataset, such as what it took for classes.

    >>> from firstpage.data.check import Catalog, check_dataset
    >>> catalog = Catalog("x", Path("root"), ["a.jpg"], np.array([0]), ["a"], {})
    >>> report = check_dataset(catalog, workers=0, progress=False)
    >>> report.ok, report.unreadable
    (False, {'a.jpg': 'no such file'})
    >>> print(report.text())
    1 unreadable file
      a.jpg: no such file
    x in root: 1 image, 1 class
      images per class: min 1, median 1, max 1; 1 class of one image
    NOT OK: 1 unreadable file
    >>> json.loads(report.json())["images_a_class"]
    {'min': 1, 'median': 1.0, 'max': 1, 'of_one_image': 1}
    """

    name: str
    root: str
    images: int
    splits: dict[str, dict[str, int]]
    histogram: dict[str, int]
    formats: dict[str, int]
    sizes: NDArray[np.int64]
    unreadable: dict[str, str]
    cut: dict[str, str]
    flat: list[str]
    exact_duplicates: list[DuplicateGroup]
    near_duplicates: list[DuplicateGroup]
    two_labels: list[DuplicateGroup]
    two_splits: list[DuplicateGroup]
    unread: dict[str, int]
    refusal: str
    warnings: list[str]
    notes: list[str]

    @property
    def ok(self) -> bool:
        """Whether all files are readable, no image has two labels or two splits, and training can start.

        Duplicates within one class and split and images that may be cut are only notes.
        """
        return not (self.unreadable or self.two_labels or self.two_splits or self.unread or self.refusal)

    def text(self) -> str:
        """Return a readable summary: the problems, the contents, and the verdict."""
        broken, cut = (
            [f"{printable(path)}: {reason}" for path, reason in files.items()]
            for files in (self.unreadable, self.cut)
        )
        unread = _count(sum(self.unread.values()), "file")
        exact, near = self.exact_duplicates, self.near_duplicates
        problems: list[tuple[str, Sequence[object]]] = [
            (_count(len(broken), "unreadable file"), broken),
            (_count(len(self.two_labels), "image") + " with two labels", self.two_labels),
            (_count(len(self.two_splits), "image") + " in two splits (leakage)", self.two_splits),
            (unread + " of unsupported formats", unread_notes(self.unread)),
            ("training would fail", [self.refusal] if self.refusal else []),
        ]
        notes: list[tuple[str, Sequence[object]]] = [
            (_count(len(cut), "image") + " that may be cut", cut),
            (_count(len(exact), "group") + " of identical files", exact),
            (_count(len(near), "group") + " of near duplicates", near),
            (_count(len(self.flat), "image") + " without contrast", [printable(path) for path in self.flat]),
            (_count(len(self.warnings), "warning") + " of the reader", self.warnings),
        ]
        lines = []
        for title, items in problems + notes:
            lines += [title, *(f"  {item}" for item in items[:EXAMPLES])] if items else []
            lines += [f"  and {len(items) - EXAMPLES:,} more"] if len(items) > EXAMPLES else []
        lines += self._contents()
        failed = ", ".join(title for title, items in problems if items)
        to_train = len(self.sizes) and (not self.splits or "train" in self.splits) and not self.refusal
        possible = "; train takes the data as it is" if to_train else ""
        lines += [f"NOT OK: {failed}{possible}" if failed else "OK"]
        return "\n".join(map(shorten, lines))

    def json(self) -> str:
        """Return the full report as JSON: the attributes, with `sizes` and the classes summarized."""
        content = {"ok": self.ok} | {key: value for key, value in vars(self).items() if key != "sizes"}
        content |= {
            "classes": len(self._class_sizes),
            "images_a_class": _spread(self._class_sizes)
            | {"of_one_image": int((self._class_sizes == 1).sum())},
            "sizes": {"width": _spread(self.sizes[:, 0]), "height": _spread(self.sizes[:, 1])},
        }
        return json.dumps(content, default=asdict, indent=1)

    def figure(self, path: str | Path) -> None:
        r"""Draw the number of images per class and the sizes of the images.

        Args:
            path: The file to write. Its suffix determines the format.

        Raises:
            UserError: There is no such format.

        >>> import tempfile
        >>> from firstpage.data.check import Catalog, check_dataset
        >>> report = check_dataset(Catalog("x", Path(), [], np.zeros(0, np.int64), [], {}), progress=False)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     report.figure(Path(folder, "x.png"))
        ...     Path(folder, "x.png").read_bytes()[:4]
        b'\x89PNG'
        """
        from matplotlib.figure import Figure  # takes half a second to import
        from matplotlib.ticker import MaxNLocator

        figure = Figure(figsize=(11, 4.5), layout="constrained")
        left, right = figure.subplots(1, 2)
        most = int(self._class_sizes.max(initial=1))
        step = -(-most // 60)  # a whole number of images per bar, and at most 60 bars
        left.hist(self._class_sizes, bins=np.arange(0.5, most + step + 0.5, step).tolist(), color="#4477aa")
        left.set(xlabel="images per class", ylabel="classes")
        left.set_title(f"{_count(self.images, 'image')}, {_count(self._class_sizes.size, 'class')}")
        left.xaxis.set_major_locator(MaxNLocator(integer=True))
        left.yaxis.set_major_locator(MaxNLocator(integer=True))
        sizes, counts = np.unique(self.sizes, axis=0, return_counts=True)
        area = 12 + 300 * counts / max(len(self.sizes), 1)
        right.scatter(sizes[:, 0], sizes[:, 1], s=area, alpha=0.4, color="#aa3377", linewidths=0)
        limit = 1.08 * int(self.sizes.max(initial=1))
        right.set(xlabel="width (pixels)", ylabel="height (pixels)", xlim=(0, limit), ylim=(0, limit))
        right.set_title(f"{_count(len(self.sizes), 'readable image')}, {_count(len(sizes), 'size')}")
        right.set_aspect("equal")
        buffer, suffix = io.BytesIO(), Path(path).suffix.lower().removeprefix(".")
        known = figure.canvas.get_supported_filetypes()
        if suffix not in known:
            raise UserError(f"{path}: cannot write {suffix!r}: choose one of {', '.join(sorted(known))}")
        figure.savefig(buffer, format=suffix, dpi=120)
        durable.write(path, buffer.getvalue())

    @property
    def _class_sizes(self) -> NDArray[np.int64]:
        return np.array([count for count in self.histogram.values() if count], np.int64)

    def _contents(self) -> list[str]:
        classes = self._class_sizes
        total = f"{_count(self.images, 'image')}, {_count(classes.size, 'class')}"
        lines = [f"{self.name} in {printable(self.root)}: {total}"]
        lines += [
            f"  {printable(name)}: {_count(split['images'], 'image')}, {_count(split['classes'], 'class')}"
            for name, split in self.splits.items()
        ]
        lines += [f"  {printable(note)}" for note in self.notes]
        if classes.size:
            single = _count(int((classes == 1).sum()), "class")
            lines += [f"  images per class: {_spread_text(classes)}; {single} of one image"]
        if len(self.sizes):
            for side, values in zip(("width", "height"), self.sizes.T, strict=True):
                lines.append(f"  {side}: {_spread_text(values)}")
            lines += [f"  formats: {', '.join(f'{name} {count:,}' for name, count in self.formats.items())}"]
        return lines


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "es" if noun.endswith("ss") else "s")


def _spread(values: NDArray[np.int64]) -> dict[str, Any]:
    if not values.size:
        return {"min": None, "median": None, "max": None}
    return {"min": int(values.min()), "median": float(np.median(values)), "max": int(values.max())}


def _spread_text(values: NDArray[np.int64]) -> str:
    return ", ".join(f"{name} {value:,g}" for name, value in _spread(values).items())
