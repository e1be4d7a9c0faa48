"""How near test images come to what was trained on (Easy Positive, Fig. 3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from firstpage.errors import UserError
from firstpage.figures.style import Style, literal, style
from firstpage.pairs import unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["nearest_train", "plot_train_similarity"]


@torch.no_grad()
def nearest_train(test: Tensor, train: Tensor, *, block: int = 1024) -> Tensor:
    """[Q]: the cosine of each test image with its nearest training image.

    Args:
        test: [Q, D] embeddings of classes never seen.
        train: [N, D] embeddings of the training images.
        block: test images at a time: no more than block × N similarities exist.

    >>> nearest_train(torch.tensor([[0.6, 0.8]]), torch.eye(2))
    tensor([0.8000])
    """
    if not len(test) or not len(train):
        raise UserError(f"test has {len(test)} rows and train {len(train)}: each needs at least one")
    queries, gallery = unit(test.float()), unit(train.float())
    blocks = (queries[start : start + block] for start in range(0, len(queries), block))
    return torch.cat([(rows @ gallery.T).amax(dim=1) for rows in blocks])


def plot_train_similarity(
    similarities: Mapping[str, Tensor], *, bins: int = 100, look: Style | None = None
) -> Figure:
    """Histogram of the similarity of test images to their nearest training image, for each model.

    Args:
        similarities: name → [Q] of `nearest_train`.
        bins: over [−1, 1].
        look: light or dark.

    >>> figure = plot_train_similarity({"epshn": torch.tensor([0.4, 0.5, 0.7])})
    >>> figure.axes[0].get_ylabel()
    'density'
    """
    look = look or style()
    figure, (axes,) = look.panels()
    for number, (name, values) in enumerate(similarities.items()):
        clipped = values.detach().cpu().double().clamp(-1, 1)  # rounding may pass 1
        density, edges = torch.histogram(clipped, bins, range=(-1.0, 1.0), density=True)
        axes.stairs(density, edges, label=literal(name), **look.curve(number))
    least = min(float(values.min()) for values in similarities.values())
    axes.set(xlim=(min(0.0, least), 1), ylim=(0, None))
    look.label(axes, "similarity to the nearest training image", "density")
    look.legend(axes, loc="upper left")
    return figure
