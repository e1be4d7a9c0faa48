"""Draw any figure by its name, from run folders or files of embeddings, into a file."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from matplotlib.figure import Figure
from PIL import Image

from firstpage import durable
from firstpage._spelling import suggest
from firstpage.errors import UserError
from firstpage.evaluation import evaluate
from firstpage.figures.embedding_map import map_positions, plot_embedding_map
from firstpage.figures.embeddings import EmbeddedImages, read_embeddings
from firstpage.figures.gradient_variance import plot_gradient_variance
from firstpage.figures.loss_shapes import plot_loss_shapes
from firstpage.figures.nearest_classes import nearest_by_class, plot_nearest_classes
from firstpage.figures.retrieval_curves import plot_precision_recall, plot_roc
from firstpage.figures.retrieved_lists import draw_retrieved_lists
from firstpage.figures.run_metrics import by_group_size, plot_group_size, plot_training_curves
from firstpage.figures.sampled_negatives import plot_sampled_negatives
from firstpage.figures.similarity_histograms import (
    nearest_train,
    plot_class_similarity,
    plot_train_similarity,
    same_class_similarity,
)
from firstpage.figures.sphere_density import plot_sphere_density
from firstpage.figures.style import SUFFIXES, Style, distinct_names, make_style, save
from firstpage.runs.record import Record
from firstpage.runs.run_data import read_data

MAP_IMAGES = 5_000  # the most images on a map
LISTS = 8  # queries with retrieved lists
_Value = TypeVar("_Value")


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
        if self.name in ("retrieved-lists", "embedding-map") and len(self.sources) != 1:
            raise UserError(f"{self.name}: takes one .npz file or run folder, but got {len(self.sources)}")
        if not self.sources:
            raise UserError(f"{self.name}: name at least one .npz file of firstpage embed, or run folder")
        catalog = None if self.data is None else read_data(None, self.data)
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

    def of_tests(self, compute: Callable[..., _Value]) -> dict[str, _Value]:
        """Return what a function computes of the embeddings and labels of each test."""
        values = {}
        for title, (queries, gallery) in self.tests().items():
            searched = () if gallery is None else (gallery.embeddings, gallery.labels)
            values[title] = compute(queries.embeddings, queries.labels, *searched)
        return values

    def check_no_dataset(self) -> None:
        options = {"--data": self.data, "--split": self.split}
        given = [name for name, value in options.items() if value is not None]
        if given:
            raise UserError(f"{self.name}: needs no dataset: omit {' and '.join(given)}")


def _roc(request: _Request) -> Figure:
    found = request.of_tests(evaluate)
    areas = {name: each.auc for name, each in found.items()}
    return plot_roc({name: each.roc_curve for name, each in found.items()}, areas, style=request.style)


def _retrieved_lists(request: _Request) -> Image.Image:
    ((images, gallery),) = request.tests().values()
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
    (images,) = request.splits("test").values()
    images = images.subsample(MAP_IMAGES)
    load_image = None if images.catalog is None else images.image
    positions, labels = map_positions(images.embeddings), images.labels.cpu().numpy()
    return plot_embedding_map(positions, labels, load_image, style=request.style)


def _train_similarity(request: _Request) -> Figure:
    similarities = {}
    for name, images in request.embeddings().items():
        test, train = images.split(request.split or "test"), images.split("train")
        similarities[name] = nearest_train(test.embeddings, train.embeddings)
    return plot_train_similarity(similarities, style=request.style)


def _theory(plot: Callable[..., Figure], request: _Request) -> Figure:
    """Draw a figure that needs no data."""
    if request.sources:
        raise UserError(f"{request.name}: takes no run or file, but got {len(request.sources)}")
    request.check_no_dataset()
    return plot(style=request.style)


# The sentence of each, and what draws it.
_FIGURES: dict[str, tuple[str, Callable[[_Request], Figure | Image.Image]]] = {
    # from run folders
    "training": (
        "P@1 along training, by step, of run folders.",
        lambda request: plot_training_curves(request.runs(), style=request.style),
    ),
    "training-triplets": (
        "P@1 along training, by sampled triplets, of run folders.",
        lambda request: plot_training_curves(request.runs(), by="triplets", style=request.style),
    ),
    "group-size": (
        "R@1 against images per class, of run folders.",
        lambda request: plot_group_size(by_group_size(request.runs()), style=request.style),
    ),
    # from runs or files of embeddings
    "precision-recall": (
        "Precision-recall curves of runs or embeddings.",
        lambda request: plot_precision_recall(
            {name: each.pr_curve for name, each in request.of_tests(evaluate).items()}, style=request.style
        ),
    ),
    "roc": ("ROC curves of runs or embeddings.", _roc),
    "retrieved-lists": (
        "First pages with green and red frames, of one run or file of embeddings.",
        _retrieved_lists,
    ),
    "embedding-map": ("t-SNE with thumbnails, of one run or file of embeddings.", _embedding_map),
    "class-similarity": (
        "Similarities within training classes, of runs or embeddings.",
        lambda request: plot_class_similarity(
            {
                name: same_class_similarity(images.embeddings, images.labels)
                for name, images in request.splits("train").items()
            },
            style=request.style,
        ),
    ),
    "train-similarity": (
        "Similarity of test images to the nearest training image, of runs or embeddings.",
        _train_similarity,
    ),
    "nearest-classes": (
        "Nearest same-class against nearest other-class image, of runs or embeddings.",
        lambda request: plot_nearest_classes(request.of_tests(nearest_by_class), style=request.style),
    ),
    # from theory
    "sphere-density": (
        "Density of distances on the sphere, for several dimensions; takes nothing.",
        partial(_theory, plot_sphere_density),
    ),
    "gradient-variance": (
        "Variance of the gradient's direction against distance; takes nothing.",
        partial(_theory, plot_gradient_variance),
    ),
    "sampled-negatives": (
        "Distances of the negatives each strategy samples; takes nothing.",
        partial(_theory, plot_sampled_negatives),
    ),
    "loss-shapes": ("Loss against pairwise distance; takes nothing.", partial(_theory, plot_loss_shapes)),
}


def names() -> list[str]:
    """Return the names of the figures.

    >>> names()[:3]
    ['training', 'training-triplets', 'group-size']
    """
    return list(_FIGURES)


def describe() -> dict[str, str]:
    """Return a sentence about each of the figures.

    >>> describe()["roc"]
    'ROC curves of runs or embeddings.'
    """
    return {name: sentence for name, (sentence, _) in _FIGURES.items()}


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
        data: The dataset of the embeddings, or a run folder for its dataset, for splits and pictures. Only
            for figures of embeddings.
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
        raise UserError(
            f"figure {name!r}: no such name; {suggest(name, _FIGURES)}firstpage list figures names all"
        )
    suffixes = SUFFIXES[:1] if name == "retrieved-lists" else SUFFIXES
    if Path(out).suffix.lower() not in suffixes:  # before minutes of work
        raise UserError(f"{out}: {name} must be written as {', '.join(suffixes)}")
    durable.check(out)
    request = _Request(name, [os.fspath(source) for source in sources], data, split, make_style(dark))
    return f"wrote {save(_FIGURES[name][1](request), out)}"
