"""R@1 by the number of images per class in the batch, for each loss (Easy Positive, Fig. 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from firstpage.figures.style import Style, escape_label, make_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from firstpage.runs.record import Record

__all__ = ["by_group_size", "plot_group_size"]

Sizes = Mapping[str, Mapping[int, Sequence[float]]]


def by_group_size(runs: Sequence[Record], metric: str = "R@1") -> dict[str, dict[int, list[float]]]:
    """Return loss → images per class → the metric of each such run, sorted.

    Raises:
        UserError: A run did not log the metric.

    >>> from pathlib import Path
    >>> from firstpage.recipes import Recipe
    >>> from firstpage.runs import Record
    >>> recipe = Recipe().changed(["loss.name=epshn", "batch.images_per_class=8"])
    >>> tests = {"R@1": 60.0}, {"R@1": 61.0}
    >>> by_group_size([Record(Path("a"), recipe, {"result": {"test": test}}, []) for test in tests])
    {'epshn': {8: [60.0, 61.0]}}
    """
    values: dict[str, dict[int, list[float]]] = {}
    for run in sorted(
        runs, key=lambda run: (str(run.recipe.loss["name"]), run.recipe.batch.images_per_class)
    ):
        sizes = values.setdefault(str(run.recipe.loss["name"]), {})
        sizes.setdefault(run.recipe.batch.images_per_class, []).append(run.final_metric(metric))
    return values


def plot_group_size(values: Sizes, metric: str = "R@1", *, style: Style | None = None) -> Figure:
    """Plot a metric against the group size for each loss: the mean of its runs, and their range.

    Args:
        values: Loss → images per class → metrics, as `by_group_size` returns them.
        metric: Name of the metric, for the axis.
        style: Colors. Defaults to those for light pages.

    >>> figure = plot_group_size({"epshn": {2: [50.0], 4: [54.0, 56.0]}})
    >>> figure.axes[0].lines[0].get_ydata().tolist()
    [50.0, 55.0]
    """
    style = style or make_style()
    figure, (axes,) = style.panels()
    for number, (name, sizes) in enumerate(values.items()):
        counts = sorted(sizes)
        mean = [sum(sizes[size]) / len(sizes[size]) for size in counts]
        curve = style.curve(number)
        axes.plot(counts, mean, marker="os^Dv<"[number % 6], markersize=3, label=escape_label(name), **curve)
        low, high = ([extreme(sizes[size]) for size in counts] for extreme in (min, max))
        axes.vlines(counts, low, high, color=curve["color"], linewidth=0.8)
    ticks = sorted({size for sizes in values.values() for size in sizes})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(size) for size in ticks])
    axes.set_xticks([], minor=True)
    style.label(axes, "images per class in the batch", f"{metric} (%)")
    style.legend(axes)
    return figure
