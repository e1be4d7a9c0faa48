"""Precision against recall over the whole ranking (Sampling Wisely, Fig. 4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from firstpage.figures.style import Style, escape_label, make_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot_precision_recall"]


def plot_precision_recall(
    curves: Mapping[str, tuple[Tensor, Tensor]], *, style: Style | None = None
) -> Figure:
    """Plot precision against recall for each model.

    Args:
        curves: Model name → (recall, precision) in [0, 1], as in `Retrieval.pr_curve`.
        style: Colors. Defaults to those for light pages.

    >>> import torch
    >>> figure = plot_precision_recall({"topk": (torch.tensor([0.5, 1.0]), torch.tensor([1.0, 0.4]))})
    >>> figure.axes[0].get_xlabel()
    'recall'
    """
    style = style or make_style()
    figure, (axes,) = style.panels()
    for number, (name, (recall, precision)) in enumerate(curves.items()):
        axes.plot(recall.cpu(), precision.cpu(), label=escape_label(name), **style.curve(number))
    axes.set(xlim=(0, 1), ylim=(0, 1.01))
    style.label(axes, "recall", "precision")
    style.legend(axes)
    return figure
