"""Similarity of test images to their nearest training image (Easy Positive, Fig. 3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from firstpage.errors import UserError
from firstpage.figures.style import Style, escape_label, make_style
from firstpage.pairs import unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["nearest_train", "plot_train_similarity"]


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
    style = style or make_style()
    figure, (axes,) = style.panels()
    for number, (name, values) in enumerate(similarities.items()):
        clipped = values.detach().cpu().double().clamp(-1, 1)  # rounding may exceed 1
        density, edges = torch.histogram(clipped, bins, range=(-1.0, 1.0), density=True)
        axes.stairs(density, edges, label=escape_label(name), **style.curve(number))
    lowest = min(float(values.min()) for values in similarities.values())
    axes.set(xlim=(min(0.0, lowest), 1), ylim=(0, None))
    style.label(axes, "similarity to the nearest training image", "density")
    style.legend(axes, loc="upper left")
    return figure
