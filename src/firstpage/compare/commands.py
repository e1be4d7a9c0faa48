"""The command `firstpage compare`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from firstpage._terminal import print_text


def compare_methods(
    table: Annotated[str, typer.Argument(help="TOML file, or the name of a table: firstpage list tables.")],
    data: Annotated[str, typer.Option(help="Folder, table or name of the data.")],
    out: Annotated[Path | None, typer.Option(help="Folder of results. Defaults to results/TABLE.")] = None,
    seeds: Annotated[
        str, typer.Option(help="Trainings of each method: 3 for seeds 0 to 2, or a range such as 3-5.")
    ] = "1",
    only: Annotated[
        list[str] | None,
        typer.Option("--row", help="Train this method alone; repeatable. The pages still show all rows."),
    ] = None,
    protocols: Annotated[
        list[str] | None,
        typer.Option("--protocol", help="paper or fair; repeatable. Defaults to the table's."),
    ] = None,
    tune: Annotated[
        int,
        typer.Option(help="Trials of each method, on held-out training classes, to choose its settings by."),
    ] = 0,
    minutes: Annotated[
        float | None, typer.Option("--max-minutes", help="Stop then; the next call goes on from there.")
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="section.key=value for all rows; repeatable.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cuda or cpu. Defaults to a GPU if available.")] = None,
    workers: Annotated[
        int | None, typer.Option(help="Trainings at a time. Defaults to one for each GPU of this machine.")
    ] = None,
    ray: Annotated[
        str | None, typer.Option(help="Address of a Ray cluster, or auto: one training for each of its GPUs.")
    ] = None,
    cache: Annotated[Path | None, typer.Option(help="Folder for decoded pixels.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the models of all trainings.")] = False,
) -> None:
    """Train every method of a table and write the table, with the papers' figures beside the measured ones.

    Finished trainings are not repeated: run it again to go on.
    """
    from firstpage.compare.cells import finished_seeds
    from firstpage.compare.rendering import to_markdown, write_pages
    from firstpage.compare.running import run_cells
    from firstpage.compare.summary import summarize
    from firstpage.compare.tables import find
    from firstpage.compare.tuning import read_searches, tuned_table
    from firstpage.runs.run_data import read_data

    numbers = _read_seeds(seeds)
    chosen = find(table).changed(changes or [])
    folder, asked = out or Path("results", Path(table).stem), protocols or chosen.protocols
    catalog = read_data(None, data, None)
    complete = run_cells(
        chosen.only(only) if only else chosen,
        catalog,
        folder,
        seeds=numbers,
        protocols=asked,
        tune=tune,
        minutes=minutes,
        device=device,
        workers=workers,
        ray=ray,
        cache=cache,
        keep=keep,
        live=sys.stderr.isatty(),
        show=print_text,
    )
    seen = sorted({*numbers, *finished_seeds(chosen, catalog, folder, asked)}) if not tune else numbers
    searches = read_searches(chosen, catalog, folder, tune) if tune else []
    measured = summarize(tuned_table(chosen, searches), catalog, folder, seen, asked)
    written = write_pages(folder, chosen, measured, searches)
    print_text(to_markdown(chosen, measured, searches))
    print_text(f"wrote {' and '.join(str(path) for path in written)}")
    if not complete:
        print_text("not complete: run it again to go on")
        raise typer.Exit(3)


def _read_seeds(text: str) -> range:
    """Return the seeds that `3` (the first three) or `3-5` stands for.

    >>> list(_read_seeds("3")), list(_read_seeds("3-5"))
    ([0, 1, 2], [3, 4, 5])
    """
    from firstpage.errors import UserError

    first, dash, last = text.partition("-")
    if first.isascii() and first.isdigit() and (not dash or (last.isascii() and last.isdigit())):
        found = range(int(first), int(last) + 1) if dash else range(int(first))
        if found:
            return found
    raise UserError(f"--seeds {text}: give how many, such as 3, or a range, such as 3-5")
