"""At which distances the negatives lie that a strategy takes (Sampling Matters, Fig. 3b)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor

from firstpage.figures.style import Style, style
from firstpage.mining import mine
from firstpage.pairs import Pairs, unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot_sampled_negatives", "sampled_distances", "simulated_classes"]

STRATEGIES = ("uniform", "semihard", "hard", "distance_weighted")


def simulated_classes(
    classes: int = 1024, dimensions: int = 16, spread: float = 0.8, *, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Two images of each of many classes strewn over the sphere, on average `spread` apart.

    The dimensions are few on purpose. In 128 a batch would have to be astronomically large to hold a negative
    at each distance, and a strategy can only take what is there.

    >>> embeddings, labels = simulated_classes(classes=3)
    >>> embeddings.shape, labels.tolist()
    (torch.Size([6, 16]), [0, 1, 2, 0, 1, 2])
    """
    lots = Generator().manual_seed(seed)
    first = unit(torch.randn(classes, dimensions, generator=lots))
    aside = torch.randn(classes, dimensions, generator=lots)
    aside = unit(aside - (aside * first).sum(dim=1, keepdim=True) * first)
    apart = (spread * (0.8 + 0.4 * torch.rand(classes, 1, generator=lots))).clamp(0, 2)  # ± a fifth
    similarity = 1 - apart.square() / 2
    second = similarity * first + (1 - similarity.square()).sqrt() * aside
    return torch.cat([first, second]), torch.arange(classes).repeat(2)


def sampled_distances(
    embeddings: Tensor,
    labels: Tensor,
    strategies: Sequence[str] = STRATEGIES,
    *,
    draws: int = 4,
    block: int = 512,
    seed: int = 0,
) -> dict[str, Tensor]:
    """Strategy → the distances of the negatives it takes, with every image as the query in turn.

    Each query takes a random positive and then, by `mining`, a negative for it, `draws` times.

    Args:
        embeddings: [N, D], taken as one batch.
        labels: [N] their classes.
        strategies: names of negative strategies that take one negative a positive.
        draws: how often each query draws.
        block: queries at a time, so that N × N distances never exist.
        seed: of the draws.

    >>> points = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8], [0.0, 1.0]])
    >>> sampled_distances(points, torch.tensor([0, 0, 1, 1]), ["hard"], draws=1)["hard"]
    tensor([0.8944, 0.2828, 0.2828, 0.8944])
    """
    lots = Generator(embeddings.device).manual_seed(seed)
    ids = torch.arange(len(labels), device=labels.device)
    found: dict[str, list[Tensor]] = {name: [] for name in strategies}
    for start in range(0, len(ids), block):
        rows = ids[start : start + block]
        pairs = Pairs.of(
            embeddings[rows], labels[rows], embeddings, labels, image_ids=rows, candidate_ids=ids
        )
        distance = pairs.distance
        for name in strategies:
            for _ in range(draws):
                mined = mine(pairs, "random", name, generator=lots)
                found[name].append(mined.of_negatives(distance)[mined.comparable])
    return {name: torch.cat(parts) for name, parts in found.items()}


def plot_sampled_negatives(
    distances: Mapping[str, Tensor] | None = None, *, bins: int = 50, look: Style | None = None
) -> Figure:
    """Histogram of the distances of sampled negatives for each strategy.

    Args:
        distances: strategy → distances, of `sampled_distances`; those of `simulated_classes` if left out.
        bins: over the distances from 0 to 2.
        look: light or dark.

    >>> figure = plot_sampled_negatives({"hard": torch.tensor([0.5, 0.6])})
    >>> figure.axes[0].get_xlabel()
    'distance of the sampled negative'
    """
    look = look or style()
    figure, (axes,) = look.panels()
    if distances is None:
        distances = sampled_distances(*simulated_classes())
    for number, (name, values) in enumerate(distances.items()):
        density, edges = torch.histogram(values.detach().cpu().float(), bins, range=(0.0, 2.0), density=True)
        axes.stairs(density, edges, label=name.replace("_", " "), **look.curve(number))
    axes.set(xlim=(0, 2), ylim=(0, None))
    look.label(axes, "distance of the sampled negative", "density")
    look.legend(axes, loc="upper right")
    return figure
