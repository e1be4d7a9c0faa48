"""Whether the marks that a run was trained on are heeded: how many of them rank right, before and after."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import numpy as np
from torch import Tensor

from firstpage import durable
from firstpage._reading import read_json
from firstpage.data.marks import Marks
from firstpage.errors import UserError
from firstpage.models.embedder import Embedder
from firstpage.recipes.recipe import build_settings
from firstpage.runs.opening import OpenRun, open_run

FILE = "marks.json"
PAGE = 10  # results of a first page
IMAGES = 2000  # searched ones, at most


@dataclass(frozen=True)
class MarkRanks:
    """How many marks rank right: a right result on the first page of its query, or a wrong one not on it.

    Args:
        right: Number of results that were marked right.
        wrong: Number of results that were marked wrong.
        images: Number of images that were searched: marked ones, and of the test.
        after: How many marks rank right by the model of the run.
        before: How many did by the model whose results were marked; None if it is not known.
        tested: Number of marks with an image of the test, whose figures they make a little better.

    >>> MarkRanks(3, 4, 500, after=6, before=2).text()
    '7 marks (3 right, 4 wrong): 2 ranked right before, 6 after, among 500 images'
    """

    right: int
    wrong: int
    images: int
    after: int
    before: int | None = None
    tested: int = 0

    def text(self) -> str:
        """Return the numbers in one line."""
        before = "" if self.before is None else f"{self.before:,} ranked right before, "
        ranked = f"{before}{self.after:,} after" if before else f"{self.after:,} rank right"
        note = f"; {self.tested:,} are of test images, so its figures are optimistic" if self.tested else ""
        return (
            f"{self.right + self.wrong:,} marks ({self.right:,} right, {self.wrong:,} wrong): {ranked}, "
            f"among {self.images:,} images{note}"
        )

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> Self | None:
        """Read what `measure_marks` has found for a run; None if it was not trained on marks.

        >>> MarkRanks.read("nowhere") is None
        True
        """
        path = Path(folder, FILE)
        if not path.exists():
            return None
        table = read_json(path)
        if not isinstance(table, dict):
            raise UserError(f"{path}: must be a table: remove it")
        ranks: Self = build_settings(cls, table, f"{path}: ")
        return ranks


def measure_marks(
    folder: str | os.PathLike[str],
    before: str | os.PathLike[str] | None = None,
    *,
    device: str | None = None,
    cache: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> MarkRanks:
    """Rank the marked results by the model of a run, and by the one before, and keep the numbers in the run.

    Each marked query searches the marked images and the test images of the run, of which at most `IMAGES`
    are taken at random.

    Args:
        folder: A run that was trained on marks.
        before: Folder of the model whose results were marked.
        device: `cuda` or `cpu`. Defaults to a GPU if available.
        cache: Folder for cached pixels. Defaults to the user's cache.
        progress: Show progress bars.

    Raises:
        FileNotFoundError: The run has no marks.

    >>> measure_marks("nowhere")
    Traceback (most recent call last):
    FileNotFoundError: nowhere: no feedback.jsonl there; marking results in firstpage serve makes one
    """
    marks = Marks.read(folder)
    run = open_run(folder, device=device, cache=cache, progress=progress)
    tested, searched = _test_files(run)
    pairs = marks.pairs
    files = [str(marks.path(image)) for image in marks.images]
    others = [file for file in searched if file not in {*files}]
    images = [*files, *others]
    known = None
    if before is not None and Path(before, "config.json").is_file():
        known = Embedder.load(before, run.model.device)
    count = [
        None if model is None else _count(model.embed(images, progress=progress), pairs, marks.right)
        for model in (known, run.model)
    ]
    own = {row for row, file in enumerate(files) if file in tested}
    assert count[1] is not None
    ranks = MarkRanks(
        sum(marks.right),
        len(marks) - sum(marks.right),
        len(images),
        count[1],
        count[0],
        sum(bool(own & {*pair}) for pair in pairs.tolist()),
    )
    durable.write(Path(folder, FILE), f"{json.dumps(asdict(ranks), indent=1)}\n".encode())
    return ranks


def describe_marks(
    folder: str | os.PathLike[str],
    feedback: str | os.PathLike[str],
    *,
    device: str | None = None,
    cache: str | os.PathLike[str] | None = None,
) -> str:
    """Return in one line how the marks of a run rank, measured once; see `measure_marks`.

    Args:
        folder: The run.
        feedback: The index whose results were marked, or its `feedback.jsonl`.
        device: `cuda` or `cpu`. Defaults to a GPU if available.
        cache: Folder for cached pixels. Defaults to the user's cache.

    >>> describe_marks("nowhere", "index")
    Traceback (most recent call last):
    FileNotFoundError: nowhere: no feedback.jsonl there; marking results in firstpage serve makes one
    """
    index = Path(feedback) if Path(feedback).is_dir() else Path(feedback).parent
    known = MarkRanks.read(folder)
    return (known or measure_marks(folder, index / "model", device=device, cache=cache)).text()


def _test_files(run: OpenRun) -> tuple[set[str], list[str]]:
    """Return the files of the test, and those of them that are searched."""
    test = run.test
    searched = test.queries if test.gallery is None else test.gallery
    rows = np.union1d(test.queries, searched)
    if len(searched) > IMAGES:
        searched = np.sort(np.random.default_rng(0).permutation(searched)[:IMAGES])
    name = [os.path.abspath(run.catalog.path(int(row))) for row in rows]
    return {*name}, [os.path.abspath(run.catalog.path(int(row))) for row in searched]


def _count(vectors: Tensor, pairs: np.ndarray, right: Sequence[bool]) -> int:
    """Return how many marked results rank right among all images but their query."""
    queries, results = vectors[pairs[:, 0]], vectors[pairs[:, 1]]
    own = (queries * results).sum(dim=1)
    closer = (queries @ vectors.T > own[:, None] + 1e-6).sum(dim=1).numpy() - 1  # the query itself is closer
    return int(((closer < PAGE) == np.asarray(right, bool)).sum())
