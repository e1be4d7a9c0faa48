"""Precision against recall over the whole ranking (Sampling Wisely, Fig. 4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from firstpage.figures.style import Style, literal, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot_precision_recall"]


def plot_precision_recall(
    curves: Mapping[str, tuple[Tensor, Tensor]], *, look: Style | None = None
) -> Figure:
    """Precision against recall, a curve for each model.

    Args:
        curves: name → (recall, precision), shares of 1, as `Retrieval.pr_curve` gives them.
        look: light or dark.

    >>> import torch
    >>> figure = plot_precision_recall({"topk": (torch.tensor([0.5, 1.0]), torch.tensor([1.0, 0.4]))})
    >>> figure.axes[0].get_xlabel()
    'recall'
    """
    look = look or style()
    figure, (axes,) = look.panels()
    for number, (name, (recall, precision)) in enumerate(curves.items()):
        axes.plot(recall.cpu(), precision.cpu(), label=literal(name), **look.curve(number))
    axes.set(xlim=(0, 1), ylim=(0, 1.01))
    look.label(axes, "recall", "precision")
    look.legend(axes)
    return figure
