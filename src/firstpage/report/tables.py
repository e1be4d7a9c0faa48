"""Tables of the page: the metrics of one or more runs, and facts about them."""

from collections.abc import Iterable, Mapping, Sequence

from firstpage.report.charts import RUNS
from firstpage.report.evaluation import CLASS_METRICS, Estimate, Evaluation, format_interval
from firstpage.report.facts import model_facts, recipe_differences, run_facts
from firstpage.report.markup import Html, join, name_tag, tag
from firstpage.runs.record import Record

WORST, MOST = 10, 2000  # classes shown at first, and expanded; the JSON of `evaluate` has all
HEADLINES = ("P@1", "P@R", "R@8", "MAP@R")  # not P@10: classes of six images end at 50 %
_MEANINGS = {
    "P@R": "right among the first R, for R right images in total",
    "MAP@R": "precision at each hit among the first R",
    "mAP": "average precision over the whole ranking",
    "MRR": "mean reciprocal rank of the first hit",
    "AUC": "area under the ROC curve",
    "NMI": "clusters against classes, geometric mean",
    "NMI arithmetic": "the same, arithmetic mean",
    "AMI": "the same, corrected for chance",
    "F1": "pairs in one cluster against pairs of one class",
    "pairs: accuracy": "pairs classified right, mean of the folds",
    "pairs: standard error": "of the accuracy, over the folds",
    "pairs: AUC": "area under the ROC curve of the pairs",
}


def render_tiles(evaluation: Evaluation) -> Html:
    """Show the main metrics in large type."""
    untrained = evaluation.untrained
    cards = []
    for name, estimate in evaluation.estimates.items():
        if name not in HEADLINES:
            continue
        notes: list[object] = [_meaning(name)]
        if estimate.queries:
            interval = tag("span", format_interval(estimate.queries), class_="nowrap")
            notes.append(Html(f"95 % interval {interval}"))
        if name in untrained:
            notes.append(f"untrained {untrained[name]:.1f}")
        cards.append(
            tag(
                "div",
                tag("dt", name),
                tag("dd", f"{estimate.value:.1f}", tag("small", " %"), class_="value"),
                tag("dd", _strip(estimate)),
                *(tag("dd", note, class_="note") for note in notes),
                class_="tile card",
            )
        )
    return tag("dl", *cards, class_="tiles")


def render_metrics(evaluation: Evaluation) -> Html:
    """Show all metrics with their intervals, and those of the untrained model."""
    before = {name: f"{value:.2f}" for name, value in evaluation.untrained.items()}
    rows = [
        tag(
            "tr",
            tag("th", estimate.name, scope="row"),
            tag("td", _meaning(estimate.name), class_="note wide-only"),
            tag("td", before.get(estimate.name, ""), class_="num note") if before else None,
            tag("td", f"{estimate.value:.2f}", class_="num"),
            tag("td", format_interval(estimate.queries), class_="num"),
            tag("td", format_interval(estimate.classes), class_="num"),
            tag("td", _strip(estimate), class_="widest-only"),
        )
        for estimate in _all_metrics(evaluation).values()
    ]
    groups = tag(
        "tr",
        tag("th", ""),
        tag("th", "", class_="wide-only"),
        tag("th", "") if before else None,
        tag("th", ""),
        tag("th", "95 % interval over", scope="colgroup", colspan=2, class_="num"),
        tag("th", "", class_="widest-only"),
    )
    columns = {"Metric": None, "Meaning": "wide-only"} | ({"untrained": "num"} if before else {})
    columns |= {"%": "num", "queries": "num", "classes": "num"}
    return _table(join([groups, _head(columns | {"0 … 100": "widest-only"})]), rows)


def render_comparison(runs: Mapping[str, Evaluation], ranked: bool = True) -> Html:
    """Show the metrics of several runs side by side with intervals; if ranked, the highest in bold.

    Beside them are those of the untrained models, once if they are the same.
    """
    columns = [_all_metrics(evaluation) for evaluation in runs.values()]
    before: dict[str, dict[str, float]] = {}
    for run, evaluation in runs.items():
        if evaluation.untrained and evaluation.untrained not in before.values():
            before[run] = evaluation.untrained
    rows = []
    for name in dict.fromkeys(name for column in columns for name in column):
        highest = max(column[name].value for column in columns if name in column)
        cells, strips = [], []
        for number, column in enumerate(columns):
            if name not in column:
                cells.append(tag("td", "–", class_="num"))
                continue
            estimate = column[name]
            best = ranked and estimate.value == highest and not name.endswith("standard error")
            value = tag("span", f"{estimate.value:.2f}", class_="best" if best else None)
            interval = tag("span", format_interval(estimate.queries), class_="interval")
            cells.append(tag("td", value, *((tag("br"), interval) if estimate.queries else ()), class_="num"))
            strips.append(_strip(estimate, number))
        for metrics in before.values():
            cells.append(tag("td", f"{metrics[name]:.2f}" if name in metrics else "–", class_="num note"))
        cells.append(tag("td", *strips, class_="widest-only"))
        rows.append(tag("tr", tag("th", name, scope="row"), *cells))
    strip = tag("th", "0 … 100", scope="col", class_="widest-only")
    titles = [f"{run}, untrained" if len(before) > 1 else "untrained" for run in before]
    untrained = [tag("th", name_tag(title), scope="col", class_="num") for title in titles]
    head = tag("tr", tag("th", "%", scope="col"), *_run_headings(runs), *untrained, strip)
    return _table(head, rows)


def render_classes(evaluation: Evaluation) -> Html:
    """Show the worst classes, and all of them on demand."""
    columns = {
        name: "num wide-only" if name in ("P@5", "R@4") else "num"  # a phone has room for two metrics
        for name in CLASS_METRICS
        if name in evaluation.estimates
    }
    head = _head({"Class": None, "Queries": "num"} | columns)

    def table(count: int) -> Html:
        rows = [
            tag(
                "tr",
                tag("th", name_tag(row["class"]), scope="row", class_="class"),
                tag("td", f"{row['queries']:,.0f}", class_="num"),
                *(tag("td", f"{row[name]:.1f}", class_=class_) for name, class_ in columns.items()),
            )
            for row in evaluation.classes[:count]
        ]
        return _table(head, rows)

    total = len(evaluation.classes)
    title = f"All {total:,} classes" if total <= MOST else f"The worst {MOST:,} of {total:,} classes"
    rest = tag("details", tag("summary", title), table(MOST)) if total > WORST else None
    return tag("div", table(WORST), rest, class_="card")


def render_facts(runs: Mapping[str, Evaluation]) -> Html:
    """Show the facts of each run, the settings in which they differ, and their full recipes."""
    records = {name: run.test.record for name, run in runs.items() if run.test.record}
    if len(runs) == 1:
        (run,) = runs.values()
        facts = [tag("div", tag("dt", name), tag("dd", fact)) for name, fact in _facts(run).items()]
        body = tag("dl", *facts, class_="facts")
    else:
        body = _compare_facts(runs, records)
    recipes = [
        tag(
            "details",
            tag("summary", f"Full recipe of {name}"),
            tag("pre", tag("code", record.recipe.toml()), tabindex=0),
        )
        for name, record in records.items()
    ]
    return join([body, *recipes])


def _facts(run: Evaluation) -> dict[str, str]:
    """Return the facts of a run, or of a saved model."""
    if run.test.record is not None:
        return run_facts(run.test.record)
    return {} if run.test.model is None else model_facts(run.test.model)


def _compare_facts(runs: Mapping[str, Evaluation], records: Mapping[str, Record]) -> Html:
    recipes = [record.recipe for record in records.values()]
    changed = recipe_differences(recipes) if len(recipes) == len(runs) else {}  # a saved model has no recipe
    columns = [_facts(run) for run in runs.values()]
    head = tag("tr", tag("th", "", scope="col"), *_run_headings(runs, None))

    def row(name: str, values: Sequence[str]) -> Html:
        return tag("tr", tag("th", name, scope="row"), *(tag("td", value) for value in values))

    parts = []
    if changed:
        parts += [tag("h3", "Settings that differ"), _table(head, [row(*item) for item in changed.items()])]
    names = dict.fromkeys(name for column in columns for name in column)
    rows = [row(name, [column.get(name, "–") for column in columns]) for name in names]
    return join([*parts, tag("h3", "All facts"), _table(head, rows)])


def render_swatch(number: int) -> Html:
    """Show the color of a run."""
    return tag("span", class_="swatch", style=f"--tint: var(--run-{number % RUNS})", aria_hidden="true")


def _run_headings(names: Iterable[str], class_: str | None = "num") -> list[Html]:
    return [
        tag("th", render_swatch(number), name_tag(name), scope="col", class_=class_)
        for number, name in enumerate(names)
    ]


def _head(columns: Mapping[str, str | None]) -> Html:
    """Return the row of headings, with their classes."""
    return tag("tr", *(tag("th", name, scope="col", class_=class_) for name, class_ in columns.items()))


def _table(head: Html, rows: Sequence[Html]) -> Html:
    return tag("div", tag("table", tag("thead", head), tag("tbody", *rows)), class_="scroll", tabindex=0)


def _all_metrics(evaluation: Evaluation) -> dict[str, Estimate]:
    more = {} if evaluation.clustering is None else evaluation.clustering.metrics()
    pairs = {} if evaluation.verification is None else evaluation.verification.metrics()
    more |= {f"pairs: {name}": value for name, value in pairs.items()}
    return evaluation.estimates | {name: Estimate(name, value) for name, value in more.items()}


def _meaning(name: str) -> str:
    kind, _, count = name.partition("@")
    if count.isdigit():
        if count == "1":
            return "first results that are right"
        return f"{'right' if kind == 'P' else 'a right one'} among the first\u00a0{count}"
    if kind == "pairs: TAR":
        rate = float(count.removeprefix("FAR="))
        return f"pairs of one class accepted at a false accept rate of {rate:.3g}"
    return _MEANINGS.get(name, "")


def _strip(estimate: Estimate, number: int = 0) -> Html | None:
    if estimate.name.endswith("standard error"):
        return None
    value = max(0.0, estimate.value)  # AMI is negative if below chance
    low, high = estimate.queries or (value, value)
    return tag(
        "span",
        tag("i", style=f"left: {low:.2f}%; width: {high - low:.2f}%"),
        tag("b", style=f"left: {value:.2f}%"),
        class_="strip",
        style=f"--tint: var(--run-{number % RUNS})",
        aria_hidden="true",
    )
