"""What a pair costs by its distance, loss by loss (Sampling Matters, Fig. 4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from firstpage import losses
from firstpage.figures.style import Style, style
from firstpage.losses import Loss
from firstpage.pairs import Pairs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["loss_shape", "paper_losses", "plot_loss_shapes"]


def paper_losses() -> dict[str, Loss]:
    """The losses the papers compare by pairs or triplets, with their settings, looking at all they are given.

    >>> list(paper_losses())
    ['contrastive', 'triplet ℓ₂²', 'triplet ℓ₂', 'margin', 'ranked list', 'NCA']
    """
    everything = {"positives": "all", "negatives": "all"}
    return {
        "contrastive": losses.create("contrastive", **everything),
        "triplet ℓ₂²": losses.create("triplet-uniform", form="l2_squared", **everything),
        "triplet ℓ₂": losses.create("triplet-uniform", form="l2", **everything),
        "margin": losses.create("margin", **everything),
        "ranked list": losses.create("rll"),
        "NCA": losses.create("batch-all"),
    }


@torch.no_grad()
def loss_shape(loss: Loss, distance: Tensor, other: float | None = None) -> tuple[Tensor, Tensor]:
    """The loss of one query, as its positive and as its negative lies at each distance.

    Args:
        loss: any loss over pairs or triplets.
        distance: [n] from 0 to 2.
        other: where the other one of the triplet lies: the negative while the positive moves, and the
            positive while the negative moves. None: there is no other, the loss is one of pairs.

    Returns:
        ([n], [n]) for the moving positive and for the moving negative.

    >>> loss_shape(losses.create("margin", negatives="all"), torch.tensor([0.5, 1.1, 1.3]))
    (tensor([0.0000, 0.1000, 0.3000]), tensor([0.9000, 0.3000, 0.1000]))
    """

    def cost(moving: float, label: int) -> Tensor:
        spots = torch.tensor([moving] if other is None else [moving, other], dtype=torch.float64)
        similarity = 1 - spots.square() / 2
        candidates = torch.stack([similarity, (1 - similarity.square()).clamp_min(0).sqrt()], dim=1)
        classes = torch.tensor([label, 1 - label])[: len(spots)]
        query = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
        return loss.of(Pairs.of(query, torch.tensor([1]), candidates, classes))

    curves = (torch.stack([cost(float(d), label) for d in distance]) for label in (1, 0))
    positive, negative = (curve.to(distance.dtype) for curve in curves)
    return positive, negative


def plot_loss_shapes(
    shown: Mapping[str, Loss] | None = None, *, other: float = 1.0, look: Style | None = None
) -> Figure:
    """Loss against distance, positives and negatives, a panel for each loss.

    Args:
        shown: title → loss; `paper_losses()` if left out.
        other: where a triplet's other image lies.
        look: light or dark.

    >>> len(plot_loss_shapes({"margin": losses.create("margin", negatives="all")}).axes)
    1
    """
    look = look or style()
    shown = paper_losses() if shown is None else shown
    columns = min(len(shown), 2)
    rows = -(-len(shown) // columns)
    figure, panels = look.panels(rows, columns, height=1.2 + 3.4 * rows)
    distance = torch.linspace(0, 2, 101, dtype=torch.float64)
    for place, (axes, (title, loss)) in enumerate(zip(panels, shown.items(), strict=False)):
        alone = not isinstance(loss, losses.Triplet | losses.NCA)
        for number, (name, curve) in enumerate(
            zip(("positive", "negative"), loss_shape(loss, distance, None if alone else other), strict=True)
        ):
            axes.plot(distance, curve, label=name, **look.curve(number))
        axes.set(xlim=(0, 2), ylim=(0, None))
        across = "distance" if place >= len(shown) - columns else ""
        look.label(axes, across, "loss" if place % columns == 0 else "", title)
        if not alone:
            axes.axvline(other, color=look.ink, linewidth=0.6, linestyle=":")
    for axes in panels[len(shown) :]:
        axes.set_visible(False)
    look.legend(panels[0], loc="upper left")
    return figure
