"""Marks of the search page: which results people called right, and which wrong."""

import os
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from firstpage.data.decode import Unreadable, decode_image
from firstpage.report.images import data_uri
from firstpage.report.markup import Html, name_tag, shorten_name, tag
from firstpage.search.index_folder import read_manifest
from firstpage.serve.marks import Mark, MarkFile

QUERIES, RESULTS = 24, 20  # the latest ones that are shown
SIDE = 104  # pixels
NAME = 40  # characters


def render_marks(index: str | os.PathLike[str]) -> list[Html]:
    """Show the marks of an index, the latest queries first.

    Args:
        index: The folder of the index.

    Raises:
        FileNotFoundError: There is no index.
        UserError: It or they are damaged.

    >>> render_marks("nowhere")
    Traceback (most recent call last):
    FileNotFoundError: nowhere: no index there; firstpage index build makes one
    """
    read_manifest(Path(index))
    marks = MarkFile(Path(index)).all()
    if not marks:
        return [tag("p", "No result has been marked yet: firstpage serve lets you.", class_="note")]
    by_query: dict[str, list[Mark]] = {}
    for mark in reversed(marks):
        by_query.setdefault(mark.query, []).append(mark)
    right = sum(mark.right for mark in marks)
    shown = f" The latest {QUERIES} queries:" if len(by_query) > QUERIES else ""
    note = (
        f"{len(marks):,} results of {len(by_query):,} queries were marked in the search page: "
        f"{right:,} right, {len(marks) - right:,} wrong, {100 * right / len(marks):.0f} % right.{shown}"
    )
    queries = [_render_query(Path(index), query, by_query[query]) for query in list(by_query)[:QUERIES]]
    return [tag("p", note, class_="note"), tag("div", *queries, class_="card")]


def _render_query(index: Path, query: str, marks: Sequence[Mark]) -> Html:
    name = Path(query).name if marks[0].query_id is not None else "an uploaded image"
    image = _render_image(index / query, f"Query: {name}")
    items = []
    for mark in marks[:RESULTS]:
        verdict = "right" if mark.right else "wrong"
        items.append(
            tag(
                "li",
                _render_image(Path(mark.result_path), f"Marked {verdict}: {mark.result_label}"),
                tag("span", "✓" if mark.right else "✗", class_="mark", aria_hidden="true"),
                name_tag(shorten_name(mark.result_label, NAME), class_="name", title=mark.result_label),
                class_=f"result is-{verdict}",
            )
        )
    head = tag(
        "div",
        image,
        tag(
            "div",
            name_tag(shorten_name(name, NAME), title=name),
            tag("div", marks[0].time[:10], class_="note"),
        ),
        class_="query-head",
    )
    return tag("div", head, tag("ol", *items, class_="results"), class_="query")


def _render_image(path: Path, alt: str) -> Html:
    """Return a thumbnail; a gray one if the file is gone."""
    try:
        image = decode_image(path, min_side=SIDE)
        image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    except Unreadable:
        image = Image.new("RGB", (SIDE, SIDE), "gray")
        alt = f"{alt} (the file is missing)"
    return tag("img", class_="thumb", src=data_uri(image), width=image.width, height=image.height, alt=alt)
