"""Tables of methods: many runs from one file, with the papers' figures beside the measured ones.

`tables.py` reads a table, such as those of `papers/`, `running.py` trains what is missing of it, a cell at a
time (`cells.py`), after trials of other settings if asked to (`tuning.py`); `summary.py` averages over seeds,
and `rendering.py` writes it down.
"""

from typing import TYPE_CHECKING

from firstpage._lazy import lazy

if TYPE_CHECKING:
    from firstpage.compare.cells import Cell
    from firstpage.compare.running import run_cells
    from firstpage.compare.tables import Row, Table, describe, find, names

__all__ = ["Cell", "Row", "Table", "describe", "find", "names", "run_cells"]

__getattr__ = lazy(
    "firstpage.compare",
    {
        "Cell": "firstpage.compare.cells",
        "Row": "firstpage.compare.tables",
        "Table": "firstpage.compare.tables",
        "describe": "firstpage.compare.tables",
        "find": "firstpage.compare.tables",
        "names": "firstpage.compare.tables",
        "run_cells": "firstpage.compare.running",
    },
)
