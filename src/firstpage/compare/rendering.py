"""A measured table as Markdown and as a page."""

import math
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from firstpage import durable
from firstpage.compare.charts import Chart, draw_charts
from firstpage.compare.summary import Measured, compare_best
from firstpage.compare.tables import Table
from firstpage.compare.tuning import SEED, Search
from firstpage.figures.style import save
from firstpage.report.charts import STYLE, render_chart
from firstpage.report.markup import Html, tag

# The style of reports, with columns of figures.
_STYLE = Html(
    (files("firstpage.report") / "style.css").read_text(encoding="utf-8")
    + "td:not(:first-child),th:not(:first-child){text-align:right;font-variant-numeric:tabular-nums}"
    ".search :is(td,th):last-child{text-align:left}td{white-space:nowrap}main{padding-top:2rem}"
    ".charts{display:block;columns:30rem;column-gap:.8rem;margin:1.5rem 0}"
    ".charts figure{break-inside:avoid;margin-bottom:.8rem}"
)


def table_lines(table: Table, measured: Sequence[Measured]) -> tuple[list[str], list[list[str]], list[str]]:
    """Return the head, the cells and the notes of a measured table, as text.

    Args:
        table: The methods.
        measured: What was measured of them.

    >>> from firstpage.recipes import Recipe
    >>> from firstpage.compare.tables import Row
    >>> row = Row("Margin", Recipe(), {"R@1": 63.6}, "BN-Inception")
    >>> cells = {0: {"metrics": {"R@1": 64.04}, "error": "", "seconds": 30.0}}
    >>> head, lines, notes = table_lines(Table("T", (row,), ("R@1",)), [Measured(row, "paper", cells)])
    >>> lines, notes
    ([['Margin', 'paper', '1', '64.0', '63.6', '30', '', '', '']], ['Margin: in the paper BN-Inception'])
    """
    papers = [name for name in table.metrics if any(name in row.paper for row in table.rows)]
    head = ["method", "protocol", "seeds"]
    for name in table.metrics:
        head += [name, f"{name}, paper"] if name in papers else [name]
    head += ["seconds", "images/s", "parameters", "dim"]
    lines, notes, first = [], [], table.metrics[0]
    untrained = {
        each.protocol: each.mean(first)[0] for each in measured if each.row.recipe.schedule.epochs == 0
    }
    for each in measured:
        line = [each.row.name, each.protocol, str(len(each.values(first)))]
        for name in table.metrics:
            mean, half = each.mean(name)
            text = "–" if math.isnan(mean) else f"{mean:.1f}" + ("" if math.isnan(half) else f" ± {half:.1f}")
            line.append(text)
            if name in papers:
                line.append(f"{each.row.paper[name]:.1f}" if name in each.row.paper else "")
        for name, scale, unit in (
            ("seconds", 1, ""),
            ("images_per_second", 1, ""),
            ("parameters", 1e-6, " M"),
            ("dim", 1, ""),
        ):
            value = each.average(name)
            line.append("" if value is None else f"{value * scale:,.{1 if unit else 0}f}{unit}")
        lines.append(line)
        remarks = each.remarks(first, untrained.get(each.protocol, math.nan))
        notes += [f"{each.row.name}, {each.protocol}: {remark}" for remark in remarks]
    notes += [f"{row.name}: in the paper {row.differs}" for row in table.rows if row.differs]
    return head, lines, notes


def _sentences(table: Table, measured: Sequence[Measured]) -> list[str]:
    found = []
    for protocol in dict.fromkeys(each.protocol for each in measured):
        chosen = [each for each in measured if each.protocol == protocol]
        for name in table.metrics:
            sentence = compare_best(chosen, name)
            found += [f"{protocol}: {sentence}"] if sentence else []
    return found


_SEARCH_HEAD = ["method", "trials", "failed", "best", "median", "worst", "settings of the best"]


def _describe_search(table: Table, searches: Sequence[Search]) -> str:
    """Say how settings were searched, and that every method had the same."""
    selects = sorted({search.row.recipe.train.select for search in searches})
    count = len(searches[0].settings)
    others = [row.name for row in table.rows if row.name not in {search.row.name for search in searches}]
    unfinished = "" if all(search.complete for search in searches) else " Not all of them are finished."
    return (
        f"Every method had {count} {'trial' if count == 1 else 'trials'} of the same settings "
        f"({table.tune.describe()}) at seed {SEED}. "
        f"A trial is worth its best {' or '.join(selects)} on training classes that were held out; no test "
        "image was looked at. The table above has each method with the settings of its best trial, at other "
        "seeds." + (f" Not tuned: {', '.join(others)}." if others else "") + unfinished
    )


def _to_pipes(head: list[str], lines: Sequence[list[str]]) -> str:
    """Return a table in Markdown."""
    rows = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (head, *lines)]
    return "\n".join([rows[0], "|" + "---|" * len(head), *rows[1:]])


def _to_table(head: list[str], lines: Sequence[list[str]], kind: str = "") -> Html:
    body = [tag("tr", *(tag("td", cell) for cell in line)) for line in lines]
    rows = tag("table", tag("thead", tag("tr", *(tag("th", cell) for cell in head))), tag("tbody", *body))
    return tag("div", rows, class_=f"scroll card {kind}".strip())


def to_markdown(
    table: Table,
    measured: Sequence[Measured],
    searches: Sequence[Search] = (),
    charts: Sequence[Chart] = (),
) -> str:
    """Return a measured table as Markdown, and how its settings were searched, with links to its figures.

    >>> from firstpage.recipes import Recipe
    >>> from firstpage.compare.tables import Row
    >>> row = Row("Margin", Recipe())
    >>> print(to_markdown(Table("T", (row,), ("R@1",)), [Measured(row, "paper", {})]).strip())
    # T
    <BLANKLINE>
    | method | protocol | seeds | R@1 | seconds | images/s | parameters | dim |
    |---|---|---|---|---|---|---|---|
    | Margin | paper | 0 | – |  |  |  |  |
    """
    head, lines, notes = table_lines(table, measured)
    parts = [f"# {table.title}", *([table.about] if table.about else [])]
    parts.append(_to_pipes(head, lines))
    parts += [
        "\n".join(f"- {line}" for line in lines) for lines in (_sentences(table, measured), notes) if lines
    ]
    if searches:
        found = _to_pipes(_SEARCH_HEAD, [search.line() for search in searches])
        parts += ["## Search of settings", _describe_search(table, searches), found]
    parts += [f"![{chart.caption}]({chart.name}.svg)" for chart in charts]
    return "\n\n".join(parts) + "\n"


def to_html(table: Table, measured: Sequence[Measured], searches: Sequence[Search] = ()) -> str:
    """Return a measured table as a page of its own, with its figures.

    >>> from firstpage.recipes import Recipe
    >>> from firstpage.compare.tables import Row
    >>> row = Row("N-pair & <co>", Recipe())
    >>> "N-pair &amp; &lt;co&gt;" in to_html(Table("T", (row,)), [Measured(row, "paper", {})])
    True
    """
    head, lines, notes = table_lines(table, measured)
    search: list[Html] = []
    if searches:
        found = _to_table(_SEARCH_HEAD, [each.line() for each in searches], "search")
        search = [tag("h2", "Search of settings"), tag("p", _describe_search(table, searches)), found]
    charts = [
        render_chart(chart.figure, chart.caption, chart.caption)
        for chart in draw_charts(table, measured, style=STYLE)
    ]
    main = tag(
        "main",
        tag("h1", table.title),
        *([tag("p", table.about, class_="lead")] if table.about else []),
        _to_table(head, lines),
        tag("ul", *(tag("li", line) for line in _sentences(table, measured))),
        tag("ul", *(tag("li", line) for line in notes), class_="note"),
        *([tag("div", *charts, class_="charts")] if charts else []),
        *search,
    )
    about = [
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", table.title),
        tag("style", _STYLE),
    ]
    page = tag("html", tag("head", *about), tag("body", main), lang="en")
    return f"<!doctype html>\n{page}\n"


def write_pages(
    folder: Path, table: Table, measured: Sequence[Measured], searches: Sequence[Search] = ()
) -> list[Path]:
    """Write `table.md`, `table.html` and the figures, and return the paths of the first two."""
    folder.mkdir(parents=True, exist_ok=True)
    charts = draw_charts(table, measured)
    for chart in charts:
        save(chart.figure, folder / f"{chart.name}.svg")
    texts = {
        "table.md": to_markdown(table, measured, searches, charts),
        "table.html": to_html(table, measured, searches),
    }
    for name, text in texts.items():
        durable.write(folder / name, text.encode())
    return [folder / name for name in texts]
