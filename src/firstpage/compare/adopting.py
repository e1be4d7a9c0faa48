"""Trainings that another table has made already: tables of one data set share rows."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from firstpage import durable
from firstpage.compare.cells import Cell, make_room, trained_recipe
from firstpage.data.catalog import Catalog


def adopt_cells(cells: Iterable[Cell], catalog: Catalog, folder: Path, metrics: Iterable[str] = ()) -> int:
    """Copy the cells that a table in a folder beside this one has trained by the same recipe and data.

    So are those that this table had before its settings were changed, and back.

    Args:
        cells: The cells that are missing.
        catalog: The data.
        folder: The folder of this table; those of other tables are next to it.
        metrics: What a cell must have measured, such as NMI, which is not measured for every table.

    Returns:
        How many were found.

    >>> adopt_cells([], Catalog.__new__(Catalog), Path("results", "mine"))
    0
    """
    wanted: dict[str, list[Cell]] = {}
    for cell in cells:
        if not cell.row.variant:
            wanted.setdefault(cell.recipe.toml(), []).append(cell)
    found = 0
    for path in sorted(Path(os.path.abspath(folder)).parent.glob("*/cells/**/*.json")) if wanted else ():
        measured = _read(path, set(metrics))
        for cell in wanted.pop(trained_recipe(measured, catalog) or "", []):
            durable.write(
                make_room(cell, catalog, folder),
                f"{json.dumps(measured | {'row': cell.row.name}, indent=1)}\n".encode(),
            )
            found += 1
    return found


def _read(path: Path, metrics: set[str]) -> dict[str, Any]:
    """Return what a finished cell has measured; nothing if it is damaged, tuned, or lacks a metric."""
    try:
        measured = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):  # that table will say so when it is asked for
        return {}
    if not isinstance(measured, dict) or "variant" in measured:
        return {}
    error, known = measured.get("error"), measured.get("metrics")
    if error != "" or not isinstance(known, dict) or not known:
        return {}
    return measured if metrics <= known.keys() else {}
