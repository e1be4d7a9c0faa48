"""Run what is missing of a table, in pieces if asked to."""

import os
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from firstpage.compare.adopting import adopt_cells
from firstpage.compare.cells import Cell, cells_of, read_cell
from firstpage.compare.live import LiveTable
from firstpage.compare.ray_workers import RayActors
from firstpage.compare.tables import Table
from firstpage.compare.tuning import read_searches, trial_cells, tuned_table
from firstpage.compare.workers import Crew, OneProcess, Processes
from firstpage.data.catalog import Catalog
from firstpage.errors import UserError


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
    workers: int | None = None,
    ray: str | None = None,
    cache: str | os.PathLike[str] | None = None,
    keep: bool = False,
    progress: bool = True,
    live: bool = False,
    show: Callable[[str], None] = print,
) -> bool:
    """Train what is missing of a table. A finished cell is not trained again, a cut one is resumed.

    One that has failed is tried again after all others, unless it is a trial. What another table has trained
    by the same recipe on the same data is copied from its folder, if that is next to this one.

    Args:
        table: The methods.
        catalog: The data.
        folder: For `cells/`, one JSON file each, and `runs/`, the run folders of cells that were cut.
        seeds: Of the trainings.
        protocols: `paper`, `fair`, or both.
        tune: Trials of each method, before it is trained with the settings of the best; see `compare.tuning`.
        minutes: Stop after so many, in the middle of a cell if need be; the next call goes on from there.
        device: A torch device. Defaults to all GPUs, or the CPU if there is none.
        workers: Processes that train a cell each. Defaults to as many as there are GPUs; one worker is this
            process itself.
        ray: Address of a Ray cluster, whose workers train the cells; see `compare.workers.RayActors`.
        cache: Folder for decoded pixels. Defaults to the user's cache.
        keep: Keep the run folders of finished cells, with their models.
        progress: Show the progress of each training.
        live: Draw the table so far on standard error, in place of the progress of each training and of lines
            about finished cells.
        show: Is given a line about each finished cell.

    Returns:
        Whether the table is complete.

    Raises:
        UserError: The data does not fit, or a file of a cell is damaged.
    """
    place = Path(folder)
    end = None if minutes is None else time.monotonic() + 60 * minutes
    clustered = {"NMI", "F1"} & set(table.metrics)
    cells_of(table, seeds, protocols)  # a protocol that there is not is known before the trials
    options = {"cache": cache, "keep": keep, "clusters": bool(clustered), "progress": progress, "quiet": live}
    with make_crew(catalog, place, workers=workers, ray=ray, device=device, **options) as crew:
        if tune:
            trials = trial_cells(table, tune, seeds)
            if not _run(crew, trials, catalog, place, end, show, live):
                return False
            table = tuned_table(table, read_searches(table, catalog, place, tune))
        return _run(crew, cells_of(table, seeds, protocols), catalog, place, end, show, live, clustered)


def make_crew(
    catalog: Catalog,
    folder: str | os.PathLike[str],
    *,
    workers: int | None = None,
    ray: str | None = None,
    device: str | None = None,
    **options: Any,  # noqa: ANN401
) -> Crew:
    """Return who trains: this process if there is one worker, as by default without a second GPU.

    Args:
        catalog: The data.
        folder: Of the results.
        workers: Number of processes, or the most actors. Defaults to as many as there are GPUs.
        ray: Address of a Ray cluster.
        device: A torch device; one with a number, such as `cuda:1`, is that of all workers.
        options: Of a `CellTrainer`.

    Raises:
        UserError: There are no workers.

    >>> import numpy as np
    >>> from pathlib import Path
    >>> catalog = Catalog("x", Path(), ["a.jpg"], np.zeros(1, int), ["a"], {})
    >>> type(make_crew(catalog, "results", workers=2, device="cpu")).__name__
    'Processes'
    """
    if workers is not None and workers < 1:
        raise UserError(f"--workers {workers}: give at least 1")
    if ray is not None:
        return RayActors(ray, workers, catalog, folder, **options)
    gpus = torch.cuda.device_count() if device in (None, "cuda") else 0
    count = workers or max(1, gpus)
    if count == 1:
        return OneProcess(catalog, folder, device=device, **options)
    devices = [f"cuda:{number % gpus}" if gpus else device or "cpu" for number in range(count)]
    return Processes(devices, catalog, folder, **options)


def _run(
    crew: Crew,
    cells: Sequence[Cell],
    catalog: Catalog,
    folder: Path,
    end: float | None,
    show: Callable[[str], None],
    live: bool,
    metrics: Collection[str] = (),
) -> bool:
    """Train what is missing of some cells, and return whether all are finished.

    Cells of other tables are taken over if they have these metrics, too.
    """
    found = [(cell, read_cell(cell, catalog, folder)) for cell in cells]
    missing = _missing(found)
    if adopted := adopt_cells(missing, catalog, folder, metrics):
        show(f"{adopted} trainings were found beside it, by the same recipe on the same data")
        found = [(cell, read_cell(cell, catalog, folder)) for cell in cells]
        missing = _missing(found)
    kind = "trials" if cells and cells[0].row.is_trial else "trainings"
    show(f"{len(cells)} {kind}, {len(cells) - len(missing)} of them done")
    if others := sum(cell.file(folder).is_file() for cell, done in found if done is None):
        show(
            f"{others} were trained with other settings or data: they are kept in {folder / 'cells/replaced'}"
        )
    if not missing:
        return True
    if end is None or time.monotonic() < end:
        crew.decode(missing, end)
    done = {cell.name: measured for cell, measured in found if measured is not None and cell not in missing}
    began, number, complete = time.monotonic(), 0, True
    drawn = LiveTable(cells, done, lambda: crew.running, folder).shown() if live else nullcontext()
    with drawn:
        for cell, measured in crew.train(missing, end):
            if measured is None:
                show(f"the time is over at {cell.row.name}, seed {cell.seed}: run it again to go on")
                complete = False
                continue
            number, done[cell.name] = number + 1, measured
            left = (time.monotonic() - began) / number * (len(missing) - number)
            if not live or measured["error"]:
                show(_line(number, len(missing), cell, measured, left))
    return complete


def _missing(found: Sequence[tuple[Cell, dict[str, Any] | None]]) -> list[Cell]:
    """Return the cells to train: first those that were not yet, then those that have failed."""
    missing = [cell for cell, done in found if done is None]
    return missing + [cell for cell, done in found if done and done["error"] and not cell.row.is_trial]


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
