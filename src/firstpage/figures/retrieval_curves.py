"""Precision–recall and ROC curves (Sampling Wisely, Fig. 4)."""

from collections.abc import Mapping

import torch
from matplotlib.figure import Figure
from torch import Tensor

from firstpage.figures.style import Style, escape_label, make_style

Curves = Mapping[str, tuple[Tensor, Tensor]]


def plot_precision_recall(curves: Curves, *, style: Style | None = None) -> Figure:
    """Plot precision against recall for each model.

    Args:
        curves: Model name → (recall, precision) in [0, 1], as in `Retrieval.pr_curve`.
        style: Colors. Defaults to those for light pages.

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


def plot_roc(curves: Curves, *, style: Style | None = None) -> Figure:
    """Plot the ROC curve of each model, with its area in the legend.

    Args:
        curves: Model name → (false positive rate, true positive rate) in [0, 1], as in `Retrieval.roc_curve`.
        style: Colors. Defaults to those for light pages.

    >>> figure = plot_roc({"topk": (torch.tensor([0.0, 0.0, 1.0]), torch.tensor([0.0, 1.0, 1.0]))})
    >>> figure.axes[0].lines[0].get_label()
    'topk (area 1.000)'
    """
    style = style or make_style()
    figure, (axes,) = style.panels()
    for number, (name, (false, true)) in enumerate(curves.items()):
        area = float(torch.trapezoid(true.double(), false.double()))
        axes.plot(
            false.cpu(), true.cpu(), label=f"{escape_label(name)} (area {area:.3f})", **style.curve(number)
        )
    axes.plot([0, 1], [0, 1], color=style.foreground, linewidth=0.6, linestyle=":")  # chance
    axes.set(xlim=(0, 1), ylim=(0, 1.01))
    style.label(axes, "false positive rate", "true positive rate")
    style.legend(axes, loc="lower right")
    return figure
