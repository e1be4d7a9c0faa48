"""Similarity to the nearest image of the same class against that of any other (Easy Positive, Fig. 5)."""

from collections.abc import Mapping
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from firstpage.errors import UserError
from firstpage.figures.style import SMALL, TEXT, Style, escape_label, make_style
from firstpage.pairs import unit


@torch.no_grad()
def nearest_by_class(
    embeddings: Tensor,
    labels: Tensor,
    gallery: Tensor | None = None,
    gallery_labels: Tensor | None = None,
    *,
    block: int = 1024,
) -> tuple[Tensor, Tensor]:
    """Return each image's cosine with the nearest other image of its class, and with that of another class.

    Images that are the only one of their class are omitted. For the others, the first result of a search is
    right if the former is larger.

    Args:
        embeddings: [N, D] embeddings of the queries.
        labels: [N] their classes.
        gallery: [G, D] embeddings to search, as in `evaluate`. By default the queries search one another.
        gallery_labels: [G] their classes.
        block: Number of queries per step, which bounds memory to block × G similarities.

    Returns:
        (same [M], other [M]).

    Raises:
        UserError: All images are of one class, or no two are.

    >>> points = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8], [0.0, 1.0]])
    >>> nearest_by_class(points, torch.tensor([0, 0, 1, 2]))
    (tensor([0.8000, 0.8000]), tensor([0.6000, 0.9600]))
    """
    vectors = unit(embeddings.float())
    candidates = vectors if gallery is None else unit(gallery.float())
    classes = labels if gallery_labels is None else gallery_labels
    blocks = []
    for start in range(0, len(labels), block):
        similarity = vectors[start : start + block] @ candidates.T
        same = labels[start : start + block, None] == classes
        other = similarity.masked_fill(same, -torch.inf).amax(dim=1)
        if gallery is None:
            same.diagonal(start).fill_(False)
        blocks.append(torch.stack([similarity.masked_fill(~same, -torch.inf).amax(dim=1), other]))
    both = torch.cat(blocks, dim=1)
    both = both[:, (both > -torch.inf).all(dim=0)]
    if not both.shape[1]:
        raise UserError("labels: no image has both another of its class and one of another class")
    return both[0], both[1]


def plot_nearest_classes(
    nearest: Mapping[str, tuple[Tensor, Tensor]], *, points: int = 20_000, style: Style | None = None
) -> Figure:
    """Plot a point for each image, below the diagonal if its first result is right, and a panel per model.

    Args:
        nearest: Title → (same, other) of `nearest_by_class`.
        points: Largest number of points per panel, evenly spaced over all.
        style: Colors. Defaults to those for light pages.

    >>> figure = plot_nearest_classes({"test": (torch.tensor([0.9, 0.4]), torch.tensor([0.5, 0.6]))})
    >>> figure.axes[0].texts[0].get_text()
    '50.0 % right'
    """
    style = style or make_style()
    columns = min(len(nearest), 2)
    rows = -(-len(nearest) // columns)
    figure, panels = style.panels(rows, columns, height=0.8 + (4.0 if columns > 1 else 7.2) * rows)
    text: dict[str, Any] = {"fontsize": TEXT, "color": style.foreground}
    low = min(0.0, *(float(values.min()) for pair in nearest.values() for values in pair))
    for axes, (title, (same, other)) in zip(panels, nearest.items(), strict=False):
        right = same > other
        share = 100 * right.double().mean().item()
        shown = torch.zeros_like(right)
        shown[torch.linspace(0, len(right) - 1, min(points, len(right))).long()] = True
        size = min(6.0, max(1.0, 4000 / len(right)))
        for mask, color, marker in ((right, style.right, "o"), (~right, style.wrong, "^")):
            mask = (mask & shown).cpu()
            axes.scatter(
                same.cpu()[mask],
                other.cpu()[mask],
                s=size,
                c=color,
                marker=marker,
                linewidths=0,
                alpha=0.75,
                rasterized=True,  # thousands of points would make a huge .svg
            )
        axes.plot([low, 1], [low, 1], color=style.foreground, linewidth=0.6)
        small = text | {"fontsize": SMALL, "va": "top", "transform": axes.transAxes}
        axes.text(0.03, 0.97, f"{share:.1f} % right", **small)
        axes.set(xlim=(low, 1.01), ylim=(low, 1.01), aspect="equal")
        style.label(axes, title=escape_label(title))
    figure.supxlabel("nearest of the same class (cosine)", **text)
    figure.supylabel("nearest of another class", **text)
    for axes in panels[len(nearest) :]:
        axes.set_visible(False)
    return figure
