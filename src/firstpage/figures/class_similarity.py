"""How similar images of one class are: how tightly a class is packed (Easy Positive, Fig. 2)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from firstpage.errors import UserError
from firstpage.figures.style import Style, escape_label, make_style
from firstpage.pairs import unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot_class_similarity", "same_class_similarity"]


@torch.no_grad()
def same_class_similarity(
    embeddings: Tensor, labels: Tensor, *, bins: int = 100, block: int = 1024
) -> tuple[Tensor, Tensor]:
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


def plot_class_similarity(
    histograms: Mapping[str, tuple[Tensor, Tensor]], *, style: Style | None = None
) -> Figure:
    """Plot a histogram of the similarities within classes for each model.

    Args:
        histograms: Model name → (edges, density) of `same_class_similarity` over the training images.
        style: Colors. Defaults to those for light pages.

    >>> points, labels = torch.randn(8, 4), torch.arange(8) // 4
    >>> figure = plot_class_similarity({"epshn": same_class_similarity(points, labels)})
    >>> figure.axes[0].get_xlabel()
    'similarity of two images of a class'
    """
    style = style or make_style()
    figure, (axes,) = style.panels()
    for number, (name, (edges, density)) in enumerate(histograms.items()):
        axes.stairs(density, edges, label=escape_label(name), **style.curve(number))
    lowest = [edges[:-1][density > 0].min() for edges, density in histograms.values()]
    axes.set(xlim=(min(0.0, float(min(lowest))), 1), ylim=(0, None))
    style.label(axes, "similarity of two images of a class", "density")
    style.legend(axes, loc="upper left")
    return figure
