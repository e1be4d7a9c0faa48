"""The page's tables: the figures of one run or several, and what ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from firstpage.report.charts import RUNS
from firstpage.report.facts import differences, facts, model_facts
from firstpage.report.markup import Html, join, named, tag
from firstpage.report.measure import BY_CLASS, Estimate, Measured, written
from firstpage.runs.record import Record

WORST, MOST = 10, 2000  # classes shown at once, and unfolded: the JSON of `evaluate` has all
HEADLINES = ("P@1", "P@10", "R@8", "MAP@R")
_MEANINGS = {
    "P@R": "right among the first R, R being all there are",
    "MAP@R": "precision at each hit among the first R",
    "mAP": "average precision over the whole ranking",
    "MRR": "one over the place of the first hit",
    "AUC": "a right image ranks before a wrong one",
    "NMI": "clusters against classes, geometric mean",
    "NMI arithmetic": "the same, arithmetic mean",
    "AMI": "the same, corrected for chance",
    "F1": "pairs in one cluster against pairs of one class",
    "pairs: accuracy": "pairs judged right, mean of the folds",
    "pairs: standard error": "of the accuracy, over the folds",
    "pairs: AUC": "a pair of one class is more alike than one of two",
}


def tiles(measured: Measured) -> Html:
    """The figures a reader looks for first, large."""
    start = _untrained(measured)
    cards = []
    for name in HEADLINES:
        if name not in measured.estimates:
            continue
        estimate = measured.estimates[name]
        said: list[object] = [_meaning(name)]
        if estimate.queries:
            said.append(join(["95 % interval ", tag("span", written(estimate.queries), class_="nowrap")]))
        if name in start:
            said.append(f"untrained {start[name]:.1f}")
        cards.append(
            tag(
                "div",
                tag("dt", name),
                tag("dd", f"{estimate.value:.1f}", tag("small", " %"), class_="value"),
                tag("dd", _strip(estimate)),
                *(tag("dd", line, class_="note") for line in said),
                class_="tile card",
            )
        )
    return tag("dl", *cards, class_="tiles")


def metrics(measured: Measured) -> Html:
    """Every figure with its intervals."""
    rows = [
        tag(
            "tr",
            tag("th", estimate.name, scope="row"),
            tag("td", _meaning(estimate.name), class_="note wide-only"),
            tag("td", f"{estimate.value:.2f}", class_="num"),
            tag("td", written(estimate.queries), class_="num"),
            tag("td", written(estimate.classes), class_="num"),
            tag("td", _strip(estimate), class_="widest-only"),
        )
        for estimate in _all(measured).values()
    ]
    head = join(
        (
            tag(
                "tr",
                tag("th", ""),
                tag("th", "", class_="wide-only"),
                tag("th", ""),
                tag("th", "95 % interval over", scope="colgroup", colspan=2, class_="num"),
                tag("th", "", class_="widest-only"),
            ),
            tag(
                "tr",
                tag("th", "Figure", scope="col"),
                tag("th", "What it is", scope="col", class_="wide-only"),
                tag("th", "%", scope="col", class_="num"),
                tag("th", "queries", scope="col", class_="num"),
                tag("th", "classes", scope="col", class_="num"),
                tag("th", "0 … 100", scope="col", class_="widest-only"),
            ),
        )
    )
    return _table(head, rows)


def comparison(runs: Mapping[str, Measured], ranked: bool = True) -> Html:
    """The figures of several runs side by side, each with its interval; if ranked, the highest in bold."""
    columns = {name: _all(measured) for name, measured in runs.items()}
    names = list(dict.fromkeys(name for column in columns.values() for name in column))
    rows = []
    for name in names:
        values = {run: column[name] for run, column in columns.items() if name in column}
        highest = max(estimate.value for estimate in values.values())
        cells, strips = [], []
        for number, run in enumerate(runs):
            if run not in values:
                cells.append(tag("td", "–", class_="num"))
                continue
            estimate = values[run]
            ahead = ranked and estimate.value == highest and not name.endswith("standard error")
            best = "best" if ahead else None
            span = tag("span", written(estimate.queries), class_="span") if estimate.queries else None
            value = tag("span", f"{estimate.value:.2f}", class_=best)
            cells.append(tag("td", value, tag("br") if span else None, span, class_="num"))
            strips.append(_strip(estimate, number))
        row = tag("tr", tag("th", name, scope="row"), *cells, tag("td", *strips, class_="widest-only"))
        rows.append(row)
    strip = tag("th", "0 … 100", scope="col", class_="widest-only")
    head = tag("tr", tag("th", "%", scope="col"), *_run_heads(list(runs)), strip)
    return _table(head, rows)


def classes(measured: Measured) -> Html:
    """The worst classes, and all of them to be unfolded."""
    columns = [name for name in BY_CLASS if name in measured.estimates]
    head = tag(
        "tr",
        tag("th", "Class", scope="col"),
        tag("th", "Queries", scope="col", class_="num"),
        *(tag("th", name, scope="col", class_=_column(name)) for name in columns),
    )

    def table(count: int) -> Html:
        rows = [
            tag(
                "tr",
                tag("th", named(row["class"]), scope="row", class_="class"),
                tag("td", f"{row['queries']:,.0f}", class_="num"),
                *(tag("td", f"{row[name]:.1f}", class_=_column(name)) for name in columns),
            )
            for row in measured.classes[:count]
        ]
        return _table(head, rows)

    there = len(measured.classes)
    title = f"All {there:,} classes" if there <= MOST else f"The worst {MOST:,} of {there:,} classes"
    rest = tag("details", tag("summary", title), table(MOST)) if there > WORST else None
    return tag("div", table(WORST), rest, class_="card")


def _column(name: str) -> str:
    return "num wide-only" if name in ("P@5", "R@4") else "num"  # a phone has room for two and the class


def what_ran(runs: Mapping[str, Measured]) -> Html:
    """The facts of each run, where several differ, and the recipes whole."""
    records = {name: run.subject.record for name, run in runs.items() if run.subject.record is not None}
    if len(runs) == 1:
        (run,) = runs.values()
        known = _facts(run)
        body = tag(
            "dl", *(tag("div", tag("dt", name), tag("dd", known[name])) for name in known), class_="facts"
        )
    else:
        body = _facts_beside(runs, records)
    recipes = [
        tag(
            "details",
            tag("summary", f"The recipe of {name}, whole"),
            tag("pre", tag("code", record.recipe.toml()), tabindex=0),
        )
        for name, record in records.items()
    ]
    return join([body, *recipes])


def _facts(run: Measured) -> dict[str, str]:
    """What ran; of a saved model without its run, what it is made of."""
    if run.subject.record is not None:
        return facts(run.subject.record)
    return {} if run.subject.model is None else model_facts(run.subject.model)


def _facts_beside(runs: Mapping[str, Measured], records: Mapping[str, Record]) -> Html:
    # A saved model has no recipe to compare.
    changed = differences([record.recipe for record in records.values()]) if len(records) == len(runs) else {}
    columns = [_facts(run) for run in runs.values()]
    names = list(dict.fromkeys(name for column in columns for name in column))
    head = tag("tr", tag("th", "", scope="col"), *_run_heads(list(runs), None))

    def row(name: str, values: Sequence[str]) -> Html:
        return tag("tr", tag("th", name, scope="row"), *(tag("td", value) for value in values))

    parts = []
    if changed:
        parts += [tag("h3", "Settings that differ"), _table(head, [row(*item) for item in changed.items()])]
    rows = [row(name, [column.get(name, "–") for column in columns]) for name in names]
    return join([*parts, tag("h3", "All of it"), _table(head, rows)])


def swatch(number: int) -> Html:
    """The color of a run."""
    return tag("span", class_="swatch", style=f"--tint: var(--run-{number % RUNS})", aria_hidden="true")


def _run_heads(names: Sequence[str], kind: str | None = "num") -> list[Html]:
    return [
        tag("th", swatch(number), named(name), scope="col", class_=kind) for number, name in enumerate(names)
    ]


def _table(head: Html, rows: Sequence[Html]) -> Html:
    return tag("div", tag("table", tag("thead", head), tag("tbody", *rows)), class_="scroll", tabindex=0)


def _all(measured: Measured) -> dict[str, Estimate]:
    more = {} if measured.clustering is None else measured.clustering.metrics()
    pairs = {} if measured.verification is None else measured.verification.metrics()
    more |= {f"pairs: {name}": value for name, value in pairs.items()}
    return measured.estimates | {name: Estimate(name, value) for name, value in more.items()}


def _untrained(measured: Measured) -> dict[str, float]:
    """The figures of the same test before training, where the log has them."""
    record = measured.subject.record
    if record is None or not measured.subject.own_data or record.recipe.train.protocol != "paper":
        return {}
    return next((line for line in record.evaluations if line.get("epoch") == 0), {})


def _meaning(name: str) -> str:
    kind, _, count = name.partition("@")
    if count.isdigit():
        if count == "1":
            return "first results that are right"
        return f"{'right' if kind == 'P' else 'a right one'} among the first\u00a0{count}"
    if kind == "pairs: TAR":
        return f"pairs of one class accepted, with {float(count.removeprefix('FAR=')):.3g} of the others"
    return _MEANINGS.get(name, "")


def _strip(estimate: Estimate, number: int = 0) -> Html | None:
    if estimate.name.endswith("standard error"):
        return None
    value = max(0.0, estimate.value)  # AMI may fall short of chance
    low, high = estimate.queries or (value, value)
    return tag(
        "span",
        tag("i", style=f"left: {low:.2f}%; width: {high - low:.2f}%"),
        tag("b", style=f"left: {value:.2f}%"),
        class_="strip",
        style=f"--tint: var(--run-{number % RUNS})",
        aria_hidden="true",
    )
