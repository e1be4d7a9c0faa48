"""The commands. They have no logic of their own: each calls one function of the package and prints."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Image embeddings for visual search whose first page of results is right.",
)
data = typer.Typer(no_args_is_help=True, help="Datasets: get one, check one.")
app.add_typer(data, name="data")


@data.command("get")
def _get(
    name: Annotated[str, typer.Argument(help="glyphs, cub, sop, lfw, cars, inshop, hotels50k or casia.")],
    path: Annotated[Path, typer.Argument(help="The folder that shall hold it.")],
) -> None:
    """Download a dataset, or print where its publisher gives it out."""
    from firstpage.data.download import get

    typer.echo(get(name, path))


@data.command("check")
def _check(
    path: Annotated[str, typer.Argument(help="A dataset: a folder, a table, or glyphs.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    figure: Annotated[Path | None, typer.Option(help="Also draw the class histogram into this file.")] = None,
) -> None:
    """Count a dataset, and find broken files, duplicates and leaks between splits. Exit code 1 if any."""
    from firstpage.data import read
    from firstpage.data.check import check

    report = check(read(path))
    typer.echo(report.json() if as_json else report.text())
    if figure is not None:
        report.figure(figure)
    raise typer.Exit(0 if report.ok else 1)


@app.command("demo")
def _demo(out: Annotated[Path, typer.Option(help="The run folder.")] = Path("runs/demo")) -> None:
    """Train on the embedded glyphs, and show the first page before and after."""
    from firstpage.demo import demo

    typer.echo(demo(out))


@app.command("train")
def _train(
    recipe: Annotated[str | None, typer.Argument(help="A TOML file, or the name of a recipe.")] = None,
    data: Annotated[str, typer.Option(help="A dataset: a folder, a table, or glyphs.")] = "glyphs",
    out: Annotated[Path | None, typer.Option(help="The run folder; runs/<recipe> if left out.")] = None,
    changes: Annotated[list[str] | None, typer.Option("--set", help="section.key=value; repeatable.")] = None,
    device: Annotated[str | None, typer.Option(help="cuda or cpu; a GPU where there is one.")] = None,
    cache: Annotated[Path | None, typer.Option(help="Where decoded pixels are kept.")] = None,
) -> None:
    """Train an embedder, and keep the best one."""
    from firstpage import recipes
    from firstpage.data import read
    from firstpage.training import fit

    chosen = recipes.find(recipe).changed(changes or [])
    folder = out or Path("runs", Path(recipe).stem if recipe else "default")
    typer.echo(fit(chosen, read(data), folder, device=device, cache=cache).text())


@app.command("embed")
def _embed(
    model: Annotated[Path, typer.Argument(help="A saved embedder, or a run folder.")],
    data: Annotated[str, typer.Argument(help="A dataset: a folder, a table, or glyphs.")],
    out: Annotated[Path, typer.Argument(help="The .npz file to write: embeddings, labels, paths.")],
    device: Annotated[str | None, typer.Option(help="cuda or cpu; a GPU where there is one.")] = None,
) -> None:
    """Embed a dataset's images into a file."""
    from firstpage.data import read
    from firstpage.models.embed import embed_to_file

    typer.echo(embed_to_file(model, read(data), out, device=device))


@app.command("export")
def _export(
    model: Annotated[Path, typer.Argument(help="A saved embedder, or a run folder.")],
    out: Annotated[Path, typer.Argument(help="The .onnx file to write.")],
) -> None:
    """Export an embedder to ONNX."""
    from firstpage.models import Embedder, export

    typer.echo(f"wrote {export(Embedder.load(model), out)}")


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; what a person can mend is one line and exit code 2, not a traceback.

    Example:
        >>> main(["data", "get", "nabirds", "birds"])
        Traceback (most recent call last):
        SystemExit: 2
    """
    try:
        app(arguments)
    except (ValueError, OSError, ImportError) as error:
        typer.echo(f"firstpage: {' '.join(str(error).split())}", err=True)
        sys.exit(2)
