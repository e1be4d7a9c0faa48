"""ROC: the share of positives found by the share of negatives let in (Sampling Wisely, Fig. 4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from firstpage.figures.style import Style, literal, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot_roc"]


def plot_roc(curves: Mapping[str, tuple[Tensor, Tensor]], *, look: Style | None = None) -> Figure:
    """True against false positive rate, a curve for each model, its area in the legend.

    Args:
        curves: name → (false positive rate, true positive rate), shares of 1, as `Retrieval.roc_curve` gives
            them.
        look: light or dark.

    >>> figure = plot_roc({"topk": (torch.tensor([0.0, 0.0, 1.0]), torch.tensor([0.0, 1.0, 1.0]))})
    >>> figure.axes[0].lines[0].get_label()
    'topk (area 1.000)'
    """
    look = look or style()
    figure, (axes,) = look.panels()
    for number, (name, (false, true)) in enumerate(curves.items()):
        area = float(torch.trapezoid(true.double(), false.double()))
        axes.plot(false.cpu(), true.cpu(), label=f"{literal(name)} (area {area:.3f})", **look.curve(number))
    axes.plot([0, 1], [0, 1], color=look.ink, linewidth=0.6, linestyle=":")  # by chance
    axes.set(xlim=(0, 1), ylim=(0, 1.01))
    look.label(axes, "false positive rate", "true positive rate")
    look.legend(axes, loc="lower right")
    return figure
