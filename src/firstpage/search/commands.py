"""The commands `firstpage index …` and `firstpage search`."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from firstpage._terminal import print_text
from firstpage.errors import UserError
from firstpage.search.match import Match, format_same

index_app = typer.Typer(help="Make an index of images, and change it.", no_args_is_help=True)

_Index = Annotated[Path, typer.Argument(help="Folder of the index.")]
_Photos = Annotated[str, typer.Argument(help="Folder of images, or a table.")]
_Cache = Annotated[Path | None, typer.Option(help="Folder for decoded pixels.")]


@index_app.command("build")
def _build(
    model: Annotated[Path, typer.Argument(help="A run folder, or a saved embedder.")],
    photos: _Photos,
    out: Annotated[Path, typer.Option(help="Folder of the new index.")] = Path("index"),
    precision: Annotated[str, typer.Option(help="float32, or float16 for half the size.")] = "float32",
    device: Annotated[str | None, typer.Option(help="cuda or cpu. Defaults to a GPU if available.")] = None,
    cache: _Cache = None,
) -> None:
    """Embed images with a trained model and make an index of them."""
    from firstpage.data import read
    from firstpage.evaluation.calibration import Calibration
    from firstpage.models.device import resolve_device
    from firstpage.models.embedder import Embedder
    from firstpage.search.index import Index

    embedder = Embedder.load(model, resolve_device(device))
    index = Index.build(
        out,
        embedder,
        read(photos, unlabeled=True),
        precision=precision,
        calibration=Calibration.read(model),
        cache=cache,
    )
    print_text(index.info())


@index_app.command("add")
def _add(index: _Index, photos: _Photos, cache: _Cache = None) -> None:
    """Add the images that are not in the index yet."""
    from firstpage.data import read
    from firstpage.search.index import Index

    print_text(Index.open(index).add(read(photos, unlabeled=True), cache=cache).info())


@index_app.command("update")
def _update(index: _Index, photos: _Photos, cache: _Cache = None) -> None:
    """Make the index that of these images: embed changed files again, add new ones, remove others."""
    from firstpage.data import read
    from firstpage.search.index import Index

    print_text(Index.open(index).update(read(photos, unlabeled=True), cache=cache).info())


@index_app.command("remove")
def _remove(
    index: _Index,
    files: Annotated[list[Path] | None, typer.Argument(help="Image files to remove.")] = None,
    ids: Annotated[list[int] | None, typer.Option("--id", help="Id to remove; repeatable.")] = None,
) -> None:
    """Remove images from the index. The files themselves stay."""
    from firstpage.search.index import Index

    if not files and not ids:
        raise UserError("remove: name image files, or give ids with --id")
    print_text(Index.open(index).remove(ids or (), files or ()).info())


@index_app.command("info")
def _info(index: _Index) -> None:
    """Print what is in the index."""
    from firstpage.search.index import Index

    print_text(Index.open(index).info())


@index_app.command("verify")
def _verify(index: _Index) -> None:
    """Compare every file of the index with its checksum. Damage gives exit code 1."""
    from firstpage.search.index_folder import find_damage, read_manifest

    damage = find_damage(index, read_manifest(index))
    print_text("\n".join(damage) if damage else "OK")
    raise typer.Exit(1 if damage else 0)


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
    cache: _Cache = None,
) -> None:
    """Fit what a score means, on classes not trained on: how likely two images show the same class.

    Stores calibration.json beside the model; an index that is built then shows probabilities.
    """
    from firstpage.runs.calibrating import calibrate_model

    found = calibrate_model(model, data, classes=classes, prior=prior, device=device, cache=cache)
    print_text(json.dumps(found.table(), indent=1) if as_json else found.text())


def search_index(
    index: _Index,
    queries: Annotated[list[Path] | None, typer.Argument(help="Images, or folders of them.")] = None,
    k: Annotated[int, typer.Option("-k", help="Number of results.")] = 10,
    ids: Annotated[list[int] | None, typer.Option("--id", help="Image of the index; repeatable.")] = None,
    where: Annotated[str | None, typer.Option(help="Filter, such as \"label == 'mug'\".")] = None,
    average: Annotated[bool, typer.Option("--average", help="Search once, by the mean of all.")] = False,
    min_precision: Annotated[
        float | None,
        typer.Option(help="Leave out results with a score of which fewer are right, such as 0.95."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the most similar images of the index for each query."""
    from firstpage.data import read
    from firstpage.search.index import Index

    files: list[str] = []
    for query in queries or []:
        if query.is_dir():
            catalog = read(query, unlabeled=True)
            files += [str(catalog.path(row)) for row in range(len(catalog))]
        else:
            files.append(str(query))
    names = [*files, *(f"id {number}" for number in ids or [])]
    if not names:
        raise UserError("search: name an image, a folder of them, or an id with --id")
    found = Index.open(index).search(
        files, k, ids=ids or [], where=where, average=average, min_precision=min_precision
    )
    if average:
        names = ["the mean of all"]
    if as_json:
        table = {name: [asdict(match) for match in line] for name, line in zip(names, found, strict=True)}
        sys.stdout.write(f"{json.dumps(table, indent=1)}\n")
        return
    lines = []
    for name, matches in zip(names, found, strict=True):
        lines += [name, *(_describe(match) for match in matches)]
    print_text("\n".join(lines))


def _describe(match: Match) -> str:
    same = "" if match.probability is None else f"  {format_same(match.probability):>9}"
    return f"  {match.score:6.3f}{same}  {match.label}  {match.path}"
