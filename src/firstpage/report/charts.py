"""Figures of the page as vector graphics in the colors of the page, light or dark."""

import hashlib
import io
import math
import re
import warnings
from collections.abc import Mapping

import matplotlib
from matplotlib.figure import Figure

from firstpage.figures.retrieval_curves import plot_precision_recall, plot_roc
from firstpage.figures.style import Style, escape_label
from firstpage.report.evaluation import Evaluation
from firstpage.report.markup import Html, escape, name_tag, tag
from firstpage.runs.record import Series

TRAINING = {  # logged by every run; other series are about its health
    "loss": "Training loss",
    "P@1": "P@1 of the test, %",
    "MAP@R": "MAP@R of the test, %",
    "lr": "Learning rate of the backbone",
}
HEALTH = {
    "spread": "Spread: 0 if all images are one point, about 1 if they fill the sphere",
    "collapse": "Collapse: 1 if all images lie on one line, 1/D if D dimensions are used equally",
    "active_pairs": "Share of pairs with a nonzero gradient",
    "idle_anchors": "Share of queries with a zero gradient",
    "gradient_norm": "Norm of the gradient",
    "beta": "Mean of the learned boundaries β",
}

RUNS = 6  # colors of runs, which then repeat with other line styles
# Matplotlib does not support CSS variables: it gets placeholder colors, which are replaced in the SVG.
_PLACEHOLDERS = {"ink": "#010203", "line": "#010204", "right": "#010205", "wrong": "#010206"} | {
    f"run-{number}": f"#01021{number}" for number in range(RUNS)
}

STYLE = Style(
    background="none",
    foreground=_PLACEHOLDERS["ink"],
    grid=_PLACEHOLDERS["line"],
    colors=tuple(_PLACEHOLDERS[f"run-{number}"] for number in range(RUNS)),
    right=_PLACEHOLDERS["right"],
    wrong=_PLACEHOLDERS["wrong"],
)


def render_curves(runs: Mapping[str, Evaluation]) -> Html:
    """Show precision against recall, the ROC curve, and what every run logs: loss, metrics, learning rate."""
    retrievals = {name: run.retrieval for name, run in runs.items()}
    precision = plot_precision_recall({name: each.pr_curve for name, each in retrievals.items()}, style=STYLE)
    areas = {name: each.auc for name, each in retrievals.items()}
    roc = plot_roc({name: each.roc_curve for name, each in retrievals.items()}, areas, style=STYLE)
    series = _series_by_name(runs)
    charts = [
        render_chart(precision, "Precision against recall", "Precision against recall, mean of the queries"),
        render_chart(roc, "ROC curve", "True against false positives, mean of the queries; dotted: chance"),
    ]
    test = "of the test"
    trained = [(run.test, run.test.record) for run in runs.values() if run.test.record]
    if not all(test_of_run.is_own_data for test_of_run, _ in trained):
        test = "of the test in training"  # not the test of this page
    elif any(record.recipe.train.protocol == "fair" for _, record in trained):
        test = "of the selection"  # a fair run evaluates the test only once, at the end
    for name, caption in TRAINING.items():
        caption = caption.replace("of the test", test)
        if name in series:
            figure = plot_series(series[name], name)
            charts.append(render_chart(figure, f"{caption} during training", caption))
    return tag("div", *charts, class_="charts")


def render_health(runs: Mapping[str, Evaluation]) -> list[Html]:
    """Show warnings and recoveries, and every logged series but loss, learning rate and metrics."""
    warnings_logged = [
        tag("p", name_tag(name), f": {line[kind]}", class_=kind)
        for name, run in runs.items()
        for line in (run.test.record.log if run.test.record else [])
        for kind in ("warning", "recovery")
        if kind in line
    ]
    charts = []
    for name, series in _series_by_name(runs).items():
        if name not in TRAINING and "@" not in name and name not in ("mAP", "MRR", "AUC"):
            title = name.replace("_", " ").replace(".", " ")
            figure = plot_series(series, title)
            charts.append(render_chart(figure, f"{title} during training", HEALTH.get(name, title)))
    return warnings_logged + ([tag("div", *charts, class_="charts")] if charts else [])


def render_chart(figure: Figure, title: str, caption: object) -> Html:
    """Show a figure with its caption, as a card.

    Args:
        figure: A figure drawn with `STYLE`.
        title: Description for screen readers.
        caption: Text below the figure.

    >>> render_chart(STYLE.panels()[0], "Loss", "The loss")[:57]
    '<figure class="card"><svg role="img" aria-label="Loss" vi'
    """
    buffer = io.StringIO()
    with (
        matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "firstpage"}),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", "Glyph .* missing")  # the browser uses its own fonts
        no_metadata = {"Creator": None, "Date": None, "Format": None, "Type": None}
        figure.savefig(buffer, format="svg", transparent=True, metadata=no_metadata)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].strip()
    for name, placeholder in _PLACEHOLDERS.items():
        svg = svg.replace(placeholder, f"var(--{name})")
    # The ids of a graphic must be unique on the page.
    prefix = f"f{hashlib.blake2b(svg.encode(), digest_size=4).hexdigest()}-"
    svg = re.sub(r'\b(id="|href="#|url\(#)', rf"\g<1>{prefix}", svg)
    svg = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font: \1 system-ui, sans-serif", svg)
    svg = re.sub(r'^<svg [^>]*?(viewBox="[^"]*")[^>]*>', r"<svg \1>", svg, count=1, flags=re.DOTALL)
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{escape(title)}" ', 1)
    svg = svg.replace("xlink:href", "href")
    return tag("figure", Html(svg), tag("figcaption", caption), class_="card")


def _series_by_name(runs: Mapping[str, Evaluation]) -> dict[str, dict[str, Series | None]]:
    """Return series name → run → series, None for a run without it."""
    logged = {name: run.test.record.logged_series() if run.test.record else {} for name, run in runs.items()}
    # A single point is not a curve.
    names = dict.fromkeys(name for series in logged.values() for name in series if len(series[name][0]) > 1)
    return {name: {run: series.get(name) for run, series in logged.items()} for name in names}


def plot_series(runs: Mapping[str, Series | None], name: str) -> Figure:
    """Plot a logged number against the steps of one or more runs, marking where it ceased to be finite.

    Args:
        runs: Steps and values of each run; None for a run without them, so that others keep their color.
        name: Name of the number.

    >>> figure = plot_series({"a": ([0, 10, 20], [3.0, 2.0, float("nan")])}, "loss")
    >>> len(figure.axes[0].lines)  # the curve, and the mark
    2
    """
    figure, (axes,) = STYLE.panels()
    for number, (run, series) in enumerate(runs.items()):
        if series is None:
            continue
        steps, values = series
        curve = STYLE.curve(number) | {"marker": "o" if len(values) <= 40 else None, "markersize": 2.2}
        axes.plot(steps, values, label=escape_label(run), **curve)
        not_finite = [step for step, value in zip(steps, values, strict=True) if not math.isfinite(value)]
        if not_finite:
            axes.axvline(not_finite[0], color=STYLE.wrong, linewidth=1.0, linestyle=":")
            axes.annotate(
                "not finite ",
                (not_finite[0], 1),
                xycoords=("data", "axes fraction"),
                ha="right",
                va="top",
                fontsize=7,
                color=STYLE.wrong,
            )
    STYLE.label(axes, "step", name)
    axes.margins(x=0.02)
    lowest = min((min(series[1]) for series in runs.values() if series), default=0.0)
    if lowest >= 0:
        axes.set_ylim(bottom=max(0.0, axes.get_ylim()[0]))
    if len(runs) > 1:
        STYLE.legend(axes)
    return figure
