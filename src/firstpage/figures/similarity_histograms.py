"""Similarity within classes, and of test to training images (Easy Positive, Figs. 2 and 3)."""

from collections.abc import Mapping
from itertools import pairwise

import torch
from matplotlib.figure import Figure
from torch import Tensor

from firstpage.errors import UserError
from firstpage.figures.style import Style, plot_curves
from firstpage.pairs import unit

Histogram = tuple[Tensor, Tensor]  # edges [bins + 1], density [bins]


@torch.no_grad()
def same_class_similarity(
    embeddings: Tensor, labels: Tensor, *, bins: int = 100, block: int = 1024
) -> Histogram:
    """Return a histogram of the cosine similarity of all pairs of images of the same class.

    Args:
        embeddings: [N, D] embeddings.
        labels: [N] their classes.
        bins: Number of bins over [−1, 1].
        block: Number of images of a class per step, which bounds memory to block × class similarities.

    Returns:
        (edges [bins + 1], density [bins]) in float64.

    Raises:
        UserError: No class has two images.

    >>> edges, density = same_class_similarity(torch.eye(3), torch.tensor([0, 0, 1]), bins=4)
    >>> edges.tolist(), density.tolist()
    ([-1.0, -0.5, 0.0, 0.5, 1.0], [0.0, 0.0, 2.0, 0.0])
    """
    vectors = unit(embeddings.float())
    counts = torch.zeros(bins, dtype=torch.int64, device=vectors.device)
    order = labels.argsort(stable=True)
    vectors, classes = vectors[order], labels[order]
    boundaries = [0, *((classes.diff() != 0).nonzero()[:, 0] + 1).tolist(), len(classes)]
    for begin, end in pairwise(boundaries):
        for start in range(begin, end, block):
            similarity = vectors[start : min(start + block, end)] @ vectors[start:end].T
            pairs = similarity[torch.ones_like(similarity, dtype=torch.bool).triu(1)]  # each pair once
            index = ((pairs.double() + 1) * (bins / 2)).long().clamp(0, bins - 1)
            counts += torch.bincount(index, minlength=bins)
    if not counts.any():
        raise UserError("labels: no class has two images, so there is no pair to compare")
    edges = torch.linspace(-1, 1, bins + 1, dtype=torch.float64)
    return edges, counts.cpu().double() / counts.sum().cpu() * (bins / 2)


@torch.no_grad()
def nearest_train(test: Tensor, train: Tensor, *, block: int = 1024) -> Tensor:
    """Return [Q] the cosine similarity of each test image to its nearest training image.

    Args:
        test: [Q, D] embeddings of the test images.
        train: [N, D] embeddings of the training images.
        block: Number of test images per step, which bounds memory to block × N similarities.

    >>> nearest_train(torch.tensor([[0.6, 0.8]]), torch.eye(2))
    tensor([0.8000])
    """
    if not len(test) or not len(train):
        raise UserError(f"test has {len(test)} rows and train has {len(train)}: each must have at least 1")
    queries, gallery = unit(test.float()), unit(train.float())
    blocks = (queries[start : start + block] for start in range(0, len(queries), block))
    return torch.cat([(rows @ gallery.T).amax(dim=1) for rows in blocks])


def plot_class_similarity(histograms: Mapping[str, Histogram], *, style: Style | None = None) -> Figure:
    """Plot a histogram of the similarities within classes for each model.

    Args:
        histograms: Model name → (edges, density) of `same_class_similarity` over the training images.
        style: Colors. Defaults to those for light pages.

    >>> points, labels = torch.randn(8, 4), torch.arange(8) // 4
    >>> figure = plot_class_similarity({"epshn": same_class_similarity(points, labels)})
    >>> figure.axes[0].get_xlabel()
    'similarity of two images of a class'
    """
    lowest = min(float(edges[:-1][density > 0].min()) for edges, density in histograms.values())
    labels, limits = ("similarity of two images of a class", "density"), (min(0.0, lowest), 1)
    return plot_curves(histograms, labels, style, legend="upper left", xlim=limits, ylim=(0, None))


def plot_train_similarity(
    similarities: Mapping[str, Tensor], *, bins: int = 100, style: Style | None = None
) -> Figure:
    """Plot a histogram of the similarity of test images to their nearest training image for each model.

    Args:
        similarities: Model name → [Q] similarities of `nearest_train`.
        bins: Number of bins over [−1, 1].
        style: Colors. Defaults to those for light pages.

    >>> figure = plot_train_similarity({"epshn": torch.tensor([0.4, 0.5, 0.7])})
    >>> figure.axes[0].get_ylabel()
    'density'
    """
    histograms = {}
    for name, values in similarities.items():
        clipped = values.detach().cpu().double().clamp(-1, 1)  # rounding may exceed 1
        density, edges = torch.histogram(clipped, bins, range=(-1.0, 1.0), density=True)
        histograms[name] = edges, density
    lowest = min(float(values.min()) for values in similarities.values())
    labels, limits = ("similarity to the nearest training image", "density"), (min(0.0, lowest), 1)
    return plot_curves(histograms, labels, style, legend="upper left", xlim=limits, ylim=(0, None))
