"""Retrieved lists and confused classes, shown by their images."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from firstpage.report.evaluation import Evaluation
from firstpage.report.images import Thumbnails
from firstpage.report.markup import Html, name_tag, shorten_name, tag
from firstpage.report.tables import render_swatch

SHORT, LONG = 24, 60  # characters of a class name below a result, and beside a query
PER_GROUP = 4  # queries of the best, the median and the worst each
PAIRS, EXAMPLES = 9, 3  # confused pairs of classes, and images of each class


def render_lists(
    runs: Mapping[str, Evaluation], thumbnails: Thumbnails, all_names: Sequence[str]
) -> list[Html]:
    """Show the first results of queries: the best, the median and the worst by average precision.

    Runs with the same test are shown side by side, for queries selected by their mean.

    Args:
        runs: Evaluations by name, all of the same test.
        thumbnails: Images of its catalog.
        all_names: Names of all runs on the page, which determine their colors.
    """
    suffix = (" of ", name_tag(", ".join(runs))) if len(runs) < len(all_names) else ()
    first = next(iter(runs.values()))
    scores = torch.stack([run.retrieval.per_query["mAP"] for run in runs.values()]).mean(0)
    blocks = []
    for kind, positions in select_examples(scores, first.retrieval.labels, PER_GROUP).items():
        queries = [_render_query(runs, thumbnails, position, all_names) for position in positions]
        blocks += [tag("h3", f"{kind.capitalize()} queries", *suffix), tag("div", *queries, class_="card")]
    return blocks


def select_examples(scores: Tensor, labels: Tensor, count: int) -> dict[str, list[int]]:
    """Return the positions of the best, median and worst scores, at most one of each class.

    Equal scores are shuffled by a fixed seed, because a good model has hundreds of perfect queries.

    >>> select_examples(torch.tensor([0.0, 50.0, 100.0]), torch.arange(3), 1)
    {'best': [2], 'median': [1], 'worst': [0]}
    """
    shuffled = torch.randperm(len(scores), generator=torch.Generator().manual_seed(0))
    order = shuffled[scores.cpu()[shuffled].argsort(stable=True)]
    middle = (torch.arange(len(order)) - (len(order) - 1) / 2).abs().argsort(stable=True)
    examples = {}
    for name, ranked in (("best", order.flip(0)), ("median", order[middle]), ("worst", order)):
        chosen: dict[int, int] = {}
        for position in ranked.tolist():
            chosen.setdefault(int(labels[position]), position)
            if len(chosen) == count:
                break
        examples[name] = list(chosen.values())
    return examples


def _render_query(
    runs: Mapping[str, Evaluation], thumbnails: Thumbnails, position: int, all_names: Sequence[str]
) -> Html:
    catalog = thumbnails.catalog
    first = next(iter(runs.values()))
    row = int(first.test.rows.queries[int(first.retrieval.rows[position])])
    label = int(catalog.labels[row])
    name = catalog.classes[label]
    lines = []
    several = len(all_names) > 1
    for run, evaluation in runs.items():
        results = evaluation.test.searched_rows[evaluation.retrieval.first[position][:10].numpy()]
        items = []
        for rank, result in enumerate(results.tolist(), start=1):
            result_label = int(catalog.labels[result])
            result_name = catalog.classes[result_label]
            verdict = "right" if result_label == label else "wrong"
            items.append(
                tag(
                    "li",
                    thumbnails.element(result, f"Result {rank}, {verdict}: {result_name}"),
                    tag("span", "✓" if verdict == "right" else "✗", class_="mark", aria_hidden="true"),
                    None
                    if verdict == "right"
                    else name_tag(shorten_name(result_name, SHORT), class_="name", title=result_name),
                    class_=f"result is-{verdict}",
                )
            )
        score = f"average precision {float(evaluation.retrieval.per_query['mAP'][position]):.0f}\u00a0%"
        swatch = render_swatch(all_names.index(run))
        title = tag("p", swatch, name_tag(run), f" · {score}", class_="note") if several else None
        lines.append(tag("div", title, tag("ol", *items, class_="results"), class_="query-results"))
    note = None if several else tag("div", score, class_="note")
    image = thumbnails.element(row, f"Query: {name}")
    head = tag(
        "div", image, tag("div", name_tag(shorten_name(name, LONG), title=name), note), class_="query-head"
    )
    return tag("div", head, tag("div", *lines), class_="query")


def render_confusions(evaluation: Evaluation, thumbnails: Thumbnails) -> Html:
    """Show the pairs of classes most often confused, with queries and their wrong first results."""
    retrieval, test = evaluation.retrieval, evaluation.test
    items = []
    for query_class, result_class, count in retrieval.confusions(PAIRS):
        of_class = retrieval.labels == query_class
        cases = (of_class & (retrieval.first_labels[:, 0] == result_class)).nonzero().flatten()[:EXAMPLES]
        queries = test.rows.queries[retrieval.rows[cases].numpy()].tolist()
        results = test.searched_rows[retrieval.first[cases, 0].numpy()].tolist()
        times = tag("span", f"{count}", class_="count")
        arrow = tag("div", times, f"of {int(of_class.sum())}", tag("br"), "→", class_="arrow")
        left = _render_class("Query", query_class, queries, thumbnails)
        right = _render_class("Found first", result_class, results, thumbnails)
        items.append(tag("li", left, arrow, right, class_="pair card"))
    if not items:
        return tag("p", "Every first result is right: no classes are confused.", class_="note")
    return tag("ul", *items, class_="pairs")


def _render_class(title: str, label: int, rows: Sequence[int], thumbnails: Thumbnails) -> Html:
    name = thumbnails.catalog.classes[label]
    images = (thumbnails.element(row, f"{title}: {name}") for row in rows)
    return tag("div", tag("div", *images, class_="examples"), name_tag(name))
