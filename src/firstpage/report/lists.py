"""What the searches returned, in pictures: lists in green and red frames, and confused classes."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from firstpage.report.markup import Html, tag
from firstpage.report.measure import Measured
from firstpage.report.pictures import Album, pick
from firstpage.report.tables import swatch

__all__ = ["classes", "confusions", "retrieved"]

PER_GROUP = 4  # queries shown of the best, the median and the worst
PAIRS, EXAMPLES = 9, 3
_TITLES = {
    "best": "Best queries",
    "median": "Median queries",
    "worst": "Worst queries",
}


def retrieved(runs: Mapping[str, Measured], album: Album) -> list[Html]:
    """Queries with their first results: the best, the median and the worst by average precision.

    Runs that take the same test are shown side by side, query by query, chosen by their mean.

    Args:
        runs: by name, all of the same test.
        album: pictures of its catalog.
    """
    first = next(iter(runs.values()))
    scores = torch.stack([run.retrieval.per_query["mAP"].cpu() for run in runs.values()]).mean(0)
    blocks = []
    for kind, positions in pick(scores, first.retrieval.labels, PER_GROUP).items():
        rows = [_query(runs, album, position) for position in positions]
        blocks += [tag("h3", _TITLES[kind]), tag("div", *rows, class_="card")]
    return blocks


def _query(runs: Mapping[str, Measured], album: Album, position: int) -> Html:
    first = next(iter(runs.values()))
    row = int(first.subject.search.queries[int(first.retrieval.rows[position])])
    label = int(album.catalog.labels[row])
    name = album.catalog.classes[label]
    lines = []
    for number, (run, measured) in enumerate(runs.items()):
        score = float(measured.retrieval.per_query["mAP"][position])
        found = [
            int(measured.subject.results[place]) for place in measured.retrieval.first[position][:10].tolist()
        ]
        items = []
        for rank, result in enumerate(found, start=1):
            right = int(album.catalog.labels[result]) == label
            shown = album.catalog.classes[int(album.catalog.labels[result])]
            items.append(
                tag(
                    "li",
                    album.picture(result, f"Result {rank}, {'right' if right else 'wrong'}: {shown}"),
                    tag("span", "✓" if right else "✗", class_="mark", aria_hidden="true"),
                    None if right else tag("bdi", shown, class_="name", title=shown),
                    class_=f"result {'is-right' if right else 'is-wrong'}",
                )
            )
        title = f"average precision {score:.0f}\u00a0%"
        head = (
            tag("p", swatch(number), tag("bdi", run), f" · {title}", class_="note") if len(runs) > 1 else None
        )
        lines.append(tag("div", head, tag("ol", *items, class_="results"), class_="found"))
    said = None if len(runs) > 1 else tag("div", title, class_="note")
    asked = tag(
        "div", album.picture(row, f"Query: {name}"), tag("div", tag("bdi", name), said), class_="asked"
    )
    return tag("div", asked, tag("div", *lines), class_="query")


def confusions(measured: Measured, album: Album) -> Html:
    """The pairs of classes most often confused, with queries and what was found first in their place."""
    retrieval, names = measured.retrieval, album.catalog.classes
    first = torch.as_tensor(measured.subject.results).to(retrieval.first.device)[retrieval.first[:, 0]].cpu()
    found_labels = torch.from_numpy(album.catalog.labels)[first]
    asked_labels = retrieval.labels.cpu()
    items = []
    for query, found, count in retrieval.confusions(PAIRS):
        cases = ((asked_labels == query) & (found_labels == found)).nonzero().flatten()
        total = int((asked_labels == query).sum())
        rows = [int(measured.subject.search.queries[int(retrieval.rows[case])]) for case in cases[:EXAMPLES]]
        results = [int(first[case]) for case in cases[:EXAMPLES]]
        sides = [
            tag(
                "div",
                tag("div", *(album.picture(row, f"{word}: {names[label]}") for row in shown), class_="shown"),
                tag("bdi", names[label]),
            )
            for word, label, shown in (("Query", query, rows), ("Found first", found, results))
        ]
        middle = tag(
            "div", tag("span", f"{count}", class_="count"), f"of {total}", tag("br"), "→", class_="arrow"
        )
        items.append(tag("li", sides[0], middle, sides[1], class_="pair card"))
    if not items:
        return tag("p", "Every first result is right: there is nothing to confuse.", class_="note")
    return tag("ul", *items, class_="pairs")


def classes(measured: Measured, worst: int = 10, most: int = 2000) -> Html:
    """The worst classes, and all of them to be unfolded."""
    columns = [name for name in ("P@1", "P@5", "R@4", "MAP@R") if name in measured.estimates]

    def table(rows: list[dict[str, object]]) -> Html:
        head = tag(
            "tr",
            tag("th", "Class", scope="col"),
            tag("th", "Queries", scope="col", class_="num"),
            *(tag("th", name, scope="col", class_="num") for name in columns),
        )
        body = [
            tag(
                "tr",
                tag("th", tag("bdi", row["class"]), scope="row"),
                tag("td", f"{row['queries']:,.0f}", class_="num"),
                *(tag("td", f"{row[name]:.1f}", class_="num") for name in columns),
            )
            for row in rows
        ]
        return tag("div", tag("table", tag("thead", head), tag("tbody", *body)), class_="scroll", tabindex=0)

    found = measured.classes
    rest = None
    if len(found) > worst:
        title = (
            f"All {len(found):,} classes"
            if len(found) <= most
            else f"The worst {most:,} of {len(found):,} classes"
        )
        rest = tag("details", tag("summary", title), table(found[:most]))
    return tag("div", table(found[:worst]), rest, class_="card")
