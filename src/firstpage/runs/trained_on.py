"""The data set a run was trained on, found again."""

from __future__ import annotations

import warnings
from pathlib import Path

from firstpage.data import read
from firstpage.data.catalog import Catalog
from firstpage.runs.folder import fingerprint
from firstpage.runs.record import Record

__all__ = ["trained_on"]

_TABLES = {
    "csv": (".csv", ".tsv"),
    "parquet": (".parquet", ".pq"),
}  # a run knows their folder, not their name


def trained_on(record: Record) -> Catalog:
    """Read the data set a run was trained on, if it is still where it was and what it was.

    Raises:
        FileNotFoundError: it is not.

    >>> from firstpage.recipes.recipe import Recipe
    >>> trained_on(Record(Path("runs/a"), Recipe(), {"data": {"name": "cub", "root": "birds"}}, []))
    Traceback (most recent call last):
    FileNotFoundError: runs/a: its data (cub in birds) cannot be found as it was: name it by --data
    """
    about = record.about.get("data") or {}
    name, root = str(about.get("name", "")), Path(str(about.get("root", "")))
    # A catalog's root is where its images are: the annotations may lie one above.
    places: list[str | Path] = [root, root.parent]
    places += ["glyphs"] if name == "glyphs" else []
    places += sorted(path for ending in _TABLES.get(name, ()) for path in root.glob(f"*{ending}"))
    for path in places:
        try:
            with warnings.catch_warnings():  # said when it was trained
                warnings.simplefilter("ignore")
                catalog = read(path, kind=name)
        except (OSError, ValueError, TypeError, ImportError):
            continue
        if fingerprint(catalog) == about.get("fingerprint"):
            return catalog
    raise FileNotFoundError(
        f"{record.folder}: its data ({name} in {root}) cannot be found as it was: name it by --data"
    )
