"""The commands. They have no logic of their own: each calls one function of the package and prints."""

import os
import sys
import warnings
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from firstpage import __version__, durable
from firstpage._terminal import Commands, describe_error, print_text, show_warnings
from firstpage._text import shorten
from firstpage.compare.commands import compare_methods
from firstpage.data.commands import align_app
from firstpage.errors import UserError
from firstpage.search.commands import index_app
from firstpage.search.embed_command import embed
from firstpage.search.search_commands import calibrate, search_index
from firstpage.serve.commands import serve_index

if TYPE_CHECKING:  # these load much
    from firstpage.data.catalog import Catalog
    from firstpage.recipes import Recipe

_options = {"debug": False}  # of the command that runs
_UsageError: Any = typer.BadParameter.__base__  # click's, which newer versions of typer carry inside them

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help starts twice as fast
    help="Image embeddings for visual search whose first page of results is right.",
)
data = typer.Typer(no_args_is_help=True, help="Datasets: get one, check one.")
app.add_typer(data, name="data")
cache_app = typer.Typer(help="What is kept to save time: show it, clear it.")
app.add_typer(cache_app, name="cache")


_TABLE = (
    "Dataset: glyphs, a folder, or a csv or parquet file with columns path and label, and if you like split "
    "(train, val, test, query, gallery), group, and a box as x0, y0, x1, y1; further ones are kept."
)
_CLASSES = (
    "What makes a class in folders: leaf (the innermost folder, the default), top, depth=N, or a pattern for "
    r"file names: '(\d+)_' finds 17633752 in 17633752_3.jpg."
)
_EXCLUDE = "Column of the table, such as camera: an image is no result of a query with the same value."
_Classes = Annotated[str | None, typer.Option("--classes", metavar="RULE", help=_CLASSES)]

_DATA = "Dataset: a folder, a table, glyphs, or a run folder for its data."
_Data = Annotated[str | None, typer.Option("--data", help=_DATA)]
_ExcludeSame = Annotated[str | None, typer.Option("--exclude-same", metavar="COLUMN", help=_EXCLUDE)]


def _print_version(wanted: bool) -> None:
    if wanted:
        print_text(f"firstpage {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of every error.")] = False,
) -> None:
    _options["debug"] = debug


@data.command("get")
def _get(
    name: Annotated[str, typer.Argument(help="glyphs, cub, sop, lfw, cars, inshop, hotels50k or casia.")],
    path: Annotated[Path, typer.Argument(help="Folder to download to.")],
) -> None:
    """Download a dataset. If that is not possible, print where its publisher offers it."""
    from firstpage.data.download import download_dataset

    print_text(download_dataset(name, path))


@data.command("check")
def _check(
    path: Annotated[str, typer.Argument(help=_TABLE)],
    classes: _Classes = None,
    recipe: Annotated[str | None, typer.Option(help="Recipe to train with; see train.")] = None,
    changes: Annotated[list[str] | None, typer.Option("--set", help="section.key=value; repeatable.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    figure: Annotated[Path | None, typer.Option(help="Also draw the class histogram to this file.")] = None,
) -> None:
    """Check a dataset. Broken files, duplicates, leaks and what training would refuse give exit code 1."""
    from firstpage import recipes
    from firstpage.data.check import check_dataset
    from firstpage.runs.run_data import read_data

    chosen = recipes.find(recipe).changed(changes or [])
    if figure is not None:
        durable.check(figure)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the report has them
        catalog = read_data(None, path, classes)
    report = check_dataset(catalog, recipe=chosen)
    print_text(report.json() if as_json else report.text())
    if figure is not None:
        figure.parent.mkdir(parents=True, exist_ok=True)
        report.figure(figure)
    raise typer.Exit(0 if report.ok else 1)


@cache_app.callback(invoke_without_command=True)
def _cache(context: typer.Context) -> None:
    from firstpage.data.cache import describe_cache

    if context.invoked_subcommand is None:
        print_text(describe_cache())


@cache_app.command("clear")
def _clear(
    part: Annotated[str, typer.Argument(help="pixels, embeddings, glyphs, weights or all.")] = "all",
) -> None:
    """Remove what is kept, or a part of it, except what is in use."""
    from firstpage.data.cache import clear_cache

    print_text(clear_cache(part))


app.add_typer(align_app, name="align")
app.add_typer(index_app, name="index")
app.command("search")(search_index)
app.command("calibrate")(calibrate)
app.command("serve")(serve_index)
app.command("compare")(compare_methods)


@app.command("demo")
def _demo(
    out: Annotated[Path, typer.Option(help="Run folder.")] = Path("runs/demo"),
    serve: Annotated[bool, typer.Option("--serve", help="Then open the page that searches them.")] = False,
) -> None:
    """Train on the embedded glyphs. Shows the first page before and after, and makes an index to search."""
    from firstpage.demo import run_demo

    print_text(run_demo(out))
    if serve:
        app(["serve", str(out / "index")], standalone_mode=False)


_LISTS = {
    name: f"firstpage.{name}" for name in ("losses", "backbones", "figures", "recipes", "tables", "data")
} | {"backbones": "firstpage.models.backbones", "tables": "firstpage.compare"}
_NO_DATA = "--data: name the data to train on: a folder with one folder of images per class, or a table"
_SET = "section.key=value; repeatable. firstpage recipe lists all keys."


@app.command("recipe")
def _recipe(
    recipe: Annotated[str | None, typer.Argument(help="TOML file, or the name of a recipe.")] = None,
    data: Annotated[str | None, typer.Option(help="Print what train chooses for this data.")] = None,
    classes: _Classes = None,
    changes: Annotated[list[str] | None, typer.Option("--set", help="section.key=value; repeatable.")] = None,
) -> None:
    """Print a recipe with all its settings, explained; with --data, what train chooses for a dataset."""
    from firstpage import recipes
    from firstpage.recipes.commented import comment_toml
    from firstpage.runs.run_data import read_data

    chosen = recipes.find(recipe).changed(changes or [])
    if recipe is None and data is not None:
        catalog = read_data(None, data, classes)

        from firstpage.training.defaults import complete_recipe

        chosen = complete_recipe(_choose_recipe(catalog, None, changes), catalog)

    from firstpage import losses  # only for a recipe that is right, as it imports torch

    print_text(comment_toml(chosen, losses.describe_settings(chosen.loss.get("name"))))


@app.command("list")
def _list(
    what: Annotated[str, typer.Argument(help="losses, backbones, figures, recipes, tables or data.")],
) -> None:
    """List what there is to choose from, with a sentence about each."""
    if what not in _LISTS:
        raise UserError(f"list {what!r}: choose one of {', '.join(_LISTS)}")
    sentences = import_module(_LISTS[what]).describe()
    width = max(map(len, sentences))
    print_text("\n".join(f"{name:{width}}  {sentence}" for name, sentence in sentences.items()))


@app.command("train")
def _train(
    recipe: Annotated[
        str | None, typer.Argument(help="TOML file, name of a recipe, or just the data.")
    ] = None,
    data: _Data = None,
    out: Annotated[
        Path | None, typer.Option(help="Run folder. Defaults to runs/NAME of recipe or data.")
    ] = None,
    classes: _Classes = None,
    changes: Annotated[list[str] | None, typer.Option("--set", help=_SET)] = None,
    device: Annotated[str | None, typer.Option(help="cuda or cpu. Defaults to a GPU if available.")] = None,
    cache: Annotated[Path | None, typer.Option(help="Folder for decoded pixels.")] = None,
    folds: Annotated[bool, typer.Option("--folds", help="Train every fold of train.protocol=fair.")] = False,
    feedback: Annotated[Path | None, typer.Option(help="Index whose marks are learned from.")] = None,
) -> None:
    """Train an embedder and keep the best one. A stopped run is resumed; a finished one is shown.

    Without a recipe, the settings are chosen to fit the data and the machine; --set changes any of them.
    """
    from firstpage import recipes
    from firstpage.data.marks import Marks
    from firstpage.runs.run_data import read_data

    if data is None and recipe and recipe not in recipes.names() and _is_data(Path(recipe)):
        recipe, data = None, recipe
    chosen = recipes.find(recipe).changed(changes or [])  # before the data is read: it may be wrong
    if data is None and recipe != "glyphs":
        raise UserError(_NO_DATA)
    folder = out or Path("runs", Path(recipe).stem if recipe else Path(str(data)).resolve().stem)
    catalog = read_data(None, data or "glyphs", classes)
    if feedback is not None:
        catalog = replace(catalog, marks=Marks.read(feedback))

    # Only now, as they import torch: mistakes in the names of recipe, settings and data are found at once.
    from firstpage.runs.mark_ranks import describe_marks
    from firstpage.training import fit, fit_folds, fit_members
    from firstpage.training.folds import summary

    if recipe is None:
        chosen = _choose_recipe(catalog, device, changes)
    if folds and chosen.train.members > 1:
        raise UserError("--folds: trains single networks: leave it out, or use --set train.members=1")
    if folds:
        text = summary(fit_folds(chosen, catalog, folder, device=device, cache=cache))
    else:
        train = fit_members if chosen.train.members > 1 else fit
        text = train(chosen, catalog, folder, device=device, cache=cache).text()
        if feedback is not None and os.environ.get("RANK", "0") == "0":
            text += f"\n{describe_marks(folder, feedback, device=device, cache=cache)}"
    if os.environ.get("RANK", "0") == "0":  # only one process of a job prints
        print_text(text)


def _choose_recipe(catalog: "Catalog", device: str | None, changes: list[str] | None) -> "Recipe":
    """Return what is chosen where no recipe was named, and say what the user should know about it."""
    from firstpage.models.device import resolve_device
    from firstpage.training.defaults import default_recipe

    chosen, notes = default_recipe(catalog, resolve_device(device), changes or [])
    for note in notes:
        warnings.warn(note, stacklevel=1)
    return chosen


def _is_data(path: Path) -> bool:
    """Return whether an argument that may be a recipe is a dataset."""
    return path.is_dir() or (path.is_file() and path.suffix in (".csv", ".parquet"))


@app.command("baseline")
def _baseline(
    recipe: Annotated[str | None, typer.Argument(help="TOML file, or the name of a recipe.")] = None,
    data: _Data = None,
    backbone: Annotated[str | None, typer.Option(help="The network: see firstpage list backbones.")] = None,
    weights: Annotated[str | None, typer.Option(help="imagenet, or a file. Defaults to random ones.")] = None,
    classes: _Classes = None,
    out: Annotated[Path, typer.Option(help="Run folder.")] = Path("runs/baseline"),
    changes: Annotated[list[str] | None, typer.Option("--set", help=_SET)] = None,
    device: Annotated[str | None, typer.Option(help="cuda or cpu. Defaults to a GPU if available.")] = None,
    cache: Annotated[Path | None, typer.Option(help="Folder for decoded pixels.")] = None,
) -> None:
    """Test an untrained network as a run is tested, and keep it, to compare runs with: does training help?"""
    from firstpage import recipes
    from firstpage.runs.run_data import read_data

    if data is None:
        raise UserError(_NO_DATA)
    chosen = recipes.baseline(recipe, backbone=backbone, weights=weights, changes=changes or [])
    catalog = read_data(None, data, classes)

    from firstpage.training import fit  # imports torch

    print_text(fit(chosen, catalog, out, device=device, cache=cache).text())


@app.command("evaluate")
def _evaluate(
    subject: Annotated[Path, typer.Argument(help="A run folder, or a saved embedder.")],
    data: Annotated[
        str | None, typer.Option(help="Dataset, or a run folder for its test. Defaults to that of the run.")
    ] = None,
    protocol: Annotated[str | None, typer.Option(help="paper or fair. Defaults to that of the run.")] = None,
    classes: _Classes = None,
    every_class: Annotated[bool, typer.Option("--every-class", help="Print every class.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    clustering: Annotated[bool, typer.Option(help="Also cluster; slow with many classes.")] = True,
    exclude_same: _ExcludeSame = None,
    flip: Annotated[
        bool, typer.Option("--flip", help="Average over each image and its mirror image.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Write into this file instead of printing.")] = None,
    device: Annotated[str | None, typer.Option(help="cuda or cpu. Defaults to a GPU if available.")] = None,
    cache: Annotated[Path | None, typer.Option(help="Folder for decoded pixels.")] = None,
) -> None:
    """Evaluate a model on its test images. Prints 95 % intervals, the worst and the most confused classes."""
    from firstpage.report import embed_test, evaluate_test
    from firstpage.runs import open_run

    if out is not None:
        durable.check(out)
    run = open_run(subject, data, classes=classes, protocol=protocol, device=device, cache=cache, flip=flip)
    evaluation = evaluate_test(embed_test(run, exclude_same), clustering=clustering)
    text = evaluation.json() if as_json else evaluation.text(every_class)
    if out is None:
        print_text(text)
    else:
        out.parent.mkdir(parents=True, exist_ok=True)
        durable.write(out, f"{text}\n".encode())


@app.command("report")
def _report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or saved embedders.")],
    out: Annotated[Path | None, typer.Option(help="HTML file. Defaults to report.html in a run.")] = None,
    data: Annotated[
        str | None, typer.Option(help="Dataset, or a run folder for its test. Defaults to that of each run.")
    ] = None,
    classes: _Classes = None,
    protocol: Annotated[str | None, typer.Option(help="paper or fair. Defaults to that of each run.")] = None,
    clustering: Annotated[bool, typer.Option(help="Also cluster; slow with many classes.")] = True,
    exclude_same: _ExcludeSame = None,
    index: Annotated[Path | None, typer.Option(help="Index whose marks are shown, too.")] = None,
    device: Annotated[str | None, typer.Option(help="cuda or cpu. Defaults to a GPU if available.")] = None,
    cache: Annotated[Path | None, typer.Option(help="Folder for decoded pixels.")] = None,
) -> None:
    """Write a report as one HTML file. Several runs are shown side by side."""
    from firstpage.report import write_report

    path = write_report(
        runs,
        out,
        data=data,
        classes=classes,
        protocol=protocol,
        clustering=clustering,
        exclude_same=exclude_same,
        index=index,
        device=device,
        cache=cache,
    )
    print_text(f"wrote {path}")


@app.command("figures")
def _figures(
    name: Annotated[
        str, typer.Argument(help="Such as training, roc or sphere-density: see firstpage list figures.")
    ],
    sources: Annotated[list[Path] | None, typer.Argument(help="Run folders, or .npz files of embed.")] = None,
    out: Annotated[Path | None, typer.Option(help="A .png, .svg or .pdf file. Defaults to NAME.png.")] = None,
    data: _Data = None,
    split: Annotated[str | None, typer.Option(help="Split to draw, instead of the figure's own.")] = None,
    dark: Annotated[bool, typer.Option("--dark", help="For dark pages.")] = False,
) -> None:
    """Draw one of the papers' figures."""
    from firstpage import figures

    target = out or Path(f"{name}.png")
    print_text(figures.draw(name, sources or [], target, data=data, split=split, dark=dark))


app.command("embed")(embed)


@app.command("export")
def _export(
    model: Annotated[Path, typer.Argument(help="A saved embedder, or a run folder.")],
    out: Annotated[Path, typer.Argument(help="The .onnx file to write.")],
) -> None:
    """Export an embedder to ONNX."""
    from firstpage.models import Embedder, export_onnx
    from firstpage.models.onnx_export import describe_input

    embedder = Embedder.load(model)
    print_text(f"wrote {export_onnx(embedder, out)}")
    print_text(describe_input(embedder))


def main(arguments: list[str] | None = None) -> None:
    """Run the command line.

    A mistake of the user and a failure of the system (a full disk, a missing file) are printed in one line,
    with exit code 2. Any other exception is a bug and keeps its traceback; `--debug` shows it always.

    Example:
        >>> main(["data", "get", "nabirds", "birds"])
        Traceback (most recent call last):
        SystemExit: 2
    """
    sys.path.append(os.getcwd())  # where the classes that a recipe names may be, as for `python -m firstpage`
    try:
        with warnings.catch_warnings():
            warnings.showwarning = show_warnings()
            sys.exit(app(arguments, standalone_mode=False) or 0)
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # typed by someone who wants to see the commands
            error.show()
            sys.exit(2)
        command = error.ctx.command_path if error.ctx else "firstpage"
        message = f"{error.format_message().rstrip('.?')}; see {command} --help"
    except (UserError, OSError) as error:
        if _options["debug"]:
            raise
        message = describe_error(error)
    print_text(shorten(f"firstpage: {' '.join(message.split())}"), err=True)
    sys.exit(2)
