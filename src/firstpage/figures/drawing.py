"""Any figure by its name, from run folders or files of embeddings into a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from firstpage import durable
from firstpage._spelling import suggest
from firstpage.errors import UserError
from firstpage.figures.style import SUFFIXES, Style, save, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from PIL import Image
    from torch import Tensor

    from firstpage.evaluation import Retrieval
    from firstpage.figures.embedded import Embedded
    from firstpage.runs.record import Record

__all__ = ["draw", "names"]

MAP_IMAGES = 5_000  # that a map is made of at most
LISTS = 8  # queries of the retrieved lists


@dataclass(frozen=True)
class _Order:
    """What was asked for; each figure takes from it what it needs."""

    name: str
    sources: Sequence[str]
    data: str | None
    split: str | None
    look: Style

    def runs(self) -> list[Record]:
        from firstpage.runs.record import Record

        self.check_alone()
        if not self.sources:
            raise UserError(f"{self.name}: name at least one run folder")
        return [Record.read(source) for source in self.sources]

    def embedded(self) -> dict[str, Embedded]:
        """Title → embeddings; the title is the file's name, with its folder's where two have the same."""
        from firstpage.data import read
        from firstpage.figures.embedded import read_embedded

        if not self.sources:
            raise UserError(f"{self.name}: name at least one .npz file of firstpage embed, or run folder")
        catalog = None if self.data is None else read(self.data)
        titles = [Path(source).resolve().name.removesuffix(".npz") for source in self.sources]
        if len({*titles}) < len(titles):
            titles = [source.removesuffix(".npz") for source in self.sources]
        return {
            title: read_embedded(source, catalog) for title, source in zip(titles, self.sources, strict=True)
        }

    def parts(self, split: str) -> dict[str, Embedded]:
        """The embeddings of the split asked for, or of the figure's own; all where there are no splits."""
        return {
            title: whole.part(self.split or (split if whole.catalog and whole.catalog.splits else None))
            for title, whole in self.embedded().items()
        }

    def sides(self) -> dict[str, tuple[Embedded, Embedded | None]]:
        """Who searches whom by the dataset's protocol: queries their gallery, or one another (None)."""
        found: dict[str, tuple[Embedded, Embedded | None]] = {}
        for title, whole in self.embedded().items():
            splits = whole.catalog.splits if whole.catalog else {}
            if self.split is None and {"query", "gallery"} <= {*splits}:
                found[title] = whole.part("query"), whole.part("gallery")
            else:
                found[title] = whole.part(self.split or ("test" if splits else None)), None
        return found

    def searched(self) -> dict[str, Retrieval]:
        """Each embedding's search."""
        from firstpage.evaluation import evaluate

        return {title: evaluate(*_vectors(*sides)) for title, sides in self.sides().items()}

    def check_alone(self) -> None:
        given = [
            name for name, value in (("--data", self.data), ("--split", self.split)) if value is not None
        ]
        if given:
            raise UserError(f"{self.name}: needs no dataset: leave out {' and '.join(given)}")

    def check_one(self) -> None:
        if len(self.sources) != 1:
            raise UserError(f"{self.name}: draws one .npz file or run folder, {len(self.sources)} were named")


def _vectors(queries: Embedded, gallery: Embedded | None) -> tuple[Tensor, ...]:
    """Embeddings and labels of the queries, then of their gallery, if it is another."""
    both = (queries,) if gallery is None else (queries, gallery)
    return tuple(tensor for side in both for tensor in (side.embeddings, side.labels))


def _training(order: _Order) -> Figure:
    from firstpage.figures.training_curves import plot_training_curves

    return plot_training_curves(order.runs(), look=order.look)


def _training_triplets(order: _Order) -> Figure:
    from firstpage.figures.training_curves import plot_training_curves

    return plot_training_curves(order.runs(), by="triplets", look=order.look)


def _group_size(order: _Order) -> Figure:
    from firstpage.figures.group_size import by_group_size, plot_group_size

    return plot_group_size(by_group_size(order.runs()), look=order.look)


def _precision_recall(order: _Order) -> Figure:
    from firstpage.figures.precision_recall import plot_precision_recall

    curves = {name: found.pr_curve for name, found in order.searched().items()}
    return plot_precision_recall(curves, look=order.look)


def _roc(order: _Order) -> Figure:
    from firstpage.figures.roc import plot_roc

    curves = {name: found.roc_curve for name, found in order.searched().items()}
    return plot_roc(curves, look=order.look)


def _retrieved_lists(order: _Order) -> Image.Image:
    import torch

    from firstpage.figures.retrieved_lists import retrieved_lists

    order.check_one()
    part, gallery = next(iter(order.sides().values()))
    lots = torch.Generator().manual_seed(0)
    count = len(part.labels)
    queries = torch.randperm(count, generator=lots)[:LISTS].tolist()
    rows = None
    if gallery is not None:
        part = part.joined(gallery)
        rows = range(count, len(part.labels))
    return retrieved_lists(part.embeddings, part.labels, part.picture, queries, rows, look=order.look)


def _embedding_map(order: _Order) -> Figure:
    from firstpage.figures.embedding_map import map_positions, plot_embedding_map

    order.check_one()
    part = next(iter(order.parts("test").values())).every(MAP_IMAGES)
    picture = None if part.catalog is None else part.picture
    return plot_embedding_map(map_positions(part.embeddings), part.labels.numpy(), picture, look=order.look)


def _class_similarity(order: _Order) -> Figure:
    from firstpage.figures.class_similarity import plot_class_similarity, same_class_similarity

    parts = order.parts("train")
    histograms = {name: same_class_similarity(part.embeddings, part.labels) for name, part in parts.items()}
    return plot_class_similarity(histograms, look=order.look)


def _train_similarity(order: _Order) -> Figure:
    from firstpage.figures.train_similarity import nearest_train, plot_train_similarity

    similarities = {
        name: nearest_train(whole.part(order.split or "test").embeddings, whole.part("train").embeddings)
        for name, whole in order.embedded().items()
    }
    return plot_train_similarity(similarities, look=order.look)


def _nearest_classes(order: _Order) -> Figure:
    from firstpage.figures.nearest_classes import nearest_by_class, plot_nearest_classes

    nearest = {name: nearest_by_class(*_vectors(*sides)) for name, sides in order.sides().items()}
    return plot_nearest_classes(nearest, look=order.look)


def _theory(order: _Order) -> Figure:
    """A figure that is drawn from nothing, by the function of its name in the file of its name."""
    if order.sources:
        raise UserError(
            f"{order.name}: is drawn from theory and takes no run or file; {len(order.sources)} named"
        )
    order.check_alone()
    name = order.name.replace("-", "_")
    plot: Callable[..., Figure] = getattr(import_module(f"firstpage.figures.{name}"), f"plot_{name}")
    return plot(look=order.look)


_FIGURES: dict[str, Callable[[_Order], Figure | Image.Image]] = {
    # from run folders
    "training": _training,
    "training-triplets": _training_triplets,
    "group-size": _group_size,
    # from files of embeddings
    "precision-recall": _precision_recall,
    "roc": _roc,
    "retrieved-lists": _retrieved_lists,
    "embedding-map": _embedding_map,
    "class-similarity": _class_similarity,
    "train-similarity": _train_similarity,
    "nearest-classes": _nearest_classes,
    # from theory
    "sphere-density": _theory,
    "gradient-variance": _theory,
    "sampled-negatives": _theory,
    "loss-shapes": _theory,
}


def names() -> list[str]:
    """The figures `draw` knows.

    >>> names()[:3]
    ['training', 'training-triplets', 'group-size']
    """
    return list(_FIGURES)


def draw(
    name: str,
    sources: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    data: str | None = None,
    split: str | None = None,
    dark: bool = False,
) -> str:
    """Draw a figure into a file.

    `training`, `training-triplets` and `group-size` take run folders. `sphere-density`, `gradient-variance`,
    `sampled-negatives` and `loss-shapes` are theory and take nothing. All others take .npz files of
    `firstpage embed`, or run folders, whose models embed `data` first: the run's own, where it was, if left
    out. They show its test images (`class-similarity`: its train images); of a file without `data`, or with
    `data` without splits, all that are in it. `retrieved-lists` and `train-similarity` of a file need `data`.

    Args:
        name: one of `names()`.
        sources: run folders or .npz files.
        out: .png, .svg or .pdf; `retrieved-lists` is pixels and only .png.
        data: the dataset the embeddings are of, for splits and pictures; only where there are embeddings.
        split: another split than the figure's own; likewise.
        dark: for dark pages.

    Returns:
        One line for a person.

    Raises:
        UserError: an unknown name, a source that does not fit it, or a file that cannot be written.

    >>> draw("sphere-densty", [], "density.svg")
    Traceback (most recent call last):
    firstpage.errors.UserError: figure 'sphere-densty': no such name; did you mean ...
    """
    if name not in _FIGURES:
        raise UserError(f"figure {name!r}: no such name; {suggest(name, _FIGURES)}figures.names() lists all")
    known = SUFFIXES[:1] if name == "retrieved-lists" else SUFFIXES
    if Path(out).suffix.lower() not in known:  # before minutes of work
        raise UserError(f"{out}: {name} is written as {', '.join(known)}: name such a file")
    durable.check(out)
    order = _Order(name, [os.fspath(source) for source in sources], data, split, style(dark))
    return f"wrote {save(_FIGURES[name](order), out)}"
