"""What the searches returned, in pictures: lists in green and red frames, and confused classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from firstpage.report.markup import Html, named, tag
from firstpage.report.measure import Measured
from firstpage.report.pictures import Album, pick
from firstpage.report.tables import swatch

PER_GROUP = 4  # queries shown of the best, the median and the worst
PAIRS, EXAMPLES = 9, 3
_TITLES = {
    "best": "Best queries",
    "median": "Median queries",
    "worst": "Worst queries",
}


def retrieved(runs: Mapping[str, Measured], album: Album, page: Sequence[str]) -> list[Html]:
    """Queries with their first results: the best, the median and the worst by average precision.

    Runs that take the same test are shown side by side, query by query, chosen by their mean.

    Args:
        runs: by name, all of the same test.
        album: pictures of its catalog.
        page: the names of all runs of the page: a run has one color throughout.
    """
    whose = (" of ", named(", ".join(runs))) if len(runs) < len(page) else ()
    first = next(iter(runs.values()))
    scores = torch.stack([run.retrieval.per_query["mAP"] for run in runs.values()]).mean(0)
    blocks = []
    for kind, positions in pick(scores, first.retrieval.labels, PER_GROUP).items():
        rows = [_query(runs, album, position, page) for position in positions]
        blocks += [tag("h3", _TITLES[kind], *whose), tag("div", *rows, class_="card")]
    return blocks


def _query(runs: Mapping[str, Measured], album: Album, position: int, page: Sequence[str]) -> Html:
    first = next(iter(runs.values()))
    row = int(first.subject.search.queries[int(first.retrieval.rows[position])])
    label = int(album.catalog.labels[row])
    name = album.catalog.classes[label]
    lines = []
    several = len(page) > 1
    for run, measured in runs.items():
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
                    None if right else named(shown, class_="name", title=shown),
                    class_=f"result {'is-right' if right else 'is-wrong'}",
                )
            )
        title = f"average precision {score:.0f}\u00a0%"
        tint = swatch(page.index(run))
        head = tag("p", tint, named(run), f" · {title}", class_="note") if several else None
        lines.append(tag("div", head, tag("ol", *items, class_="results"), class_="found"))
    said = None if several else tag("div", title, class_="note")
    asked = tag("div", album.picture(row, f"Query: {name}"), tag("div", named(name), said), class_="asked")
    return tag("div", asked, tag("div", *lines), class_="query")


def confusions(measured: Measured, album: Album) -> Html:
    """The pairs of classes most often confused, with queries and what was found first in their place."""
    retrieval, names = measured.retrieval, album.catalog.classes
    subject = measured.subject
    items = []
    for query, found, count in retrieval.confusions(PAIRS):
        asked = retrieval.labels == query
        cases = (asked & (retrieval.first_labels[:, 0] == found)).nonzero().flatten()[:EXAMPLES]
        rows = [int(row) for row in subject.search.queries[retrieval.rows[cases].numpy()]]
        results = [int(row) for row in subject.results[retrieval.first[cases, 0].numpy()]]
        sides = [
            tag(
                "div",
                tag("div", *(album.picture(row, f"{word}: {names[label]}") for row in shown), class_="shown"),
                named(names[label]),
            )
            for word, label, shown in (("Query", query, rows), ("Found first", found, results))
        ]
        middle = tag(
            "div",
            tag("span", f"{count}", class_="count"),
            f"of {int(asked.sum())}",
            tag("br"),
            "→",
            class_="arrow",
        )
        items.append(tag("li", sides[0], middle, sides[1], class_="pair card"))
    if not items:
        return tag("p", "Every first result is right: there is nothing to confuse.", class_="note")
    return tag("ul", *items, class_="pairs")
