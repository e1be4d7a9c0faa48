"""The commands `firstpage search` and `firstpage calibrate`."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from firstpage import durable
from firstpage._terminal import print_text
from firstpage.errors import UserError
from firstpage.search.match import Match, format_same

if TYPE_CHECKING:
    from PIL import Image

    from firstpage.search.duplicates import Duplicates
    from firstpage.search.index import Index
    from firstpage.search.queries import Answer

DRAWN = 50  # queries, groups or doubted labels in a montage, at most


def search_index(
    index: Annotated[Path, typer.Argument(help="Folder of the index.")],
    queries: Annotated[list[Path] | None, typer.Argument(help="Images, or folders of them.")] = None,
    k: Annotated[int, typer.Option("-k", help="Number of results.")] = 10,
    ids: Annotated[list[int] | None, typer.Option("--id", help="Image of the index; repeatable.")] = None,
    where: Annotated[str | None, typer.Option(help="Filter, such as \"label == 'mug'\".")] = None,
    average: Annotated[bool, typer.Option("--average", help="Search once, by the mean of all.")] = False,
    box: Annotated[
        str | None,
        typer.Option(help="Part of the query: left,top,right,bottom in pixels of the upright image."),
    ] = None,
    min_precision: Annotated[
        float | None,
        typer.Option(
            help="Leave out results below the score from which on this share is right, such as 0.95."
        ),
    ] = None,
    rerank: Annotated[
        int, typer.Option(help="Order so many results by what the loss pddm learned, such as 100.")
    ] = 0,
    duplicates: Annotated[
        bool, typer.Option("--duplicates", help="List near-duplicates and likely label errors instead.")
    ] = False,
    min_score: Annotated[
        float | None, typer.Option(help="With --duplicates: also pairs of at least this score.")
    ] = None,
    montage: Annotated[Path | None, typer.Option(help="Also draw queries and results to this .png.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the most similar images of the index for each query."""
    from firstpage.search.index import Index

    if montage is not None:
        if montage.suffix.lower() != ".png":
            raise UserError(f"{montage}: a montage is written as .png: choose such a name")
        durable.check(montage)
    if not (queries or ids or duplicates):
        raise UserError("search: name an image, a folder of them, or an id with --id")
    opened = Index.open(index)
    if duplicates:
        if queries or ids or where or average or box or min_precision or rerank:
            raise UserError(
                "search --duplicates: compares all images of the index: leave out queries and filters"
            )
        _print_duplicates(opened, min_score, montage, as_json)
        return
    if min_score is not None:
        raise UserError("search --min-score: is for --duplicates; --min-precision cuts results")
    from firstpage.search.queries import parse_box, search_many

    part = None if box is None else parse_box(box)
    options = {
        "ids": ids or [],
        "box": part,
        "where": where,
        "average": average,
        "min_precision": min_precision,
        "rerank": rerank,
    }
    answers: list[Answer] = []
    for answer in search_many(opened, queries or [], k, **options):  # type: ignore[arg-type]
        if as_json or len(answers) < DRAWN:
            answers.append(answer)
        if not as_json:
            lines = [_describe(match) for match in answer.matches] or ["  no result"]
            print_text("\n".join([answer.name, *lines]))
    if as_json:
        table = {answer.name: [asdict(match) for match in answer.matches] for answer in answers}
        sys.stdout.write(f"{json.dumps(table, indent=1)}\n")
    if montage is not None:
        from firstpage.search.montage import draw_results

        _write(draw_results(opened, answers[:DRAWN]), montage)


def calibrate(
    model: Annotated[Path, typer.Argument(help="A run folder, or a saved embedder.")],
    data: Annotated[
        str | None, typer.Option(help="Dataset, or a run folder for its test. Defaults to that of the run.")
    ] = None,
    classes: Annotated[
        str | None,
        typer.Option("--classes", metavar="RULE", help="What makes a class in folders; see train."),
    ] = None,
    prior: Annotated[
        float | None,
        typer.Option(
            help="Share of image pairs of one class where it is used. Defaults to that of the data."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    device: Annotated[str | None, typer.Option(help="cuda or cpu. Defaults to a GPU if available.")] = None,
    cache: Annotated[Path | None, typer.Option(help="Folder for decoded pixels.")] = None,
) -> None:
    """Fit what a score means, on classes not trained on: how likely two images show the same class.

    Stores calibration.json beside the model; an index that is built then shows probabilities.
    """
    from firstpage.runs.calibrating import calibrate_model

    found = calibrate_model(model, data, classes=classes, prior=prior, device=device, cache=cache)
    print_text(json.dumps(found.table(), indent=1) if as_json else found.text())


def _describe(match: Match) -> str:
    same = "" if match.probability is None else f"  {format_same(match.probability):>9}"
    return f"  {match.score:6.3f}{same}  {match.label}  {match.path}"


def _print_duplicates(index: Index, min_score: float | None, montage: Path | None, as_json: bool) -> None:
    from firstpage.search.duplicates import VOTES, find_duplicates

    found = find_duplicates(index, min_score=min_score)
    if as_json:
        sys.stdout.write(f"{json.dumps(_duplicates_table(index, found), indent=1)}\n")
    else:
        lines = [found.summary()]
        for group in found.groups:
            rows = [index.row(number) for number in group]
            labels = {row["label"] for row in rows}
            lines.append(f"look alike{', but their labels differ' if len(labels) > 1 else ''}:")
            lines += [f"  {row['id']:6}  {row['label']}  {row['path']}" for row in rows]
        for one in found.suspects:
            row = index.row(one.id)
            lines.append(
                f"{one.votes} of {VOTES} neighbors are {one.suggested!r} (score {one.score:.3f}):\n"
                f"  {one.id:6}  {row['label']}  {row['path']}"
            )
        print_text("\n".join(lines))
    if montage is not None:
        from firstpage.search.montage import draw_duplicates

        _write(draw_duplicates(index, found, DRAWN), montage)


def _duplicates_table(index: Index, found: Duplicates) -> dict[str, Any]:
    def row(number: int) -> dict[str, Any]:
        known = index.row(number)
        return {name: known[name] for name in ("id", "path", "label")}

    groups = [[row(number) for number in group] for group in found.groups]
    suspects = [row(one.id) | asdict(one) for one in found.suspects]
    return {"images": found.images, "duplicates": groups, "label_errors": suspects}


def _write(picture: Image.Image, path: Path) -> None:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    path.parent.mkdir(parents=True, exist_ok=True)
    durable.write(path, buffer.getvalue())
    print_text(f"wrote {path}", err=True)
