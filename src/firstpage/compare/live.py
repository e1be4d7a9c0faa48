"""The table so far, on a terminal, while its cells are trained."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table as Grid
from rich.text import Text

from firstpage._reading import parse_json
from firstpage._text import escape
from firstpage.compare.cells import Cell
from firstpage.errors import UserError
from firstpage.evaluation.intervals import mean_and_half
from firstpage.training.display import format_seconds

_TAIL = 2**16  # bytes at the end of a log, among which the last evaluation is


class LiveTable:
    """What is known of some cells, drawn as a table.

    Args:
        cells: All of them.
        done: What the finished ones have measured, by name; it may grow.
        running: When each of those that are trained now was begun, by name; it may change.
        folder: Of the results, where cells that are trained now have their run folders.

    >>> from firstpage.compare.tables import Row
    >>> from firstpage.recipes import Recipe
    >>> cell = Cell(Row("Margin", Recipe(), {"R@1": 63.6}), 0, "paper")
    >>> done = {cell.name: {"metrics": {"R@1": 64.0, "MAP@R": 25.0}, "error": ""}}
    >>> LiveTable([cell], done, {}, Path("results")).lines()
    [['Margin', 'paper', '1/1', '64.0', '63.6', '25.0', '']]
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        done: Mapping[str, dict[str, Any]],
        running: Callable[[], Mapping[str, float]] | Mapping[str, float],
        folder: Path,
    ) -> None:
        self._cells, self._done, self._folder = cells, done, folder
        self._running = running if callable(running) else lambda: running
        self._began, self._before = time.monotonic(), len(done)

    def lines(self) -> list[list[str]]:
        """Return a line for each method: of trials the best, of trainings the mean and its interval."""
        groups: dict[tuple[str, str], list[Cell]] = {}
        for cell in self._cells:
            groups.setdefault((cell.row.name, cell.protocol), []).append(cell)
        running, lines = dict(self._running()), []
        for (name, protocol), cells in groups.items():
            done = [self._done[cell.name] for cell in cells if cell.name in self._done]
            good = [each for each in done if not each["error"]]
            if cells[0].row.is_trial:
                values = [f"{max(float(each['selected']) for each in good):.1f}" if good else ""]
            else:
                paper = cells[0].row.paper.get("R@1")
                values = [_mean(good, "R@1"), "" if paper is None else f"{paper:.1f}", _mean(good, "MAP@R")]
            now = [self._describe(cell, running[cell.name]) for cell in cells if cell.name in running]
            now += [f"{len(done) - len(good)} failed"] if len(good) < len(done) else []
            lines.append([name, protocol, f"{len(done)}/{len(cells)}", *values, "; ".join(now)])
        return lines

    def _describe(self, cell: Cell, began: float) -> str:
        """Say how far a training is: its last evaluation, and for how long it has been trained."""
        which = cell.row.variant.replace("-", " ") if cell.row.is_trial else f"seed {cell.seed}"
        last = read_last_evaluation(self._folder / "runs" / cell.name / "log.jsonl")
        metric = "R@1" if "R@1" in last else cell.recipe.train.select
        epochs = f"epoch {last.get('epoch', 0):.0f}/{cell.recipe.schedule.epochs}, " if last else ""
        value = f"{metric} {last[metric]:.1f}, " if metric in last else ""
        return f"{which}: {epochs}{value}{format_seconds(time.monotonic() - began)}"

    def caption(self) -> str:
        """Say how much is done, and how long the rest may take."""
        new, left = len(self._done) - self._before, len(self._cells) - len(self._done)
        spent = time.monotonic() - self._began
        rest = f", about {format_seconds(spent / new * left)} left" if new > 0 and left > 0 else ""
        return f"{len(self._done)} of {len(self._cells)} are done; {format_seconds(spent)}{rest}"

    def __rich__(self) -> Grid:
        """Draw the table."""
        trials = bool(self._cells) and self._cells[0].row.is_trial
        values = ["best, held out"] if trials else ["R@1", "paper", "MAP@R"]
        head = ["method", "protocol", "trials" if trials else "seeds", *values, "now"]
        grid = Grid(*head, caption=self.caption(), box=None, header_style="bold", pad_edge=False)
        for column in grid.columns[2:-1]:
            column.justify = "right"
        for line in self.lines():
            grid.add_row(*(Text(escape(cell)) for cell in line))
        return grid

    def shown(self, console: Console | None = None) -> AbstractContextManager[object]:
        """Return a context in which it is shown, by default on standard error, and kept up to date."""
        return Live(
            get_renderable=self.__rich__,
            console=console or Console(stderr=True),
            refresh_per_second=2,
            vertical_overflow="crop",
        )


def _mean(cells: Sequence[Mapping[str, Any]], metric: str) -> str:
    values = [float(each["metrics"][metric]) for each in cells if metric in each["metrics"]]
    mean, half = mean_and_half(values)
    return "" if not values else f"{mean:.1f}" if len(values) == 1 else f"{mean:.1f} ± {half:.1f}"


def read_last_evaluation(log: Path) -> dict[str, float]:
    """Return the last evaluation in the log of a run; empty if there is none yet.

    >>> read_last_evaluation(Path("nowhere"))
    {}
    """
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _TAIL))
            lines = file.read().splitlines()
    except OSError:
        return {}
    for line in reversed(lines):
        if b'"P@1"' in line:
            try:
                found = parse_json(line, nan=True)
            except UserError:  # it is being written
                continue
            return {name: value for name, value in found.items() if isinstance(value, int | float)}
    return {}
