"""Marks of people: results of searches that they called right or wrong, to be trained on as pairs."""

import hashlib
import json
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Self

import numpy as np
from numpy.typing import NDArray

from firstpage import durable
from firstpage._reading import parse_json
from firstpage.data.decode import Unreadable, decode_image, printable
from firstpage.errors import UserError

FILE = "feedback.jsonl"
QUERIES = "feedback"  # folder of uploaded queries, beside the file
MAX_BYTES = 2**28


@dataclass(frozen=True, eq=False)
class Marks:
    """Pairs of images, a query and one of its results, that a person called right or wrong.

    Args:
        folder: The folder of `feedback.jsonl`, which the paths of uploaded queries are relative to.
        queries: [P] paths of the queries: absolute, or `feedback/NAME` for uploaded ones.
        results: [P] absolute paths of the results.
        right: [P] whether the result is right for the query.

    >>> marks = Marks(Path("index"), ["feedback/1.jpg", "/a.jpg"], ["/a.jpg", "/b.jpg"], [True, False])
    >>> len(marks), marks.images, marks.pairs.tolist()
    (2, ['feedback/1.jpg', '/a.jpg', '/b.jpg'], [[0, 1], [1, 2]])
    """

    folder: Path
    queries: Sequence[str]
    results: Sequence[str]
    right: Sequence[bool]

    def __len__(self) -> int:
        return len(self.right)

    @property
    def images(self) -> list[str]:
        """The images, each once."""
        return list(
            dict.fromkeys(path for pair in zip(self.queries, self.results, strict=True) for path in pair)
        )

    @property
    def pairs(self) -> NDArray[np.int64]:
        """[P, 2] numbers of query and result among `images`."""
        number = {path: row for row, path in enumerate(self.images)}
        pairs = [[number[path] for path in pair] for pair in zip(self.queries, self.results, strict=True)]
        return np.array(pairs, np.int64).reshape(-1, 2)

    @property
    def digest(self) -> str:
        """A digest of the pairs, equal for equal marks in any folder; uploads are named by content."""
        text = json.dumps([list(self.queries), list(self.results), list(self.right)])
        return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()

    def path(self, image: str) -> Path:
        """Return the file of one of the images."""
        return self.folder / image

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Read the marks of an index or of a run. Of several marks of a pair, the last holds.

        Marks whose images are gone or cannot be decoded are left out, with a warning.

        Args:
            path: `feedback.jsonl`, or the folder of an index or run that has one.

        Raises:
            FileNotFoundError: There is no such file.
            UserError: A line is not valid, or no mark is left.

        >>> Marks.read("nowhere")
        Traceback (most recent call last):
        FileNotFoundError: nowhere: no feedback.jsonl there; marking results in firstpage serve makes one
        """
        file = Path(path, FILE) if Path(path).is_dir() else Path(path)
        if not file.is_file():
            raise FileNotFoundError(f"{path}: no {FILE} there; marking results in firstpage serve makes one")
        with durable.open_regular(file, MAX_BYTES) as opened:
            lines = opened.read().split(b"\n")
        if lines.pop():  # of a writer that was killed
            warnings.warn(f"{file}: its last line is incomplete and is left out", stacklevel=2)
        right: dict[tuple[str, str], bool] = {}
        for number, line in enumerate(lines, start=1):
            if line.strip():
                query, result, mark = _parse(line, f"{file}, line {number}")
                right.pop((query, result), None)  # the last one holds, and its place
                right[query, result] = mark
        folder = file.parent.absolute()
        readable: dict[str, bool] = {}
        kept = {
            pair: mark
            for pair, mark in right.items()
            if all(_is_readable(folder, image, readable) for image in pair)
        }
        if len(kept) < len(right):
            gone = printable(next(image for image, fine in readable.items() if not fine))
            warnings.warn(
                f"{file}: left out {len(right) - len(kept):,} marks of unreadable images, such as {gone}",
                stacklevel=2,
            )
        if not kept:
            raise UserError(f"{file}: no mark to learn from: mark results in firstpage serve")
        return cls(folder, [query for query, _ in kept], [result for _, result in kept], list(kept.values()))

    def save(self, folder: Path) -> None:
        """Write `feedback.jsonl` and the uploaded queries into another folder, such as that of a run."""
        for image in self.images:
            if not os.path.isabs(image):
                (folder / QUERIES).mkdir(parents=True, exist_ok=True)
                durable.write(folder / image, self.path(image).read_bytes())
        rows = zip(self.queries, self.results, self.right, strict=True)
        lines = [
            json.dumps({"query": query, "result_path": result, "right": right})
            for query, result, right in rows
        ]
        durable.write(folder / FILE, "".join(f"{line}\n" for line in lines).encode())


def _parse(line: bytes, place: str) -> tuple[str, str, bool]:
    """Return the query, the result and the mark of a line."""
    remedy = "remove the line"
    try:
        table = parse_json(line)
    except UserError as error:
        raise UserError(f"{place}: {error}: {remedy}") from None
    if not isinstance(table, dict):
        raise UserError(f"{place}: must be a table: {remedy}")
    query, result, right = (table.get(name) for name in ("query", "result_path", "right"))
    if not isinstance(query, str) or not isinstance(result, str) or not isinstance(right, bool):
        raise UserError(f"{place}: must have query, result_path and right (true or false): {remedy}")
    for path in (query, result):
        parts = PurePosixPath(path).parts
        if "\0" in path or (
            not os.path.isabs(path) and (len(parts) != 2 or parts[0] != QUERIES or ".." in parts)
        ):
            raise UserError(f"{place}: {path!r} must be absolute, or in the folder {QUERIES}: {remedy}")
    return query, result, right


def _is_readable(folder: Path, image: str, known: dict[str, bool]) -> bool:
    if image not in known:
        try:
            decode_image(folder / image, min_side=32)
            known[image] = True
        except Unreadable:
            known[image] = False
    return known[image]
