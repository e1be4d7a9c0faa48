"""Run what is missing of a table, in pieces if asked to."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from firstpage.compare.cells import Cell, CellTrainer, cells_of, read_cell
from firstpage.compare.tables import Table
from firstpage.compare.tuning import read_searches, trial_cells, tuned_table
from firstpage.data.catalog import Catalog


def run_cells(
    table: Table,
    catalog: Catalog,
    folder: str | os.PathLike[str],
    *,
    seeds: Sequence[int] = (0,),
    protocols: Sequence[str] = ("paper",),
    tune: int = 0,
    minutes: float | None = None,
    device: str | None = None,
    cache: str | os.PathLike[str] | None = None,
    keep: bool = False,
    progress: bool = True,
    show: Callable[[str], None] = print,
) -> bool:
    """Train what is missing of a table. A finished cell is not trained again, a cut one is resumed.

    One that has failed is tried again after all others, unless it is a trial.

    Args:
        table: The methods.
        catalog: The data.
        folder: For `cells/`, one JSON file each, and `runs/`, the run folders of cells that were cut.
        seeds: Of the trainings.
        protocols: `paper`, `fair`, or both.
        tune: Trials of each method, before it is trained with the settings of the best; see `compare.tuning`.
        minutes: Stop after so many, in the middle of a cell if need be; the next call goes on from there.
        device: A torch device. Defaults to a GPU if available.
        cache: Folder for decoded pixels. Defaults to the user's cache.
        keep: Keep the run folders of finished cells, with their models.
        progress: Show the progress of each training.
        show: Is given a line about each finished cell.

    Returns:
        Whether the table is complete.

    Raises:
        UserError: The data does not fit, or a file of a cell is damaged.
    """
    place = Path(folder)
    end = None if minutes is None else time.monotonic() + 60 * minutes
    clusters = bool({"NMI", "F1"} & set(table.metrics))
    cells_of(table, seeds, protocols)  # a protocol that there is not is known before the trials
    with CellTrainer(
        catalog, place, device=device, cache=cache, keep=keep, clusters=clusters, progress=progress
    ) as trainer:
        if tune:
            trials = trial_cells(table, tune, seeds)
            if not _run(trainer, trials, catalog, place, end, show):
                return False
            table = tuned_table(table, read_searches(table, catalog, place, tune))
        return _run(trainer, cells_of(table, seeds, protocols), catalog, place, end, show)


def _run(
    trainer: CellTrainer,
    cells: Sequence[Cell],
    catalog: Catalog,
    folder: Path,
    end: float | None,
    show: Callable[[str], None],
) -> bool:
    """Train what is missing of some cells, and return whether all are finished."""
    found = [(cell, read_cell(cell, catalog, folder)) for cell in cells]
    missing = [cell for cell, done in found if done is None]
    missing += [cell for cell, done in found if done and done["error"] and not cell.row.is_trial]
    kind = "trials" if cells and cells[0].row.is_trial else "trainings"
    show(f"{len(cells)} {kind}, {len(cells) - len(missing)} of them done")
    began = time.monotonic()
    for number, (cell, measured) in enumerate(_train(trainer, missing, end), start=1):
        if measured is None:
            show(f"the time is over at {cell.row.name}, seed {cell.seed}: run it again to go on")
            return False
        left = (time.monotonic() - began) / number * (len(missing) - number)
        show(_line(number, len(missing), cell, measured, left))
    return True


def _train(
    trainer: CellTrainer, cells: Sequence[Cell], end: float | None
) -> Iterator[tuple[Cell, dict[str, Any] | None]]:
    """Yield what each cell has measured; None if it was cut."""
    for cell in cells:
        yield cell, trainer.train(cell, None if end is None else end - time.monotonic())


def _line(number: int, count: int, cell: Cell, measured: dict[str, Any], left: float) -> str:
    trial = f", {cell.row.variant.replace('-', ' ')}" if cell.row.is_trial else ""
    name = f"{number}/{count}  {cell.row.name}{trial}, seed {cell.seed}, {cell.protocol}: "
    if measured["error"]:
        return f"{name}{measured['error']}"
    if cell.row.is_trial:
        shown = f"{cell.recipe.train.select} of held-out classes {measured['selected']:.1f}"
    else:
        paper = f" (paper {cell.row.paper['R@1']:.1f})" if "R@1" in cell.row.paper else ""
        shown = f"R@1 {measured['metrics']['R@1']:.1f}{paper}, MAP@R {measured['metrics']['MAP@R']:.1f}"
    rest = f", about {left / 60:.0f} min left" if number < count else ""
    return f"{name}{shown}; {measured['wall']:.0f} s{rest}"
