"""Draw any figure by its name, from run folders or files of embeddings, into a file."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Literal

import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from firstpage import durable
from firstpage._spelling import suggest
from firstpage.data import read
from firstpage.errors import UserError
from firstpage.evaluation import Retrieval, evaluate
from firstpage.figures.embedding_map import map_positions, plot_embedding_map
from firstpage.figures.embeddings import EmbeddedImages, read_embeddings
from firstpage.figures.nearest_classes import nearest_by_class, plot_nearest_classes
from firstpage.figures.retrieval_curves import plot_precision_recall, plot_roc
from firstpage.figures.retrieved_lists import draw_retrieved_lists
from firstpage.figures.run_metrics import by_group_size, plot_group_size, plot_training_curves
from firstpage.figures.similarity_histograms import (
    nearest_train,
    plot_class_similarity,
    plot_train_similarity,
    same_class_similarity,
)
from firstpage.figures.style import SUFFIXES, Style, distinct_names, make_style, save
from firstpage.runs.record import Record

MAP_IMAGES = 5_000  # the most images on a map
LISTS = 8  # queries with retrieved lists


@dataclass(frozen=True)
class _Request:
    """The arguments of `draw`; each figure uses those it needs."""

    name: str
    sources: Sequence[str]
    data: str | None
    split: str | None
    style: Style

    def runs(self) -> list[Record]:
        self.check_no_dataset()
        if not self.sources:
            raise UserError(f"{self.name}: name at least one run folder")
        return [Record.read(source) for source in self.sources]

    def embeddings(self) -> dict[str, EmbeddedImages]:
        """Return embeddings by title: the name of the file, with its folders if two have the same name."""
        if not self.sources:
            raise UserError(f"{self.name}: name at least one .npz file of firstpage embed, or run folder")
        catalog = None if self.data is None else read(self.data)
        titles = distinct_names([source.removesuffix(".npz") for source in self.sources])
        return {
            title: read_embeddings(source, catalog)
            for title, source in zip(titles, self.sources, strict=True)
        }

    def splits(self, default: str) -> dict[str, EmbeddedImages]:
        """Return the requested split, or else the default one; all images if there are no splits."""
        return {
            title: images.split(self.split or (default if images.catalog and images.catalog.splits else None))
            for title, images in self.embeddings().items()
        }

    def tests(self) -> dict[str, tuple[EmbeddedImages, EmbeddedImages | None]]:
        """Return the queries and the gallery of each test, None if the queries search one another."""
        return {
            title: images.test() if self.split is None else (images.split(self.split), None)
            for title, images in self.embeddings().items()
        }

    def retrievals(self) -> dict[str, Retrieval]:
        """Return the evaluation of each test."""
        return {title: evaluate(*_tensors(*test)) for title, test in self.tests().items()}

    def check_no_dataset(self) -> None:
        given = [
            name for name, value in (("--data", self.data), ("--split", self.split)) if value is not None
        ]
        if given:
            raise UserError(f"{self.name}: needs no dataset: omit {' and '.join(given)}")

    def check_one_source(self) -> None:
        if len(self.sources) != 1:
            raise UserError(f"{self.name}: takes one .npz file or run folder, but got {len(self.sources)}")


def _tensors(queries: EmbeddedImages, gallery: EmbeddedImages | None) -> tuple[Tensor, ...]:
    """Return embeddings and labels of the queries, and of the gallery if there is one."""
    both = (queries,) if gallery is None else (queries, gallery)
    return tuple(tensor for images in both for tensor in (images.embeddings, images.labels))


def _training(request: _Request, by: Literal["iterations", "triplets"] = "iterations") -> Figure:
    return plot_training_curves(request.runs(), by=by, style=request.style)


def _group_size(request: _Request) -> Figure:
    return plot_group_size(by_group_size(request.runs()), style=request.style)


def _retrieval_curve(request: _Request) -> Figure:
    retrievals = request.retrievals()
    if request.name == "roc":
        return plot_roc({name: each.roc_curve for name, each in retrievals.items()}, style=request.style)
    return plot_precision_recall(
        {name: each.pr_curve for name, each in retrievals.items()}, style=request.style
    )


def _retrieved_lists(request: _Request) -> Image.Image:
    request.check_one_source()
    images, gallery = next(iter(request.tests().values()))
    count = len(images.labels)
    queries = torch.randperm(count, generator=torch.Generator().manual_seed(0))[:LISTS].tolist()
    results = None
    if gallery is not None:
        images = images.join(gallery)
        results = range(count, len(images.labels))
    return draw_retrieved_lists(
        images.embeddings, images.labels, images.image, queries, results, style=request.style
    )


def _embedding_map(request: _Request) -> Figure:
    request.check_one_source()
    images = next(iter(request.splits("test").values())).subsample(MAP_IMAGES)
    load_image = None if images.catalog is None else images.image
    positions, labels = map_positions(images.embeddings), images.labels.cpu().numpy()
    return plot_embedding_map(positions, labels, load_image, style=request.style)


def _class_similarity(request: _Request) -> Figure:
    histograms = {
        name: same_class_similarity(images.embeddings, images.labels)
        for name, images in request.splits("train").items()
    }
    return plot_class_similarity(histograms, style=request.style)


def _train_similarity(request: _Request) -> Figure:
    similarities = {
        name: nearest_train(
            images.split(request.split or "test").embeddings, images.split("train").embeddings
        )
        for name, images in request.embeddings().items()
    }
    return plot_train_similarity(similarities, style=request.style)


def _nearest_classes(request: _Request) -> Figure:
    nearest = {name: nearest_by_class(*_tensors(*test)) for name, test in request.tests().items()}
    return plot_nearest_classes(nearest, style=request.style)


def _theory(request: _Request) -> Figure:
    """Draw a figure that needs no data, by the function and module of its name."""
    if request.sources:
        raise UserError(f"{request.name}: takes no run or file, but got {len(request.sources)}")
    request.check_no_dataset()
    name = request.name.replace("-", "_")
    plot: Callable[..., Figure] = getattr(import_module(f"firstpage.figures.{name}"), f"plot_{name}")
    return plot(style=request.style)


_FIGURES: dict[str, Callable[[_Request], Figure | Image.Image]] = {
    # from run folders
    "training": _training,
    "training-triplets": partial(_training, by="triplets"),
    "group-size": _group_size,
    # from files of embeddings
    "precision-recall": _retrieval_curve,
    "roc": _retrieval_curve,
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
    """Return the names of the figures.

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
    `firstpage embed`, or run folders, whose models embed `data`, by default the run's own. They show its test
    images (`class-similarity`: its training images), or all images if the dataset has no splits or is not
    given. `retrieved-lists` and `train-similarity` of a file need `data`.

    Args:
        name: One of `names()`.
        sources: Run folders or .npz files.
        out: A .png, .svg or .pdf file; `retrieved-lists` can only be .png.
        data: The dataset of the embeddings, for splits and pictures. Only for figures of embeddings.
        split: A split to show in place of the default one. Only for figures of embeddings.
        dark: Draw for dark pages.

    Returns:
        A one-line message for the user.

    Raises:
        UserError: The name is unknown, a source does not fit the figure, or the file cannot be written.

    >>> draw("sphere-densty", [], "density.svg")
    Traceback (most recent call last):
    firstpage.errors.UserError: figure 'sphere-densty': no such name; did you mean ...
    """
    if name not in _FIGURES:
        raise UserError(f"figure {name!r}: no such name; {suggest(name, _FIGURES)}figures.names() lists all")
    suffixes = SUFFIXES[:1] if name == "retrieved-lists" else SUFFIXES
    if Path(out).suffix.lower() not in suffixes:  # before minutes of work
        raise UserError(f"{out}: {name} must be written as {', '.join(suffixes)}")
    durable.check(out)
    request = _Request(name, [os.fspath(source) for source in sources], data, split, make_style(dark))
    return f"wrote {save(_FIGURES[name](request), out)}"
