"""The commands. They have no logic of their own: each calls one function of the package and prints."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from firstpage import __version__, durable
from firstpage.errors import UserError

_UsageError: Any = typer.BadParameter.__base__  # click's, which newer versions of typer carry inside them

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Image embeddings for visual search whose first page of results is right.",
)
data = typer.Typer(no_args_is_help=True, help="Datasets: get one, check one.")
app.add_typer(data, name="data")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"firstpage {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@data.command("get")
def _get(
    name: Annotated[str, typer.Argument(help="glyphs, cub, sop, lfw, cars, inshop, hotels50k or casia.")],
    path: Annotated[Path, typer.Argument(help="The folder that shall hold it.")],
) -> None:
    """Download a dataset, or print where its publisher gives it out."""
    from firstpage.data.download import download_dataset

    typer.echo(download_dataset(name, path))


@data.command("check")
def _check(
    path: Annotated[str, typer.Argument(help="A dataset: a folder, a table, or glyphs.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    figure: Annotated[Path | None, typer.Option(help="Also draw the class histogram into this file.")] = None,
) -> None:
    """Count a dataset, and find broken files, duplicates, leaks and what training refuses: exit code 1."""
    from firstpage.data import read
    from firstpage.data.check import check_dataset

    if figure is not None:
        durable.check(figure)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the report tells them
        catalog = read(path)
    report = check_dataset(catalog)
    typer.echo(report.json() if as_json else report.text())
    if figure is not None:
        figure.parent.mkdir(parents=True, exist_ok=True)
        report.figure(figure)
    raise typer.Exit(0 if report.ok else 1)


@contextmanager
def _stopping() -> Iterator[None]:
    """A context in which a run that was asked to stop says how it goes on."""
    from firstpage.runs.checkpoint import Stopped

    try:
        yield
    except Stopped as stopped:
        typer.echo(f"firstpage: {stopped}", err=True)
        raise typer.Exit(128 + stopped.signal) from None


@app.command("demo")
def _demo(out: Annotated[Path, typer.Option(help="The run folder.")] = Path("runs/demo")) -> None:
    """Train on the embedded glyphs, and show the first page before and after."""
    from firstpage.demo import demo

    with _stopping():
        text = demo(out)
    typer.echo(text)


_SET = "section.key=value; repeatable. firstpage recipe lists all keys."


@app.command("recipe")
def _recipe(
    recipe: Annotated[str | None, typer.Argument(help="A TOML file, or the name of a recipe.")] = None,
    changes: Annotated[list[str] | None, typer.Option("--set", help="section.key=value; repeatable.")] = None,
) -> None:
    """Print a recipe with all its settings; without a name, the one that train takes by default."""
    from firstpage import recipes

    typer.echo(recipes.find(recipe).changed(changes or []).toml())


@app.command("train")
def _train(
    recipe: Annotated[str | None, typer.Argument(help="A TOML file, or the name of a recipe.")] = None,
    data: Annotated[str | None, typer.Option(help="A dataset: a folder, a table, or glyphs.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder; runs/<recipe> if left out.")] = None,
    changes: Annotated[list[str] | None, typer.Option("--set", help=_SET)] = None,
    device: Annotated[str | None, typer.Option(help="cuda or cpu; a GPU where there is one.")] = None,
    cache: Annotated[Path | None, typer.Option(help="Where decoded pixels are kept.")] = None,
    folds: Annotated[bool, typer.Option("--folds", help="Every fold of train.protocol=fair.")] = False,
) -> None:
    """Train an embedder, and keep the best one. A run that was stopped goes on; a finished one is shown."""
    from firstpage import recipes
    from firstpage.data import read
    from firstpage.training import fit, fit_folds
    from firstpage.training.folds import summary

    chosen = recipes.find(recipe).changed(changes or [])
    folder = out or Path("runs", Path(recipe).stem if recipe else "default")
    if data is None and recipe != "glyphs":
        raise UserError(
            "--data: say what to learn from: a folder with a folder of images a class, or a table"
        )
    catalog = read(data or "glyphs")
    with _stopping():
        if folds:
            text = summary(fit_folds(chosen, catalog, folder, device=device, cache=cache))
        else:
            text = fit(chosen, catalog, folder, device=device, cache=cache).text()
    if os.environ.get("RANK", "0") == "0":  # of many processes one speaks
        typer.echo(text)


@app.command("evaluate")
def _evaluate(
    subject: Annotated[Path, typer.Argument(help="A run folder, or a saved embedder.")],
    data: Annotated[str | None, typer.Option(help="A dataset; the run's own if left out.")] = None,
    protocol: Annotated[str | None, typer.Option(help="paper or fair; the run's own if left out.")] = None,
    every_class: Annotated[bool, typer.Option("--classes", help="Print every class.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    clustering: Annotated[bool, typer.Option(help="Also cluster; slow with many classes.")] = True,
    out: Annotated[Path | None, typer.Option(help="Write into this file instead of printing.")] = None,
    device: Annotated[str | None, typer.Option(help="cuda or cpu; a GPU where there is one.")] = None,
    cache: Annotated[Path | None, typer.Option(help="Where decoded pixels are kept.")] = None,
) -> None:
    """Measure a model on its test images: figures with 95 % intervals, worst classes, confused classes."""
    from firstpage.report import Subject, measure

    if out is not None:
        durable.check(out)
    opened = Subject.open(subject, data, protocol=protocol, device=device, cache=cache)
    measured = measure(opened, clustering=clustering)
    text = measured.json() if as_json else measured.text(every_class)
    if out is None:
        typer.echo(text)
    else:
        out.parent.mkdir(parents=True, exist_ok=True)
        durable.write(out, f"{text}\n".encode())


@app.command("report")
def _report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or saved embedders.")],
    out: Annotated[Path | None, typer.Option(help="The file; report.html in the first run's folder.")] = None,
    data: Annotated[str | None, typer.Option(help="A dataset; each run's own if left out.")] = None,
    protocol: Annotated[str | None, typer.Option(help="paper or fair; each run's own if left out.")] = None,
    clustering: Annotated[bool, typer.Option(help="Also cluster; slow with many classes.")] = True,
    device: Annotated[str | None, typer.Option(help="cuda or cpu; a GPU where there is one.")] = None,
    cache: Annotated[Path | None, typer.Option(help="Where decoded pixels are kept.")] = None,
) -> None:
    """Write all that can be shown of a run, or of several side by side, into one HTML file."""
    from firstpage.report import report

    path = report(runs, out, data=data, protocol=protocol, clustering=clustering, device=device, cache=cache)
    typer.echo(f"wrote {path}")


@app.command("figures")
def _figures(
    name: Annotated[str, typer.Argument(help="Such as training, roc or sphere-density; list names all.")],
    sources: Annotated[list[Path] | None, typer.Argument(help="Run folders, or .npz files of embed.")] = None,
    out: Annotated[Path | None, typer.Option(help="A .png, .svg or .pdf; NAME.png if left out.")] = None,
    data: Annotated[str | None, typer.Option(help="The dataset of the embeddings.")] = None,
    split: Annotated[str | None, typer.Option(help="Another split than the figure's own.")] = None,
    dark: Annotated[bool, typer.Option("--dark", help="For dark pages.")] = False,
) -> None:
    """Draw one of the papers' figures."""
    from firstpage import figures

    if name == "list":
        typer.echo("\n".join(figures.names()))
    else:
        target = out or Path(f"{name}.png")
        typer.echo(figures.draw(name, sources or [], target, data=data, split=split, dark=dark))


@app.command("embed")
def _embed(
    model: Annotated[Path, typer.Argument(help="A saved embedder, or a run folder.")],
    data: Annotated[str, typer.Argument(help="A dataset: a folder, a table, or glyphs.")],
    out: Annotated[Path, typer.Argument(help="The .npz file to write: embeddings, labels, paths.")],
    device: Annotated[str | None, typer.Option(help="cuda or cpu; a GPU where there is one.")] = None,
) -> None:
    """Embed a dataset's images into a file. Those of a folder without class folders all have label 0."""
    from firstpage.data import read
    from firstpage.models.embed import embed_to_file

    typer.echo(embed_to_file(model, read(data, unlabeled=True), out, device=device))


@app.command("export")
def _export(
    model: Annotated[Path, typer.Argument(help="A saved embedder, or a run folder.")],
    out: Annotated[Path, typer.Argument(help="The .onnx file to write.")],
) -> None:
    """Export an embedder to ONNX."""
    from firstpage.models import Embedder, export
    from firstpage.models.export import input_words

    embedder = Embedder.load(model)
    typer.echo(f"wrote {export(embedder, out)}")
    typer.echo(input_words(embedder))


def _telling() -> Callable[..., None]:
    """What shows warnings: the package's own as one line, once each, the rest as Python does."""
    package, others, told = os.path.dirname(__file__), warnings.showwarning, set()

    def tell(message: Warning | str, category: type[Warning], filename: str, *where: Any) -> None:  # noqa: ANN401
        text = " ".join(str(message).split())
        if not filename.startswith(package):
            others(message, category, filename, *where)
        elif text not in told:
            told.add(text)
            typer.echo(f"firstpage: warning: {text}", err=True)

    return tell


def _said(error: Exception) -> str:
    """An error in words; to those of the system, which know no remedy, one is added."""
    if isinstance(error, OSError) and error.filename is not None and error.errno:
        reason = os.strerror(error.errno)
        if error.strerror == reason:  # not a text of our own
            return f"{error.filename}: {reason.lower()}: name another place"
    return str(error)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; what a person can mend is one line and exit code 2, not a traceback.

    Example:
        >>> main(["data", "get", "nabirds", "birds"])
        Traceback (most recent call last):
        SystemExit: 2
    """
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _telling()
            sys.exit(app(arguments, standalone_mode=False) or 0)
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # what a person types who wants to see the commands
            error.show()
            sys.exit(2)
        where = error.ctx.command_path if error.ctx else "firstpage"
        said = f"{error.format_message().rstrip('.?')}; see {where} --help"
    except (ValueError, OSError, ImportError) as error:
        said = _said(error)
    typer.echo(f"firstpage: {' '.join(said.split())}", err=True)
    sys.exit(2)
