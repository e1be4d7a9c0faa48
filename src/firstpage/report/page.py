"""The report: a self-contained HTML page."""

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from importlib.resources import files
from pathlib import Path

import firstpage
from firstpage import durable
from firstpage.errors import UserError
from firstpage.figures.style import distinct_names
from firstpage.report import tables
from firstpage.report.charts import render_curves, render_health
from firstpage.report.evaluation import Evaluation, embed_test, evaluate_test
from firstpage.report.facts import run_facts
from firstpage.report.images import Thumbnails, render_map
from firstpage.report.lists import render_confusions, render_lists
from firstpage.report.marks import render_marks
from firstpage.report.markup import Html, name_tag, tag
from firstpage.runs.folder import fingerprint
from firstpage.runs.opening import open_run
from firstpage.runs.record import Record

_METRICS = tag(
    "p",
    "Percentages over the queries that have an image to find. Intervals are 95 % bootstrap intervals over "
    "queries and over classes; with dozens of classes, the latter is the one to use for new classes.",
    class_="note",
)
_DIFFERENT = tag(
    "p",
    "These runs were not tested on the same images: their metrics are not comparable.",
    class_="warning",
)
_LISTS = tag(
    "p",
    tag("span", "✓ green", class_="right-word"),
    " is of the query’s class, ",
    tag("span", "✗ red", class_="wrong-word"),
    " is not, and is labeled with its class. Queries are ordered by average precision, ties at random.",
    class_="note",
)
_CONFUSED = tag(
    "p",
    "Queries whose first result is of another class: the queries on the left, the results on the right.",
    class_="note",
)


def write_report(
    runs: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str] | None = None,
    *,
    data: str | os.PathLike[str] | None = None,
    classes: str | None = None,
    protocol: str | None = None,
    clustering: bool = True,
    exclude_same: str | None = None,
    index: str | os.PathLike[str] | None = None,
    device: str | None = None,
    cache: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> Path:
    """Evaluate one or more runs and write a self-contained HTML page about them.

    Args:
        runs: Run folders, or folders of saved models.
        out: The file. Defaults to `report.html` in the folder of the first run.
        data: A dataset. Defaults to each run's own. Saved models are tested as the first run is.
        classes: What makes a class in folders of images; see `firstpage.data.read`.
        protocol: `paper` or `fair`. Defaults to each run's own.
        clustering: Also cluster the test images, which is slow with thousands of classes.
        exclude_same: Column of the dataset, such as "camera": what has a query's value is no result of it.
        index: An index whose marks are shown; see `firstpage serve`.
        device: `cuda` or `cpu`. Defaults to a GPU if available.
        cache: Folder for cached pixels. Defaults to the user's cache.
        progress: Whether to show progress.

    Returns:
        Path of the file.

    Raises:
        FileNotFoundError: There is no model in a folder, or the data of a run was moved or changed.
        UserError: There are no runs, the same one twice, or one without a test in the data.

    >>> write_report([])
    Traceback (most recent call last):
    firstpage.errors.UserError: runs=[]: name at least one run folder
    """
    if not runs:
        raise UserError("runs=[]: name at least one run folder")
    names = distinct_names(runs)
    if len({*names}) < len(names):
        raise UserError(f"runs: {', '.join(map(str, runs))}: the same folder twice: name it once")
    target = durable.check(out if out is not None else Path(runs[0], "report.html"))
    marks = None if index is None else render_marks(index)
    first = next((run for run in runs if _is_run(run)), None)
    opened = [  # all of them first, to fail before minutes of work
        open_run(
            run,
            data,
            classes=classes,
            protocol=protocol,
            like=None if _is_run(run) else first,
            device=device,
            cache=cache,
            progress=progress,
        )
        for run in runs
    ]
    tests = [embed_test(run, exclude_same) for run in opened]
    del opened  # the models take memory
    evaluations = [evaluate_test(test, clustering=clustering) for test in tests]
    return write_page(dict(zip(names, evaluations, strict=True)), target, marks=marks)


def _is_run(folder: str | os.PathLike[str]) -> bool:
    return Path(folder, "run.json").is_file()


def write_page(
    runs: Mapping[str, Evaluation], path: str | os.PathLike[str], *, marks: Sequence[Html] | None = None
) -> Path:
    """Write the HTML page of some evaluations, atomically.

    Args:
        runs: Evaluations by the names to show.
        path: The file.
        marks: Also show these marks, from `render_marks`.

    Returns:
        Path of the file.

    >>> write_page({}, "report.html")
    Traceback (most recent call last):
    firstpage.errors.UserError: runs={}: must have at least one evaluation
    """
    target, text = Path(path), render_page(runs, marks)
    target.parent.mkdir(parents=True, exist_ok=True)
    durable.write(target, text.encode())
    return target


def render_page(runs: Mapping[str, Evaluation], marks: Sequence[Html] | None = None) -> Html:
    """Render the HTML page of some evaluations.

    Args:
        runs: Evaluations by the names to show.
        marks: Also show these marks, from `render_marks`.

    Raises:
        UserError: There are no evaluations.

    >>> render_page({})
    Traceback (most recent call last):
    firstpage.errors.UserError: runs={}: must have at least one evaluation
    """
    if not runs:
        raise UserError("runs={}: must have at least one evaluation")
    groups = _group_by_test(runs)
    sections = [section for section in _sections(runs, groups, marks or ()) if section[2]]
    nav = tag("nav", tag("ul", *(tag("li", tag("a", title, href=f"#{name}")) for name, title, _ in sections)))
    body = [
        tag("section", tag("h2", title, id=f"{name}-title"), *parts, id=name, aria_labelledby=f"{name}-title")
        for name, title, parts in sections
    ]
    title = " · ".join(runs)
    document = tag(
        "html",
        tag(
            "head",
            tag("meta", charset="utf-8"),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", name="generator", content=f"firstpage {firstpage.__version__}"),
            tag("title", f"{title} – firstpage report"),
            tag("style", Html((files("firstpage.report") / "style.css").read_text(encoding="utf-8"))),
        ),
        tag("body", _render_header(runs, len(groups) == 1), nav, tag("main", *body), _render_footer(runs)),
        lang="en",
    )
    return Html(f"<!doctype html>\n{document}\n")


def _render_header(runs: Mapping[str, Evaluation], same_test: bool) -> Html:
    first = next(iter(runs.values()))
    lines = [_describe_test(first)]
    if not same_test:
        lines = [f"{name}: {_describe_test(run)}" for name, run in runs.items()]
    if len(runs) == 1 and first.test.record is not None:
        lines.append(_describe_training(first.test.record))
    heading = Html(" · ".join(map(name_tag, runs)))
    return tag(
        "header",
        tag(
            "div",
            tag("p", "firstpage report", class_="brand"),
            tag("h1", heading),
            tag("p", *(part for line in lines for part in (line, tag("br"))), class_="lead"),
            tables.render_tiles(first) if len(runs) == 1 else None,
        ),
    )


def _describe_test(evaluation: Evaluation) -> str:
    test, retrieval = evaluation.test, evaluation.retrieval
    among = "one another" if test.gallery is None else f"a gallery of {len(test.gallery):,}"
    omitted = ""
    if retrieval.without_positive:
        omitted = f"; {retrieval.without_positive:,} with nothing to find are omitted"
    return (
        f"{retrieval.queries:,} queries of {evaluation.class_count()} of {test.data}, "
        f"searching {among}{omitted}. Protocol: {test.protocol}."
        + "".join(f" {note}." for note in test.notes)
    )


def _describe_training(record: Record) -> str:
    facts = run_facts(record)
    time = f" in {facts['Time in training']} on {facts['Device']}" if "Time in training" in facts else ""
    epochs = f"{facts['Epochs']} epoch{'s' if facts['Epochs'] != '1' else ''}"
    last_step = int(max((line["step"] for line in record.log), default=0))
    status = "" if record.result else f" Not finished: the log ends at step {last_step:,}."
    if not record.recipe.schedule.epochs:
        return f"Not trained, as a baseline: {facts['Model']}.{status}"
    return f"Trained with {facts['Loss']}: {facts['Model']}; {epochs}{time}.{status}"


def _sections(
    runs: Mapping[str, Evaluation], groups: Sequence[Mapping[str, Evaluation]], marks: Sequence[Html]
) -> list[tuple[str, str, list[Html]]]:
    """Return id, title and content of each section; an empty one is not shown."""
    several = len(runs) > 1
    thumbnails: dict[str, Thumbnails] = {}
    lists = []
    for group in groups:
        images = Thumbnails(next(iter(group.values())).test.catalog)
        thumbnails |= dict.fromkeys(group, images)
        lists += render_lists(group, images, list(runs))

    def each(render: Callable[[Evaluation, Thumbnails], Html]) -> list[Html]:
        parts = []
        for number, (name, evaluation) in enumerate(runs.items()):
            parts += [tag("h3", tables.render_swatch(number), name_tag(name))] if several else []
            parts.append(render(evaluation, thumbnails[name]))
        return parts

    same_test = len(groups) == 1
    if several:
        metrics = tables.render_comparison(runs, ranked=same_test)
    else:
        metrics = tables.render_metrics(next(iter(runs.values())))
    return [
        (
            "metrics",
            "Side by side" if several else "Metrics",
            [_METRICS, *([] if same_test else [_DIFFERENT]), tag("div", metrics, class_="card")],
        ),
        ("curves", "Curves", [render_curves(runs)]),
        ("health", "Health during training", render_health(runs)),
        ("lists", "Retrieved lists", [_LISTS, *lists]),
        ("confused", "Confused classes", [_CONFUSED, *each(render_confusions)]),
        ("classes", "Worst classes", each(lambda evaluation, _: tables.render_classes(evaluation))),
        ("marks", "Marks", list(marks)),
        ("map", "Map of the embedding", each(render_map)),
        ("run", "Run details", [tag("div", tables.render_facts(runs), class_="card")]),
    ]


def _render_footer(runs: Mapping[str, Evaluation]) -> Html:
    protocols = {
        "paper": "paper: the best epoch was selected on the test classes, as in the papers.",
        "fair": "fair: the best epoch was selected on images that are not in the test, of classes held out "
        "of training if there were enough; the test was used once.",
    }
    used = {run.test.record.recipe.train.protocol for run in runs.values() if run.test.record}
    return tag(
        "footer",
        *(tag("p", text) for name, text in protocols.items() if name in used),
        tag("p", f"Made by firstpage {firstpage.__version__} on {date.today()}. It needs no other file."),
    )


def _group_by_test(runs: Mapping[str, Evaluation]) -> list[dict[str, Evaluation]]:
    """Group the runs by their tests: only runs with the same test can be compared query by query."""
    groups: dict[tuple[object, ...], dict[str, Evaluation]] = {}
    for name, evaluation in runs.items():
        test = evaluation.test
        key = fingerprint(test.catalog), test.rows.queries.tobytes(), test.searched_rows.tobytes()
        groups.setdefault(key, {})[name] = evaluation
    return list(groups.values())
