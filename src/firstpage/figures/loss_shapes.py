"""The loss of a pair by its distance, for each loss (Sampling Matters, Fig. 4)."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from matplotlib.figure import Figure
from torch import Tensor

from firstpage import losses
from firstpage.figures.style import Style, make_style
from firstpage.losses import Loss
from firstpage.pairs import Pairs, unit


def paper_losses() -> dict[str, Loss]:
    """Return the losses over pairs or triplets that the papers compare, with their settings, without mining.

    >>> list(paper_losses())
    ['contrastive', 'triplet ℓ₂²', 'triplet ℓ₂', 'margin', 'ranked list', 'NCA']
    """
    no_mining = {"positives": "all", "negatives": "all"}
    return {
        "contrastive": losses.create("contrastive", **no_mining),
        "triplet ℓ₂²": losses.create("triplet-uniform", form="l2_squared", **no_mining),
        "triplet ℓ₂": losses.create("triplet-uniform", form="l2", **no_mining),
        "margin": losses.create("margin", **no_mining),
        "ranked list": losses.create("rll"),
        "NCA": losses.create("batch-all"),
    }


@torch.no_grad()
def loss_shape(loss: Loss, distance: Tensor, other: float | None = None) -> tuple[Tensor, Tensor]:
    """Return the loss of one query by the distance of its positive, and by that of its negative.

    Args:
        loss: A loss over pairs or triplets.
        distance: [n] distances from 0 to 2.
        other: Distance of the fixed image of a triplet: of the negative while the positive varies, and of the
            positive while the negative varies. None for a loss over pairs.

    Returns:
        ([n], [n]): the losses for the varying positive and for the varying negative.

    >>> loss_shape(losses.create("margin", negatives="all"), torch.tensor([0.5, 1.1, 1.3]))
    (tensor([0.0000, 0.1000, 0.3000]), tensor([0.9000, 0.3000, 0.1000]))
    """
    query = torch.tensor([[1.0, 0.0]], dtype=torch.float64)

    def curve(label: int) -> Tensor:
        columns = [distance.double()]
        if other is not None:
            columns.append(torch.full_like(columns[0], other))
        similarity = 1 - torch.stack(columns, dim=1).square() / 2  # [n, 1 or 2]
        candidates = torch.stack([similarity, (1 - similarity.square()).clamp_min(0).sqrt()], dim=2)
        classes = torch.tensor([label, 1 - label])[: len(columns)]
        first = Pairs.of(query, torch.tensor([1]), candidates[0], classes)

        def cost(candidates: Tensor) -> Tensor:
            similarity = unit(query) @ unit(candidates).T
            return loss.of(replace(first, candidates=candidates, similarity=similarity))

        # Not as n queries of one batch: some losses divide by the active pairs of the batch.
        costs: Tensor = torch.func.vmap(cost, randomness="different")(candidates)
        return costs.to(distance.dtype)

    return curve(1), curve(0)


def plot_loss_shapes(
    compared: Mapping[str, Loss] | None = None, *, other: float = 1.0, style: Style | None = None
) -> Figure:
    """Plot loss against distance for positives and negatives, with a panel for each loss.

    Args:
        compared: Title → loss. Defaults to `paper_losses()`.
        other: Distance of the fixed image of a triplet.
        style: Colors. Defaults to those for light pages.

    >>> len(plot_loss_shapes({"margin": losses.create("margin", negatives="all")}).axes)
    1
    """
    style = style or make_style()
    compared = paper_losses() if compared is None else compared
    columns = min(len(compared), 2)
    rows = -(-len(compared) // columns)
    figure, panels = style.panels(rows, columns, height=1.2 + 3.4 * rows)
    distance = torch.linspace(0, 2, 101, dtype=torch.float64)
    for position, (axes, (title, loss)) in enumerate(zip(panels, compared.items(), strict=False)):
        over_pairs = not isinstance(loss, losses.Triplet | losses.NCA)
        curves = loss_shape(loss, distance, None if over_pairs else other)
        for number, name in enumerate(("positive", "negative")):
            axes.plot(distance, curves[number], label=name, **style.curve(number))
        axes.set(xlim=(0, 2), ylim=(0, None))
        x_label = "distance" if position >= len(compared) - columns else ""
        style.label(axes, x_label, "loss" if position % columns == 0 else "", title)
        if not over_pairs:
            axes.axvline(other, color=style.foreground, linewidth=0.6, linestyle=":")
    for axes in panels[len(compared) :]:
        axes.set_visible(False)
    style.legend(panels[0], loc="upper left")
    return figure
