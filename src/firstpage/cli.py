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


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; what a person can mend is one line and exit code 2, not a traceback.

    Example:
        >>> main(["data", "get", "nabirds", "birds"])
        Traceback (most recent call last):
        SystemExit: 2
    """
    try:
        app(arguments)
    except (ValueError, OSError) as error:
        typer.echo(f"firstpage: {' '.join(str(error).split())}", err=True)
        sys.exit(2)
