"""The command `firstpage embed`."""

from pathlib import Path
from typing import Annotated

import typer

from firstpage import durable
from firstpage._terminal import print_text
from firstpage.errors import UserError


def embed(
    model: Annotated[Path, typer.Argument(help="A saved embedder, or a run folder.")],
    paths: Annotated[
        list[str],
        typer.Argument(
            help="Dataset (a folder, a table, glyphs, or a run folder for its data) or images; then the file "
            "to write, .npz, .csv or .parquet. Defaults to embeddings.npz."
        ),
    ],
    classes: Annotated[
        str | None,
        typer.Option("--classes", metavar="RULE", help="What makes a class in folders; see train."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cuda or cpu. Defaults to a GPU if available.")] = None,
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Embed on a Ray cluster: auto, or its address.")
    ] = None,
) -> None:
    """Embed images into a file, with their labels and splits. Without class folders all have label 0."""
    from firstpage.runs.embedding_file import DEFAULT, embed_to_file, read_images, split_paths

    images, out = split_paths(paths)
    if ray is not None:
        from firstpage.search.ray_embedding import embed_on_ray, read_addresses

        if len(images) > 1:
            raise UserError("embed --ray: name one folder, table or .txt file that lists the images")
        out = out if out != DEFAULT else DEFAULT.with_suffix(".parquet")
        print_text(embed_on_ray(model, read_addresses(images[0], classes), out, address=ray))
        return
    durable.check(out)
    print_text(embed_to_file(model, read_images(images, classes), out, device=device))
