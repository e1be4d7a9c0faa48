"""Precision–recall and ROC curves (Sampling Wisely, Fig. 4)."""

from collections.abc import Mapping

import torch
from matplotlib.figure import Figure
from torch import Tensor

from firstpage.figures.style import Style, make_style, plot_curves

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
    on_cpu = {name: (recall.cpu(), precision.cpu()) for name, (recall, precision) in curves.items()}
    return plot_curves(on_cpu, ("recall", "precision"), style, xlim=(0, 1), ylim=(0, 1.01))


def plot_roc(
    curves: Curves, areas: Mapping[str, float] | None = None, *, style: Style | None = None
) -> Figure:
    """Plot the ROC curve of each model, with its area in the legend.

    Args:
        curves: Model name → (false positive rate, true positive rate) in [0, 1], as in `Retrieval.roc_curve`.
        areas: Model name → area in percent, as in `Retrieval.auc`. Defaults to that of the curve, which has
            fewer points than there are images, so that it differs in the third digit.
        style: Colors. Defaults to those for light pages.

    >>> figure = plot_roc({"topk": (torch.tensor([0.0, 0.0, 1.0]), torch.tensor([0.0, 1.0, 1.0]))})
    >>> figure.axes[0].lines[0].get_label()
    'topk (AUC 100.00)'
    """
    style = style or make_style()
    titled = {}
    for name, (false, true) in curves.items():
        area = 100 * float(torch.trapezoid(true.double(), false.double())) if areas is None else areas[name]
        titled[f"{name} (AUC {area:.2f})"] = false.cpu(), true.cpu()
    labels = "false positive rate", "true positive rate"
    figure = plot_curves(titled, labels, style, legend="lower right", xlim=(0, 1), ylim=(0, 1.01))
    figure.axes[0].plot([0, 1], [0, 1], color=style.foreground, linewidth=0.6, linestyle=":")  # chance
    return figure
