"""Tables of methods: many runs from one file, with the papers' figures beside the measured ones.

`tables.py` reads a table, such as those of `papers/`, `cells.py` trains what is missing of it, `summary.py`
averages over seeds, and `rendering.py` writes it down.
"""

from typing import TYPE_CHECKING

from firstpage._lazy import lazy

if TYPE_CHECKING:
    from firstpage.compare.cells import Cell, run_cells
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
        "run_cells": "firstpage.compare.cells",
    },
)
