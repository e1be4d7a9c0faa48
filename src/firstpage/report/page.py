"""The report: one HTML file that opens anywhere, offline."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from importlib.resources import files
from pathlib import Path

import numpy as np

import firstpage
from firstpage import durable
from firstpage.errors import UserError
from firstpage.figures.style import apart
from firstpage.models.embedder import Embedder
from firstpage.report.charts import curves, health
from firstpage.report.embedding import embedding_map
from firstpage.report.facts import facts
from firstpage.report.lists import confusions, retrieved
from firstpage.report.markup import Html, join, named, tag
from firstpage.report.measure import Measured, measure
from firstpage.report.pictures import Album
from firstpage.report.subject import Subject
from firstpage.report.tables import classes, comparison, metrics, swatch, tiles, what_ran
from firstpage.runs.folder import fingerprint
from firstpage.runs.record import Record

__all__ = ["page", "report", "write"]

_FIGURES = tag(
    "p",
    "Percentages over the queries that have something to find. An interval holds the figure in 95 of 100 "
    "draws of other queries, or of other classes: for classes never seen the honest one, given some dozens.",
    class_="note",
)
_DIFFERENT = tag(
    "p",
    "These runs were not tested on the same images: their figures say little about which is better.",
    class_="warning",
)
_LISTS = tag(
    "p",
    tag("span", "✓ green", class_="right-word"),
    " is of the query’s class, ",
    tag("span", "✗ red", class_="wrong-word"),
    " is not, and says what it is. Ordered by average precision; ties are drawn by lot.",
    class_="note",
)
_CONFUSED = tag(
    "p",
    "Queries of one class whose first result is of another: left the query, right what came first.",
    class_="note",
)


def report(
    runs: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str] | None = None,
    *,
    data: str | os.PathLike[str] | None = None,
    protocol: str | None = None,
    clustering: bool = True,
    device: str | None = None,
    cache: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> Path:
    """Measure one run or several and write all that can be shown of them into one HTML file.

    Args:
        runs: run folders, or folders of saved models.
        out: the file; `report.html` in the first run's folder if left out.
        data: a data set; that of each run, where it was, if left out.
        protocol: `paper` or `fair`; each run's own if left out.
        clustering: also cluster the test images, which costs much with thousands of classes.
        device: where; a GPU where there is one if left out.
        cache: where stores of pixels are kept; the user's cache if left out.
        progress: show progress.

    Raises:
        FileNotFoundError: no run there, or no data.
        UserError: no run was given, or one does not fit the data.

    >>> report([])
    Traceback (most recent call last):
    firstpage.errors.UserError: runs=[]: name at least one run folder
    """
    if not runs:
        raise UserError("runs=[]: name at least one run folder")
    names = _names(runs)
    target = durable.check(out if out is not None else Path(runs[0], "report.html"))
    for run in runs:
        Embedder.load(run)  # what is no model is said before minutes are spent on the others
    subjects = [
        Subject.open(run, data, protocol=protocol, device=device, cache=cache, progress=progress)
        for run in runs
    ]
    measured = [measure(subject, clustering=clustering) for subject in subjects]
    return write(dict(zip(names, measured, strict=True)), target)


def write(runs: Mapping[str, Measured], path: str | os.PathLike[str]) -> Path:
    """Write the page of what was measured, all or nothing.

    Args:
        runs: what was measured, by the name to show.
        path: the file.

    >>> write({}, "report.html")
    Traceback (most recent call last):
    firstpage.errors.UserError: runs={}: measure at least one
    """
    target, text = Path(path), page(runs)
    target.parent.mkdir(parents=True, exist_ok=True)
    durable.write(target, text.encode())
    return target


def page(runs: Mapping[str, Measured]) -> Html:
    """The whole document.

    Args:
        runs: what was measured, by the name to show.

    Raises:
        UserError: nothing was measured.

    >>> page({})
    Traceback (most recent call last):
    firstpage.errors.UserError: runs={}: measure at least one
    """
    if not runs:
        raise UserError("runs={}: measure at least one")
    groups = _alike(runs)
    sections = [section for section in _sections(runs, groups) if section[2]]
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
        tag("body", _header(runs, len(groups) == 1), nav, tag("main", *body), _footer(runs)),
        lang="en",
    )
    return Html(f"<!doctype html>\n{document}\n")


def _header(runs: Mapping[str, Measured], alike: bool) -> Html:
    first = next(iter(runs.values()))
    said = [_tested(first)] if alike else [f"{n}: {_tested(r)}" for n, r in runs.items()]
    said += [line for line in (_trained(run) for run in runs.values()) if line and len(runs) == 1]
    names = [named(name) for name in runs]
    heading = join([names[0], *(part for name in names[1:] for part in (" · ", name))])
    return tag(
        "header",
        tag(
            "div",
            tag("p", "firstpage report", class_="brand"),
            tag("h1", heading),
            tag("p", *(part for line in said for part in (line, tag("br"))), class_="lead"),
            tiles(first) if len(runs) == 1 else None,
        ),
    )


def _tested(measured: Measured) -> str:
    subject, retrieval = measured.subject, measured.retrieval
    among = "one another" if subject.gallery is None else f"a gallery of {len(subject.gallery):,}"
    left = (
        f"; {retrieval.without_positive:,} with nothing to find are left out"
        if retrieval.without_positive
        else ""
    )
    return (
        f"{retrieval.queries:,} queries of {measured.counted_classes()} of {subject.data}, "
        f"searching {among}{left}. Protocol: {subject.protocol}."
        + "".join(f" {note}." for note in subject.notes)
    )


def _trained(measured: Measured) -> str:
    record = measured.subject.record
    if record is None:
        return ""
    known = facts(record)
    time = f" in {known['Time in training']} on {known['Device']}" if "Time in training" in known else ""
    epochs = f"{known['Epochs']} epoch{'s' if known['Epochs'] != '1' else ''}"
    left = "" if record.result else f" Not finished: the log ends at step {_last(record):,}."
    return f"Trained with {known['Loss']}: {known['Model']}; {epochs}{time}.{left}"


def _last(record: Record) -> int:
    return int(max((line["step"] for line in record.log), default=0))


def _sections(
    runs: Mapping[str, Measured], groups: Sequence[Mapping[str, Measured]]
) -> list[tuple[str, str, list[Html]]]:
    several = len(runs) > 1
    albums = [Album(next(iter(group.values())).subject.catalog) for group in groups]
    album_of = {name: album for group, album in zip(groups, albums, strict=True) for name in group}

    def each(draw: Callable[[Measured, Album], Html]) -> list[Html]:
        parts = []
        for number, (name, measured) in enumerate(runs.items()):
            parts += [tag("h3", swatch(number), named(name))] if several else []
            parts.append(draw(measured, album_of[name]))
        return parts

    differing = _DIFFERENT if len(groups) > 1 else None
    figures = comparison(runs, ranked=differing is None) if several else metrics(next(iter(runs.values())))
    lists = [
        part
        for group, album in zip(groups, albums, strict=True)
        for part in retrieved(group, album, list(runs))
    ]
    return [
        (
            "figures",
            "Side by side" if several else "Figures",
            [_FIGURES, *filter(None, [differing]), tag("div", figures, class_="card")],
        ),
        ("curves", "Curves", [curves(runs)]),
        ("health", "Health along training", health(runs)),
        ("lists", "Retrieved lists", [_LISTS, *lists]),
        ("confused", "Confused classes", [_CONFUSED, *each(confusions)]),
        ("classes", "Worst classes", each(lambda measured, _: classes(measured))),
        ("map", "Map of the embedding", each(embedding_map)),
        ("run", "What ran", [tag("div", what_ran(runs), class_="card")]),
    ]


def _footer(runs: Mapping[str, Measured]) -> Html:
    protocols = {
        "paper": "paper: the best epoch was chosen on the test classes, as the papers do.",
        "fair": "fair: the best epoch was chosen on classes held out of training; the test was touched once.",
    }
    records = [run.subject.record for run in runs.values()]
    used = {record.recipe.train.protocol for record in records if record is not None}
    return tag(
        "footer",
        *(tag("p", said) for name, said in protocols.items() if name in used),
        tag(
            "p",
            f"Made by firstpage {firstpage.__version__} on {date.today()}. It needs no other file.",
        ),
    )


def _alike(runs: Mapping[str, Measured]) -> list[dict[str, Measured]]:
    """The runs, grouped by the test they take: only those of one test can be shown query by query."""
    groups: list[dict[str, Measured]] = []
    for name, measured in runs.items():
        for group in groups:
            other = next(iter(group.values())).subject
            same = fingerprint(other.catalog) == fingerprint(measured.subject.catalog)
            if same and all(
                np.array_equal(one, two)
                for one, two in (
                    (other.search.queries, measured.subject.search.queries),
                    (other.results, measured.subject.results),
                )
            ):
                group[name] = measured
                break
        else:
            groups.append({name: measured})
    return groups


def _names(runs: Sequence[str | os.PathLike[str]]) -> list[str]:
    """The folders' names, told apart."""
    names = apart(runs)
    if len({*names}) < len(names):
        raise UserError(f"runs: {', '.join(map(str, runs))}: the same folder twice: name it once")
    return names
