"""`--tune N`: the same search of settings for every method, on held-out training classes.

Trials are numbered, and number n has the same settings for every method. They see no test image: a trial is
worth what `train.select` says of classes that were held out from training, as under the `fair` protocol.
Their seed is one that no reported training has. Each method is then trained with the settings of its best.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from firstpage.compare.cells import Cell, read_cell
from firstpage.compare.spaces import describe_settings
from firstpage.compare.tables import Row, Table
from firstpage.data.catalog import Catalog
from firstpage.errors import UserError

SEED = 1000  # of all trials


@dataclass(frozen=True)
class Search:
    """The trials of a method.

    Args:
        row: The method, as the table has it.
        settings: Of each trial.
        cells: What each finished trial has measured, by number.

    >>> from firstpage.recipes import Recipe
    >>> cells = {0: {"selected": 51.0, "error": ""}, 1: {"selected": 53.0, "error": ""}}
    >>> search = Search(Row("Margin", Recipe()), [{"optimizer.lr": 1e-5}, {"optimizer.lr": 1e-4}], cells)
    >>> search.best, search.tuned.recipe.optimizer.lr, search.tuned.key
    (1, 0.0001, 'margin-tuned')
    """

    row: Row
    settings: list[dict[str, Any]]
    cells: dict[int, dict[str, Any]]

    @property
    def scores(self) -> dict[int, float]:
        """What each trial that did not fail is worth."""
        return {number: float(cell["selected"]) for number, cell in self.cells.items() if not cell["error"]}

    @property
    def best(self) -> int | None:
        """The number of the best trial, the first of equal ones; None if all have failed."""
        scores = self.scores
        return max(scores, key=lambda number: scores[number]) if scores else None

    @property
    def complete(self) -> bool:
        """Whether all trials are finished."""
        return len(self.cells) == len(self.settings)

    @property
    def tuned(self) -> Row:
        """The method with the settings of its best trial; as the table has it if all have failed."""
        best = None if self.best is None else self.settings[self.best]
        return replace(_changed(self.row, best or {}), variant="tuned")

    def line(self) -> list[str]:
        """Return the cells of a line about it: method, trials, failed ones, best, median, worst, settings."""
        scores = sorted(self.scores.values(), reverse=True)
        spread = [scores[0], statistics.median(scores), scores[-1]] if scores else []
        won = "" if self.best is None else describe_settings(self.settings[self.best])
        texts = [f"{value:.1f}" for value in spread] or ["–"] * 3
        return [self.row.name, str(len(self.cells)), str(len(self.cells) - len(scores)), *texts, won]


def _changed(row: Row, settings: Mapping[str, Any]) -> Row:
    """Return a row with other settings."""
    changes = [
        f"{name}={str(value).lower() if isinstance(value, bool) else value}"
        for name, value in settings.items()
    ]
    try:
        return replace(row, recipe=row.recipe.changed(changes))
    except UserError as error:
        raise UserError(f"tune: row {row.name!r}: {error}") from None


def _tried(table: Table) -> list[Row]:
    """Return the rows that are tuned: an untrained network is not."""
    return [row for row in table.rows if row.recipe.schedule.epochs]


def trial_cells(table: Table, count: int, seeds: Sequence[int] = ()) -> list[Cell]:
    """Return the trials of all methods: the first of each, then the second.

    Args:
        table: The methods, and the space.
        count: Trials of each method.
        seeds: Those that are reported.

    Raises:
        UserError: There is no such setting, or the seed of the trials is reported.

    >>> table = Table.of({"title": "x", "tune": {"loss.k": [1, 3]}, "row": [{"name": "Top-k"}]})
    >>> [(cell.name, cell.recipe.loss["k"]) for cell in trial_cells(table, 2)]
    [('top-k-trial-0-fair-1000', 3), ('top-k-trial-1-fair-1000', 1)]
    """
    if count < 1:
        raise UserError(f"--tune {count}: give the number of trials, at least 1")
    if SEED in seeds:
        raise UserError(
            f"--seeds: {SEED} is the seed of the trials, which must not be reported: leave it out"
        )
    return [
        Cell(replace(_changed(row, table.tune.fixed | settings), variant=f"trial-{number}"), SEED, "fair")
        for number, settings in enumerate(table.tune.settings(count))
        for row in _tried(table)
    ]


def read_searches(table: Table, catalog: Catalog, folder: Path, count: int) -> list[Search]:
    """Return the finished trials of each method that is tuned."""
    found: dict[str, dict[int, dict[str, Any]]] = {row.name: {} for row in _tried(table)}
    for cell in trial_cells(table, count):
        done = read_cell(cell, catalog, folder)
        if done is not None:
            found[cell.row.name][int(cell.row.variant.removeprefix("trial-"))] = done
    settings = table.tune.settings(count)
    return [Search(row, settings, found[row.name]) for row in _tried(table)]


def tuned_table(table: Table, searches: Sequence[Search]) -> Table:
    """Return a table whose methods have the settings of their best trials."""
    tuned = {search.row.name: search.tuned for search in searches}
    return replace(table, rows=tuple(tuned.get(row.name, row) for row in table.rows))
