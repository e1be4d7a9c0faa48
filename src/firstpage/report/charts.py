"""Figures as part of the page: vector graphics in the page's own colors, which turn dark with it."""

from __future__ import annotations

import hashlib
import io
import math
import re
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING

from firstpage.figures.precision_recall import plot_precision_recall
from firstpage.figures.roc import plot_roc
from firstpage.figures.style import Style, literal
from firstpage.report.markup import Html, named, tag, text
from firstpage.report.measure import Measured
from firstpage.runs.record import Series

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TRAINING = {  # what every run logs; the rest is its health
    "loss": "Training loss",
    "P@1": "P@1 of the test, %",
    "MAP@R": "MAP@R of the test, %",
    "lr": "Learning rate of the backbone",
}
HEALTH = {
    "spread": "Spread: 0 if all images are one point, about 1 if they fill the sphere",
    "collapse": "Collapse: 1 if all images lie on one line, 1/D if D dimensions are used alike",
    "active_pairs": "Share of pairs whose similarity the loss still wants changed",
    "idle_anchors": "Share of queries from which nothing is learned",
    "gradient_norm": "Norm of the gradient",
    "beta": "Mean of the learned boundaries β",
}

RUNS = 6  # colors for runs; after them they repeat, with other lines
# Matplotlib knows no variables of CSS. It is given colors nobody would choose, and they are replaced.
_STAND_INS = {"ink": "#010203", "faint": "#010204", "right": "#010205", "wrong": "#010206"} | {
    f"run-{number}": f"#01021{number}" for number in range(RUNS)
}
_VARIABLES = {
    stand_in: f"var(--{'line' if name == 'faint' else name})" for name, stand_in in _STAND_INS.items()
}

LOOK = Style(
    paper="none",
    ink=_STAND_INS["ink"],
    faint=_STAND_INS["faint"],
    colors=tuple(_STAND_INS[f"run-{number}"] for number in range(RUNS)),
    right=_STAND_INS["right"],
    wrong=_STAND_INS["wrong"],
)


def curves(runs: Mapping[str, Measured]) -> Html:
    """Precision against recall, ROC, and what every run logs: its loss, its test and its rate."""
    found = {name: run.retrieval for name, run in runs.items()}
    precision = plot_precision_recall({name: each.pr_curve for name, each in found.items()}, look=LOOK)
    roc = plot_roc({name: each.roc_curve for name, each in found.items()}, look=LOOK)
    logged = _logged(runs)
    drawn = [
        chart(precision, "Precision against recall", "Precision against recall, mean of the queries"),
        chart(roc, "ROC curve", "True against false positives, mean of the queries; dotted: chance"),
    ]
    test = "of the test"
    records = [run.subject.record for run in runs.values() if run.subject.record]
    if not all(run.subject.own_data for run in runs.values() if run.subject.record):
        test = "of the test in training"  # not the one that the page is about
    elif any(record.recipe.train.protocol == "fair" for record in records):
        test = "of the held-out classes"  # which such a run looks at; at the test only once, at the end
    for name, caption in TRAINING.items():
        caption = caption.replace("of the test", test)
        if name in logged:
            drawn.append(chart(along(logged[name], name), f"{caption} along training", caption))
    return tag("div", *drawn, class_="charts")


def health(runs: Mapping[str, Measured]) -> list[Html]:
    """Warnings of the runs, and whatever else was logged along training and is no figure of the test."""
    warned = [
        tag("p", named(run), f": {line['warning']}", class_="warning")
        for run, measured in runs.items()
        for line in (measured.subject.record.log if measured.subject.record else [])
        if "warning" in line
    ]
    logged = _logged(runs)
    drawn = [
        chart(
            along(logged[name], _words(name)),
            f"{_words(name)} along training",
            HEALTH.get(name, _words(name)),
        )
        for name in logged
        if name not in TRAINING and not _is_metric(name)
    ]
    return warned + ([tag("div", *drawn, class_="charts")] if drawn else [])


def chart(figure: Figure, title: str, caption: object) -> Html:
    """A figure with its caption, as a card.

    Args:
        figure: drawn with `LOOK`.
        title: what it shows, also for who cannot see it.
        caption: below it.

    >>> chart(LOOK.panels()[0], "Loss", "The loss")[:57]
    '<figure class="card"><svg role="img" aria-label="Loss" vi'
    """
    return tag("figure", _svg(figure, title), tag("figcaption", caption), class_="card")


def _logged(runs: Mapping[str, Measured]) -> dict[str, dict[str, Series | None]]:
    """Name → run → series, None for a run without it."""
    records = {run: measured.subject.record for run, measured in runs.items()}
    series = {run: {} if record is None else record.series() for run, record in records.items()}
    # One point alone makes no curve.
    names = dict.fromkeys(name for found in series.values() for name in found if len(found[name][0]) > 1)
    return {name: {run: found.get(name) for run, found in series.items()} for name in names}


def _is_metric(name: str) -> bool:
    return "@" in name or name in ("mAP", "MRR", "AUC")


def _words(name: str) -> str:
    return name.replace("_", " ").replace(".", " ")


def along(runs: Mapping[str, Series | None], name: str) -> Figure:
    """A logged number along the steps of one run or several. Where one ceased to be finite is marked.

    Args:
        runs: steps and values of each; None for a run that did not log it, so that others keep their color.
        name: what it is.

    >>> figure = along({"a": ([0, 10, 20], [3.0, 2.0, float("nan")])}, "loss")
    >>> len(figure.axes[0].lines)  # the curve, and where it broke off
    2
    """
    figure, (axes,) = LOOK.panels()
    for number, (run, series) in enumerate(runs.items()):
        if series is None:
            continue
        steps, values = series
        marker = "o" if len(values) <= 40 else None
        axes.plot(steps, values, label=literal(run), marker=marker, markersize=2.2, **LOOK.curve(number))
        broken = [step for step, value in zip(steps, values, strict=True) if not math.isfinite(value)]
        if broken:
            axes.axvline(broken[0], color=LOOK.wrong, linewidth=1.0, linestyle=":")
            axes.annotate(
                "not finite ",
                (broken[0], 1),
                xycoords=("data", "axes fraction"),
                ha="right",
                va="top",
                fontsize=7,
                color=LOOK.wrong,
            )
    LOOK.label(axes, "step", name)
    axes.margins(x=0.02)
    least = min((min(series[1]) for series in runs.values() if series), default=0.0)
    if least >= 0:
        axes.set_ylim(bottom=max(0.0, axes.get_ylim()[0]))
    if len(runs) > 1:
        LOOK.legend(axes)
    return figure


def _svg(figure: Figure, title: str) -> Html:
    import matplotlib

    buffer = io.StringIO()
    with (
        matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "firstpage"}),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", "Glyph .* missing")  # it is the reader's fonts that count
        nothing = {"Creator": None, "Date": None, "Format": None, "Type": None}
        figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    drawn = buffer.getvalue()
    drawn = drawn[drawn.index("<svg") :].strip()
    for stand_in, variable in _VARIABLES.items():
        drawn = drawn.replace(stand_in, variable)
    # Names inside one graphic must not meet those of another on the page.
    prefix = f"f{hashlib.blake2b(drawn.encode(), digest_size=4).hexdigest()}-"
    drawn = re.sub(r'\b(id="|href="#|url\(#)', rf"\g<1>{prefix}", drawn)
    drawn = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font: \1 system-ui, sans-serif", drawn)
    drawn = re.sub(r'^<svg [^>]*?(viewBox="[^"]*")[^>]*>', r"<svg \1>", drawn, count=1, flags=re.DOTALL)
    drawn = drawn.replace("<svg ", f'<svg role="img" aria-label="{text(title)}" ', 1)
    return Html(drawn.replace("xlink:href", "href"))
