"""Distances of the negatives that a mining strategy samples (Sampling Matters, Fig. 3b)."""

from collections.abc import Mapping, Sequence

import torch
from matplotlib.figure import Figure
from torch import Generator, Tensor

from firstpage.figures.style import Style, plot_curves
from firstpage.mining import mine
from firstpage.pairs import Pairs, unit

STRATEGIES = ("uniform", "semihard", "hard", "distance_weighted")


def simulate_classes(
    classes: int = 1024, dimensions: int = 16, spread: float = 0.8, *, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Simulate embeddings of two images of each class, on average `spread` apart, on the sphere.

    The dimension is low on purpose: in 128 dimensions, a batch would have to be astronomically large to hold
    a negative at each distance, and a strategy can only select from the batch.

    >>> embeddings, labels = simulate_classes(classes=3)
    >>> embeddings.shape, labels.tolist()
    (torch.Size([6, 16]), [0, 1, 2, 0, 1, 2])
    """
    generator = Generator().manual_seed(seed)
    first = unit(torch.randn(classes, dimensions, generator=generator))
    direction = torch.randn(classes, dimensions, generator=generator)
    direction = unit(direction - (direction * first).sum(dim=1, keepdim=True) * first)
    distance = (spread * (0.8 + 0.4 * torch.rand(classes, 1, generator=generator))).clamp(0, 2)  # ± 20 %
    similarity = 1 - distance.square() / 2
    second = similarity * first + (1 - similarity.square()).sqrt() * direction
    return torch.cat([first, second]), torch.arange(classes).repeat(2)


def sampled_distances(
    embeddings: Tensor,
    labels: Tensor,
    strategies: Sequence[str] = STRATEGIES,
    *,
    samples: int = 4,
    block: int = 512,
    seed: int = 0,
) -> dict[str, Tensor]:
    """Return the distances of the negatives that each strategy samples, with every image as query in turn.

    Each query samples a random positive and then, by `mining`, a negative for it, `samples` times.

    Args:
        embeddings: [N, D] embeddings, used as one batch.
        labels: [N] their classes.
        strategies: Names of negative strategies that sample one negative per positive.
        samples: Number of samples per query.
        block: Number of queries per step, which bounds memory to block × N distances.
        seed: Seed of the samples.

    >>> points = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8], [0.0, 1.0]])
    >>> sampled_distances(points, torch.tensor([0, 0, 1, 1]), ["hard"], samples=1)["hard"]
    tensor([0.8944, 0.2828, 0.2828, 0.8944])
    """
    generator = Generator(embeddings.device).manual_seed(seed)
    ids = torch.arange(len(labels), device=labels.device)
    found: dict[str, list[Tensor]] = {name: [] for name in strategies}
    for start in range(0, len(ids), block):
        rows = ids[start : start + block]
        pairs = Pairs.of(
            embeddings[rows], labels[rows], embeddings, labels, image_ids=rows, candidate_ids=ids
        )
        distance = pairs.distance
        for name in strategies:
            for _ in range(samples):
                mined = mine(pairs, "random", name, generator=generator)
                found[name].append(mined.of_negatives(distance)[mined.comparable])
    return {name: torch.cat(parts) for name, parts in found.items()}


def plot_sampled_negatives(
    distances: Mapping[str, Tensor] | None = None, *, bins: int = 50, style: Style | None = None
) -> Figure:
    """Plot a histogram of the distances of sampled negatives for each strategy.

    Args:
        distances: Strategy → distances of `sampled_distances`. Defaults to those of `simulate_classes`.
        bins: Number of bins over [0, 2].
        style: Colors. Defaults to those for light pages.

    >>> figure = plot_sampled_negatives({"hard": torch.tensor([0.5, 0.6])})
    >>> figure.axes[0].get_xlabel()
    'distance of the sampled negative'
    """
    if distances is None:
        distances = sampled_distances(*simulate_classes())
    histograms = {}
    for name, values in distances.items():
        density, edges = torch.histogram(values.detach().cpu().float(), bins, range=(0.0, 2.0), density=True)
        histograms[name.replace("_", " ")] = edges, density
    labels = "distance of the sampled negative", "density"
    return plot_curves(histograms, labels, style, legend="upper right", xlim=(0, 2), ylim=(0, None))
