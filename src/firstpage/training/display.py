"""What a person sees while a run trains."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["SHOWN", "Display"]

SHOWN = ("P@1", "P@5", "P@10", "R@4", "R@8", "MAP@R")  # of all figures, where there is room for few


class Display:
    """A progress bar with the loss, the last P@1 and images a second, and a line for each evaluation.

    Args:
        steps: of the whole run.
        show: False prints nothing.

    >>> with Display(10, show=False) as display:
    ...     display.advance(1, 0.5, 100.0)
    """

    def __init__(self, steps: int, show: bool) -> None:
        self._bar = Progress(
            TextColumn("training"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total} steps"),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not show,
            transient=True,
        )
        self._task = self._bar.add_task("training", total=steps, figures="")
        self._loss = self._pace = ""
        self._first = ""

    def __enter__(self) -> Self:
        self._bar.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.__exit__(kind, error, trace)

    def advance(self, step: int, loss: float, pace: float) -> None:
        """Show a step's loss and the pace."""
        self._loss, self._pace = f"loss {loss:.4f}", f"{pace:,.0f} images/s" if pace else ""
        self._show(completed=step)

    def evaluated(self, epoch: int, figures: dict[str, float]) -> None:
        """Print the figures of an evaluation."""
        self._first = f"P@1 {figures['P@1']:.1f}"
        names = [name for name in SHOWN if name in figures]
        if not self._bar.disable:
            when = f"epoch {epoch:>3}" if epoch else "untrained"
            self._bar.console.print(f"{when:>9}  " + "  ".join(f"{n} {figures[n]:5.1f}" for n in names))
        self._show()

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        if not self._bar.disable:
            self._bar.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _show(self, completed: int | None = None) -> None:
        figures = "  ".join(part for part in (self._loss, self._first, self._pace) if part)
        self._bar.update(self._task, completed=completed, figures=figures)
