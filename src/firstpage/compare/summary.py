"""What the cells of a table say together: means over seeds, and whether the best method is ahead."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import stdtr  # type: ignore[import-untyped]

from firstpage.compare.cells import cells_of, read_cell
from firstpage.compare.tables import Row, Table
from firstpage.data.catalog import Catalog
from firstpage.evaluation.intervals import mean_and_half


@dataclass(frozen=True)
class Measured:
    """What the trainings of a method have measured, over seeds, under one protocol.

    Args:
        row: The method.
        protocol: `paper` or `fair`.
        cells: What each finished training has written, by seed.

    >>> from firstpage.recipes import Recipe
    >>> cells = {seed: {"metrics": {"R@1": value}, "error": ""} for seed, value in enumerate((60.0, 62.0))}
    >>> [round(value, 1) for value in Measured(Row("Margin", Recipe()), "paper", cells).mean("R@1")]
    [61.0, 12.7]
    """

    row: Row
    protocol: str
    cells: dict[int, dict[str, Any]]

    def values(self, metric: str) -> dict[int, float]:
        """Return a metric by seed."""
        tables = {seed: cell["metrics"] for seed, cell in self.cells.items()}
        return {seed: float(table[metric]) for seed, table in tables.items() if metric in table}

    def mean(self, metric: str) -> tuple[float, float]:
        """Return the mean over seeds and half its 95 % interval (Student's t); NaN where there are none."""
        return mean_and_half(list(self.values(metric).values()))

    def average(self, name: str) -> float | None:
        """Return the mean of another number that each cell has, such as `seconds`."""
        numbers = [cell[name] for cell in self.cells.values() if cell.get(name) is not None]
        return float(np.mean(numbers)) if numbers else None

    @property
    def errors(self) -> list[str]:
        """Why trainings have failed, each reason once."""
        return list(dict.fromkeys(cell["error"] for cell in self.cells.values() if cell["error"]))

    def remarks(self, metric: str, untrained: float) -> list[str]:
        """Return what a reader of the table must know: failures, and whether training made the network worse.

        Args:
            metric: Which counts.
            untrained: Its value without training; NaN where that was not measured.

        >>> from firstpage.recipes import Recipe
        >>> cells = {0: {"metrics": {"R@1": 11.2}, "error": "", "warnings": ["step 120: collapsed"]}}
        >>> Measured(Row("Triplet", Recipe()), "paper", cells).remarks("R@1", 53.6)
        ['worse than without training (R@1 11.2, 53.6): step 120: collapsed']
        """
        mean = self.mean(metric)[0]
        if not mean < untrained:  # nor if one is NaN
            return self.errors
        warnings = dict.fromkeys(text for cell in self.cells.values() for text in cell.get("warnings", []))
        why = f": {'; '.join(warnings)}" if warnings else ""
        return [*self.errors, f"worse than without training ({metric} {mean:.1f}, {untrained:.1f}){why}"]


def summarize(
    table: Table, catalog: Catalog, folder: Path, seeds: Sequence[int], protocols: Sequence[str]
) -> list[Measured]:
    """Return what was measured of each method under each protocol.

    >>> table = Table.of({"title": "One", "row": [{"name": "RLL"}]})
    >>> catalog = Catalog("x", Path(), ["a.jpg"], np.zeros(1, int), ["a"], {})
    >>> summarize(table, catalog, Path("nowhere"), [0], ["paper"])[0].cells
    {}
    """
    found: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
    for cell in cells_of(table, seeds, protocols):
        measured = read_cell(cell, catalog, folder)
        cells = found.setdefault((cell.protocol, cell.row.key), {})
        if measured is not None:
            cells[cell.seed] = measured
    return [
        Measured(row, protocol, found.get((protocol, row.key), {}))
        for protocol in protocols
        for row in table.rows
    ]


def compare_best(measured: Sequence[Measured], metric: str) -> str:
    """Say in a sentence whether the best method is ahead of the next, seed by seed (paired t-test).

    Of a table that is not complete, those methods are compared that have most seeds, on the seeds that all of
    these have.

    >>> from firstpage.recipes import Recipe
    >>> def row(name, *values):
    ...     cells = {seed: {"metrics": {"R@1": value}, "error": ""} for seed, value in enumerate(values)}
    ...     return Measured(Row(name, Recipe()), "paper", cells)
    >>> compare_best([row("A", 60.0, 61.0, 62.0), row("B", 58.0, 59.1, 59.9)], "R@1")
    'R@1: A is ahead of B by 2.0 ± 0.2 (p = 0.001, 3 seeds)'
    >>> compare_best([row("A", 60.0, 61.0), row("B", 58.0, 59.2), row("C", 62.0)], "R@1")
    'R@1 of methods with 2 seeds: A is ahead of B by 1.9 ± 1.3 (p = 0.033, 2 seeds)'
    """
    every = {each.row.name: each.values(metric) for each in measured if each.values(metric)}
    if len(every) < 2:
        return ""
    most = sorted(map(len, every.values()))[-2]  # seeds that two methods have at least
    values = {name: found for name, found in every.items() if len(found) >= most}
    seeds = sorted(set.intersection(*(set(found) for found in values.values())))
    if not seeds:
        return ""
    which = "" if len(values) == len(every) else f" of methods with {most} seeds"
    ranked = sorted(
        values, key=lambda name: float(np.mean([values[name][seed] for seed in seeds])), reverse=True
    )
    best, other = ranked[:2]
    gaps = [values[best][seed] - values[other][seed] for seed in seeds]
    mean, half = mean_and_half(gaps)
    start = f"{metric}{which}: {best} is ahead of {other} by {mean:.1f}"
    if len(gaps) < 2:
        return f"{start} (one seed: by chance, perhaps)"
    error = float(np.std(gaps, ddof=1)) / len(gaps) ** 0.5
    p = 2 * float(stdtr(len(gaps) - 1, -abs(mean) / error)) if error else 0.0
    chance = f"p = {p:.3f}" if p >= 0.0005 else "p < 0.001"
    verdict = "" if half < abs(mean) else "; the seeds do not separate them"
    return f"{start} ± {half:.1f} ({chance}, {len(gaps)} seeds{verdict})"
