"""What the user sees while a run trains."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from firstpage._text import escape

SHOWN = ("P@1", "P@5", "P@10", "R@4", "R@8", "MAP@R")  # the metrics that are shown where there is little room


class Display:
    """A progress bar with the loss, the last P@1 and images per second, and a line for each evaluation.

    Args:
        steps: Number of steps of the run.
        show: False prints nothing.

    >>> with Display(10, show=False) as display:
    ...     display.update(1, 0.5, 100.0)
    """

    def __init__(self, steps: int, show: bool) -> None:
        self._bar = Progress(
            TextColumn("training"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total} steps"),
            TextColumn("{task.fields[metrics]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not show,
            transient=True,
        )
        self._task = self._bar.add_task("training", total=steps, metrics="")
        self._loss = self._throughput = self._precision = ""

    def __enter__(self) -> Self:
        self._bar.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.__exit__(kind, error, trace)

    def update(self, step: int, loss: float, images_per_second: float) -> None:
        """Show the loss of a step and the throughput."""
        self._loss = f"loss {loss:.4f}"
        self._throughput = f"{images_per_second:,.0f} images/s" if images_per_second else ""
        self._refresh(completed=step)

    def show_evaluation(self, epoch: int, metrics: dict[str, float]) -> None:
        """Print the metrics of an evaluation."""
        self._precision = f"P@1 {metrics['P@1']:.1f}"
        if not self._bar.disable:
            when = f"epoch {epoch:>3}" if epoch else "untrained"
            values = [f"{name} {metrics[name]:5.1f}" for name in SHOWN if name in metrics]
            self._bar.console.print(f"{when:>9}  " + "  ".join(values))
        self._refresh()

    def print(self, text: str) -> None:
        """Print a line above the bar."""
        if not self._bar.disable:
            self._bar.console.print(escape(text), highlight=False, markup=False, soft_wrap=True)

    def _refresh(self, completed: int | None = None) -> None:
        metrics = "  ".join(part for part in (self._loss, self._precision, self._throughput) if part)
        self._bar.update(self._task, completed=completed, metrics=metrics)
