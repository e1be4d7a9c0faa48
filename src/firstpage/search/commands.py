"""The commands `firstpage index …`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from firstpage._terminal import print_text
from firstpage.errors import UserError

if TYPE_CHECKING:
    from firstpage.search.index import Index

index_app = typer.Typer(help="Make an index of images, and change it.", no_args_is_help=True)

_Index = Annotated[Path, typer.Argument(help="Folder of the index.")]
_Photos = Annotated[str, typer.Argument(help="Folder of images, or a table.")]
_Milvus = Annotated[
    str | None, typer.Option(help="Copy the vectors to Milvus: http://HOST:PORT, or a path that ends in .db.")
]
_Classes = Annotated[
    str | None, typer.Option("--classes", metavar="RULE", help="What makes a class in folders; see train.")
]
_Cache = Annotated[Path | None, typer.Option(help="Folder for decoded pixels.")]


@index_app.command("build")
def _build(
    model: Annotated[Path, typer.Argument(help="A run folder, or a saved embedder.")],
    photos: _Photos,
    classes: _Classes = None,
    out: Annotated[Path, typer.Option(help="Folder of the new index.")] = Path("index"),
    precision: Annotated[str, typer.Option(help="float32, float16 or int8, the smallest.")] = "float32",
    dims: Annotated[int | None, typer.Option(help="Keep the first dimensions only.")] = None,
    engine: Annotated[str, typer.Option(help="auto, exact, or with FAISS hnsw or ivfpq.")] = "auto",
    milvus: _Milvus = None,
    device: Annotated[str | None, typer.Option(help="cuda or cpu. Defaults to a GPU if available.")] = None,
    cache: _Cache = None,
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Embed on a Ray cluster: auto, or its address.")
    ] = None,
) -> None:
    """Embed images with a trained model and make an index of them."""
    from firstpage.data import read
    from firstpage.evaluation.calibration import Calibration
    from firstpage.models.device import resolve_device
    from firstpage.models.embedder import Embedder
    from firstpage.search.index import Index

    embedder, catalog = (
        Embedder.load(model, resolve_device(device)),
        read(photos, classes=classes, unlabeled=True),
    )
    vectors = None
    if ray is not None:
        from firstpage.search.ray_embedding import embed_for_index

        catalog, vectors = embed_for_index(model, catalog, out, address=ray)
    index = Index.build(
        out,
        embedder,
        catalog,
        vectors=vectors,
        precision=precision,
        dims=dims,
        engine=engine,
        milvus=milvus,
        calibration=Calibration.read(model),
        cache=cache,
    )
    print_text(index.info())


def _print_change(before: "Index", after: "Index") -> None:
    """Print how many images were added and removed, of which a changed one is both, and what there is now."""
    import numpy as np

    added, removed = (len(np.setdiff1d(*ids)) for ids in ((after.ids, before.ids), (before.ids, after.ids)))
    print_text(f"{added:,} added, {removed:,} removed")
    print_text(after.info())


@index_app.command("add")
def _add(index: _Index, photos: _Photos, classes: _Classes = None, cache: _Cache = None) -> None:
    """Add the images that are not in the index yet."""
    from firstpage.data import read
    from firstpage.search.index import Index

    catalog, before = read(photos, classes=classes, unlabeled=True), Index.open(index)
    _print_change(before, before.add(catalog, cache=cache))


@index_app.command("update")
def _update(index: _Index, photos: _Photos, classes: _Classes = None, cache: _Cache = None) -> None:
    """Make the index that of these images: embed changed files again, add new ones, remove others."""
    from firstpage.data import read
    from firstpage.search.index import Index

    catalog, before = read(photos, classes=classes, unlabeled=True), Index.open(index)
    _print_change(before, before.update(catalog, cache=cache))


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
    before = Index.open(index)
    _print_change(before, before.remove(ids or (), files or ()))


@index_app.command("sync")
def _sync(index: _Index, milvus: _Milvus = None) -> None:
    """Make the file of FAISS again if it is damaged, and bring the copy in Milvus up to the index."""
    from firstpage.search.index import Index

    print_text(Index.open(index).sync(milvus).info())


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
