"""R@1 by the number of images a class in the batch, for each loss (Easy Positive, Fig. 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from firstpage.figures.style import Style, literal, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from firstpage.runs.record import Record

__all__ = ["by_group_size", "plot_group_size"]

Sizes = Mapping[str, Mapping[int, Sequence[float]]]


def by_group_size(runs: Sequence[Record], measure: str = "R@1") -> dict[str, dict[int, list[float]]]:
    """Loss → images a class → the measure of each such run; losses by name, group sizes in order.

    Raises:
        UserError: a run did not measure that.

    >>> from pathlib import Path
    >>> from firstpage.recipes import Recipe
    >>> from firstpage.runs import Record
    >>> recipe = Recipe().changed(["loss.name=epshn", "batch.images_per_class=8"])
    >>> tests = {"R@1": 60.0}, {"R@1": 61.0}
    >>> by_group_size([Record(Path("a"), recipe, {"result": {"test": test}}, []) for test in tests])
    {'epshn': {8: [60.0, 61.0]}}
    """
    found: dict[str, dict[int, list[float]]] = {}
    for run in sorted(
        runs, key=lambda run: (str(run.recipe.loss["name"]), run.recipe.batch.images_per_class)
    ):
        sizes = found.setdefault(str(run.recipe.loss["name"]), {})
        sizes.setdefault(run.recipe.batch.images_per_class, []).append(run.reported(measure))
    return found


def plot_group_size(values: Sizes, measure: str = "R@1", *, look: Style | None = None) -> Figure:
    """The measure against the group size, a curve for each loss: the mean of its runs, and their range.

    Args:
        values: loss → images a class → figures, of `by_group_size` or your own.
        measure: what they are, for the axis.
        look: light or dark.

    >>> figure = plot_group_size({"epshn": {2: [50.0], 4: [54.0, 56.0]}})
    >>> figure.axes[0].lines[0].get_ydata().tolist()
    [50.0, 55.0]
    """
    look = look or style()
    figure, (axes,) = look.panels()
    for number, (name, sizes) in enumerate(values.items()):
        across = sorted(sizes)
        mean = [sum(sizes[size]) / len(sizes[size]) for size in across]
        curve = look.curve(number)
        axes.plot(across, mean, marker="os^Dv<"[number % 6], markersize=3, label=literal(name), **curve)
        low, high = ([extreme(sizes[size]) for size in across] for extreme in (min, max))
        axes.vlines(across, low, high, color=curve["color"], linewidth=0.8)
    every = sorted({size for sizes in values.values() for size in sizes})
    axes.set_xscale("log", base=2)
    axes.set_xticks(every, [str(size) for size in every])
    axes.set_xticks([], minor=True)
    look.label(axes, "images a class in the batch", f"{measure} (%)")
    look.legend(axes)
    return figure
