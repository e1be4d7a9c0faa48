"""The cells of a table, one training each, and the files of what they have measured."""

import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from firstpage._reading import read_json
from firstpage.compare.tables import Row, Table
from firstpage.data.catalog import Catalog
from firstpage.errors import UserError
from firstpage.recipes.recipe import Recipe
from firstpage.runs.folder import fingerprint

PROTOCOLS = ("paper", "fair")


@dataclass(frozen=True)
class Cell:
    """A training of a table.

    Args:
        row: The method.
        seed: Of the training.
        protocol: `paper` or `fair`.

    >>> Cell(Row("Margin", Recipe()), 2, "fair").name
    'margin-fair-2'
    """

    row: Row
    seed: int
    protocol: str

    @property
    def name(self) -> str:
        """Of its files."""
        return f"{self.row.key}-{self.protocol}-{self.seed}"

    @property
    def recipe(self) -> Recipe:
        """How it is trained."""
        train = replace(self.row.recipe.train, seed=self.seed, protocol=self.protocol)
        return replace(self.row.recipe, train=train)

    def file(self, folder: Path) -> Path:
        """Return where what it has measured is written."""
        return folder / "cells" / f"{self.name}.json"

    def identity(self, catalog: Catalog) -> str:
        """Return a digest of the recipe and the data: a cell of another one is trained again."""
        return _digest(self.recipe.toml(), catalog)


def cells_of(table: Table, seeds: Sequence[int], protocols: Sequence[str]) -> list[Cell]:
    """Return the cells of a table: every method at the first seed, then at the next.

    Raises:
        UserError: There is no such protocol.

    >>> table = Table.of({"title": "Two", "row": [{"name": "RLL"}, {"name": "Margin"}]})
    >>> [cell.name for cell in cells_of(table, [0, 1], ["paper"])]
    ['rll-paper-0', 'margin-paper-0', 'rll-paper-1', 'margin-paper-1']
    """
    for protocol in protocols:
        if protocol not in PROTOCOLS:
            raise UserError(f"protocol {protocol!r}: choose from {', '.join(PROTOCOLS)}")
    return [Cell(row, seed, protocol) for protocol in protocols for seed in seeds for row in table.rows]


def read_cell(cell: Cell, catalog: Catalog, folder: Path) -> dict[str, Any] | None:
    """Return what a finished cell has measured; None if it was not trained, or by another recipe or data.

    >>> import numpy as np
    >>> catalog = Catalog("x", Path(), ["a.jpg"], np.zeros(1, int), ["a"], {})
    >>> read_cell(Cell(Row("Margin", Recipe()), 0, "paper"), catalog, Path("nowhere")) is None
    True
    """
    path = cell.file(folder)
    if not path.is_file():
        return None
    table = read_json(path)
    if not isinstance(table, dict) or not {"identity", "metrics", "error"} <= table.keys():
        raise UserError(f"{path}: damaged: remove it, and it is measured again")
    return table if trained_recipe(table, catalog) == cell.recipe.toml() else None


def trained_recipe(measured: Mapping[str, Any], catalog: Catalog) -> str | None:
    """Return the recipe that a cell was trained by, as this version writes it; None if on other data.

    A setting that there was not yet has its default: a new version does not train everything again.

    >>> import numpy as np
    >>> catalog = Catalog("x", Path(), ["a.jpg"], np.zeros(1, int), ["a"], {})
    >>> older = "schedule = { epochs = 3 }"
    >>> recipe = trained_recipe({"recipe": older, "identity": _digest(older, catalog)}, catalog)
    >>> recipe == Recipe.of({"schedule": {"epochs": 3}}).toml()
    True
    """
    written = measured.get("recipe")
    if not isinstance(written, str) or measured.get("identity") != _digest(written, catalog):
        return None
    try:
        return Recipe.of(tomllib.loads(written)).toml()
    except (UserError, tomllib.TOMLDecodeError):  # of a version that had other settings
        return None


def _digest(recipe: str, catalog: Catalog) -> str:
    return hashlib.sha256(json.dumps([recipe, _fingerprint(catalog)]).encode()).hexdigest()


@lru_cache(maxsize=1)  # hundreds of cells ask for that of one catalog, which may have a million images
def _fingerprint(catalog: Catalog) -> str:
    return fingerprint(catalog)


def make_room(cell: Cell, catalog: Catalog, folder: Path) -> Path:
    """Return the file that a cell is to be written to; what is there of other settings is kept in `replaced`.

    >>> import tempfile
    >>> import numpy as np
    >>> catalog = Catalog("x", Path(), ["a.jpg"], np.zeros(1, int), ["a"], {})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = make_room(Cell(Row("Margin", Recipe()), 0, "fair"), catalog, Path(folder))
    ...     path.name, path.parent.name
    ('margin-fair-0.json', 'cells')
    """
    path = cell.file(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_file() and read_cell(cell, catalog, folder) is None:
        (path.parent / "replaced").mkdir(exist_ok=True)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
        path.rename(path.parent / "replaced" / f"{cell.name}-{digest}.json")
    return path


def finished_seeds(table: Table, catalog: Catalog, folder: Path, protocols: Sequence[str]) -> set[int]:
    """Return the seeds that any method of a table has been trained with.

    >>> import numpy as np
    >>> catalog = Catalog("x", Path(), ["a.jpg"], np.zeros(1, int), ["a"], {})
    >>> finished_seeds(Table.of({"title": "x", "row": [{"name": "RLL"}]}), catalog, Path("nowhere"), ["fair"])
    set()
    """
    numbers = {
        int(number)
        for path in (folder / "cells").glob("*.json")
        if (number := path.stem.rpartition("-")[2]).isascii() and number.isdigit()
    }
    cells = cells_of(table, sorted(numbers), protocols)
    return {cell.seed for cell in cells if read_cell(cell, catalog, folder) is not None}
