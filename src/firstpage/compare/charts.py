"""Figures of a measured table, from its cells alone: bars, curves along training, and swept settings."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from firstpage import losses
from firstpage.compare.summary import Measured
from firstpage.compare.tables import Table
from firstpage.figures.style import SMALL, Style, escape_label, make_style, wrap_label
from firstpage.recipes.recipe import Recipe

CURVES = 10  # the most methods in a figure of curves
SWEPT = 3  # the fewest values that make a sweep
_NAMES = {
    "batch.images_per_class": "images per class in the batch",
    "batch.size": "images in the batch",
    "loss.alpha": "α",
    "loss.gamma": "γ",
    "loss.k": "k",
    "loss.margin": "margin m",
    "loss.temperature": "temperature T",
    "model.dim": "dimensions",
}


class Chart(NamedTuple):
    """A figure with its name, as of a file, and its caption."""

    name: str
    figure: Figure
    caption: str


def draw_charts(
    table: Table, measured: Sequence[Measured], metric: str = "R@1", *, style: Style | None = None
) -> list[Chart]:
    """Draw the figures of a table: those for which there is something to show, for each protocol.

    Args:
        table: The methods.
        measured: What was measured of them.
        metric: What is shown.
        style: Colors. Defaults to those for light pages.

    >>> from firstpage.compare.tables import Row
    >>> row = Row("Margin", Recipe(), {"R@1": 63.6})
    >>> cells = {0: {"metrics": {"R@1": 64.0}, "error": ""}}
    >>> [chart.name for chart in draw_charts(Table("T", (row,)), [Measured(row, "paper", cells)])]
    ['bars-paper']
    """
    style, charts = style or make_style(), []
    for protocol in dict.fromkeys(each.protocol for each in measured):
        chosen = [each for each in measured if each.protocol == protocol and each.values(metric)]
        if not chosen:
            continue
        papers = any(metric in each.row.paper for each in chosen)
        paper = "; diamonds: the paper's" if papers else ""
        several = ", with 95 % intervals over seeds" if any(len(each.cells) > 1 for each in chosen) else ""
        caption = f"{metric} of the test, %, protocol {protocol}{several}{paper}"
        charts.append(Chart(f"bars-{protocol}", plot_bars(chosen, metric, style=style), caption))
        curves = training_curves(chosen, metric)
        if curves:
            tested = "held-out training classes" if protocol == "fair" else "the test"
            best = f", the best {CURVES} methods" if len(curves) > CURVES else ""
            caption = f"{metric} of {tested} along training, mean of the seeds{best}"
            figure = plot_training(curves, metric, style=style)
            charts.append(Chart(f"training-{protocol}", figure, caption))
        for setting, lines in swept_settings(chosen, metric, [*table.tune.searched]).items():
            name = f"sweep-{setting.replace('.', '-').replace('_', '-')}-{protocol}"
            but = " but what was searched" if any(each.row.variant for each in chosen) else ""
            caption = (
                f"{metric} of the test against {setting}, protocol {protocol}; all else is the same{but}"
            )
            charts.append(Chart(name, plot_sweep(setting, lines, metric, style=style), caption))
    return charts


def plot_bars(measured: Sequence[Measured], metric: str, *, style: Style | None = None) -> Figure:
    """Plot a metric of each method with its 95 % interval, and the paper's figure as a diamond.

    >>> from firstpage.compare.tables import Row
    >>> cells = {0: {"metrics": {"R@1": 64.0}, "error": ""}}
    >>> figure = plot_bars([Measured(Row("Margin", Recipe()), "paper", cells)], "R@1")
    >>> [text.get_text() for text in figure.axes[0].texts]
    ['64.0']
    """
    style = style or make_style()
    names = [wrap_label(escape_label(each.row.name)) for each in measured]
    lines = sum(1 + 0.6 * name.count("\n") for name in names)
    figure, (axes,) = style.panels(width=12.0, height=1.6 + 0.55 * lines)
    places = [float(place) for place in range(len(measured))]
    means, halves = np.array([each.mean(metric) for each in measured]).T
    known = np.nan_to_num(halves)
    axes.barh(places, means, height=0.62, color=style.colors[0], alpha=0.75)
    errors = {"xerr": known, "fmt": "none", "ecolor": style.foreground, "elinewidth": 0.9, "capsize": 1.5}
    axes.errorbar(means, places, **errors)
    papers = [each.row.paper.get(metric, math.nan) for each in measured]
    axes.plot(papers, places, "D", markersize=3.2, color=style.colors[1], markeredgecolor=style.background)
    most = float(np.nanmax([*(means + known), *papers]))
    text: dict[str, Any] = {"va": "center", "fontsize": SMALL, "color": style.foreground}
    for place, mean in zip(places, means, strict=True):  # in a column, so that none is taken for the paper's
        axes.text(1.01, place, f"{mean:.1f}", transform=axes.get_yaxis_transform(), **text)
    axes.set_yticks(places, names)
    axes.set(xlim=(0, min(1.05 * most, 100.0)), ylim=(len(measured) - 0.4, -0.6))
    axes.grid(visible=False, axis="y")
    style.label(axes, f"{metric} (%)")
    return figure


def training_curves(measured: Sequence[Measured], metric: str) -> dict[str, dict[int, float]]:
    """Return method → epoch → the mean of a metric over seeds, the best methods first.

    >>> from firstpage.compare.tables import Row
    >>> history = [{"epoch": 0, "R@1": 40.0}, {"epoch": 5, "R@1": 60.0}]
    >>> cells = {0: {"metrics": {"R@1": 60.0}, "error": "", "history": history}}
    >>> training_curves([Measured(Row("Margin", Recipe()), "paper", cells)], "R@1")
    {'Margin': {0: 40.0, 5: 60.0}}
    """
    found = {}
    for each in sorted(measured, key=lambda each: -each.mean(metric)[0]):
        values: dict[int, list[float]] = {}
        for cell in each.cells.values():
            for evaluation in cell.get("history") or []:
                if metric in evaluation:
                    values.setdefault(int(evaluation.get("epoch", 0)), []).append(evaluation[metric])
        if len(values) > 1:
            found[each.row.name] = {epoch: float(np.mean(values[epoch])) for epoch in sorted(values)}
    return found


def plot_training(
    curves: Mapping[str, Mapping[int, float]], metric: str, *, style: Style | None = None
) -> Figure:
    """Plot a metric along training for the first methods.

    >>> plot_training({"Margin": {0: 40.0, 5: 60.0}}, "R@1").axes[0].lines[0].get_ydata().tolist()
    [40.0, 60.0]
    """
    style = style or make_style()
    figure, (axes,) = style.panels(width=12.0, height=7.0)
    for number, (name, values) in enumerate([*curves.items()][:CURVES]):
        line = style.curve(number) | {"marker": "o", "markersize": 2.2}
        axes.plot([*values], [*values.values()], label=escape_label(name), **line)
    axes.set_xlim(0, None)
    style.label(axes, "epoch", f"{metric} (%)")
    style.legend(axes, beside=True)
    return figure


def swept_settings(
    measured: Sequence[Measured], metric: str, ignored: Sequence[str] = ()
) -> dict[str, dict[str, dict[float, tuple[float, float]]]]:
    """Return setting → curve → value → mean and half its interval, where methods differ in that number only.

    Args:
        measured: The methods.
        metric: What was measured.
        ignored: Settings that were searched for each method that is tuned: they may differ.

    >>> from firstpage.compare.tables import Row
    >>> def method(k, value):
    ...     row = Row(f"k = {k}", Recipe.of({"loss": {"name": "topk", "k": k}}))
    ...     return Measured(row, "paper", {0: {"metrics": {"R@1": value}, "error": ""}})
    >>> swept_settings([method(1, 60.0), method(3, 62.0), method(5, 61.0)], "R@1")
    {'loss.k': {'topk': {1.0: (60.0, nan), 3.0: (62.0, nan), 5.0: (61.0, nan)}}}
    """
    flat = []
    for each in measured:
        if each.row.recipe.schedule.epochs:
            left_out = ignored if each.row.variant else ()
            settings = _flatten(each.row.recipe)
            flat.append((each, {name: value for name, value in settings.items() if name not in left_out}))
    names = dict.fromkeys(
        name for _, settings in flat for name, value in settings.items() if _is_number(value)
    )
    found: dict[str, dict[str, dict[float, tuple[float, float]]]] = {}
    for name in names:
        groups: dict[str, list[tuple[float, Measured]]] = {}
        for each, settings in flat:
            if _is_number(settings.get(name)):
                rest = repr(sorted((key, repr(value)) for key, value in settings.items() if key != name))
                groups.setdefault(rest, []).append((float(settings[name]), each))
        lines = [sorted(group, key=lambda point: point[0]) for group in groups.values()]
        lines = [line for line in lines if len({value for value, _ in line}) >= SWEPT]
        titles = [str(line[0][1].row.recipe.loss["name"]) for line in lines]
        for title, line in zip(titles, lines, strict=True):
            called = title if titles.count(title) == 1 else f"{title}, {line[0][1].row.name}"
            points: dict[float, tuple[float, float]] = {}
            for value, each in line:
                points.setdefault(value, each.mean(metric))  # two rows may be the same
            found.setdefault(name, {})[called] = points
    return found


def plot_sweep(
    setting: str,
    lines: Mapping[str, Mapping[float, tuple[float, float]]],
    metric: str,
    *,
    style: Style | None = None,
) -> Figure:
    """Plot a metric against a setting, a curve for each method, with 95 % intervals.

    >>> figure = plot_sweep("loss.k", {"topk": {1.0: (60.0, 1.0), 3.0: (62.0, 1.0), 5.0: (61.0, 1.0)}}, "R@1")
    >>> figure.axes[0].get_xlabel()
    'k'
    """
    style = style or make_style()
    figure, (axes,) = style.panels(width=12.0, height=7.0)
    values = sorted({value for points in lines.values() for value in points})
    for number, (name, points) in enumerate(lines.items()):
        means, halves = np.array([points[value] for value in points]).T
        curve = style.curve(number) | {"marker": "os^Dv<"[number % 6], "markersize": 3}
        axes.errorbar(
            [*points],
            means,
            np.nan_to_num(halves),
            capsize=1.5,
            elinewidth=0.8,
            label=escape_label(name),
            **curve,
        )
    if values[0] > 0 and values[-1] / values[0] >= 8:
        axes.set_xscale("log", base=2)
    low, high = axes.get_ylim()
    axes.set_ylim(max(0.0, low), min(100.0, high))
    axes.set_xticks(values, [f"{value:g}" for value in values])
    axes.set_xticks([], minor=True)
    style.label(axes, _NAMES.get(setting, setting), f"{metric} (%)")
    if len(lines) > 1:
        style.legend(axes, beside=True)
    return figure


def _flatten(recipe: Recipe) -> dict[str, Any]:
    """Return all settings of a recipe by their full names, those of the loss with its defaults."""
    flat = {
        f"{section}.{key}": value for section, part in asdict(recipe).items() for key, value in part.items()
    }
    defaults = losses.describe_settings(recipe.loss.get("name"))
    return {f"loss.{key}": value for key, (_, value) in defaults.items()} | flat


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
