"""What the user sees while a run trains."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from firstpage._text import escape

SHOWN = ("P@1", "P@5", "P@10", "R@4", "R@8", "MAP@R")  # the metrics that are shown where there is little room
LINE_EVERY = 30.0  # seconds between lines where there is no terminal to draw a bar on


class Display:
    """The phase of a run, a bar that moves with every step, its throughput and time left, and evaluations.

    Where standard error is not a terminal, there is a line every half minute in place of the bar.

    Args:
        steps: Number of steps of the run.
        show: False prints nothing. An attribute of the same name.

    >>> with Display(10, show=False) as display:
    ...     display.step(1, images=32)
    """

    def __init__(self, steps: int, show: bool) -> None:
        self._bar = Progress(
            TextColumn("{task.description:>10}"),
            BarColumn(),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f} {task.fields[unit]}"),
            TextColumn("{task.fields[metrics]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not show,
            transient=True,
        )
        self.show, self._steps = show, steps
        self._task = self._bar.add_task("training", total=steps, unit="steps", metrics="", visible=False)
        self._loss = self._throughput = self._precision = ""
        self._step_began = self._printed = time.monotonic()
        self._step_seconds = 0.0

    def __enter__(self) -> Self:
        self._step_began = time.monotonic()
        self._bar.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.__exit__(kind, error, trace)

    def step(self, step: int, images: int) -> None:
        """Show that a step is done, and the throughput.

        Args:
            step: Number of finished steps.
            images: Images in a step.
        """
        now = time.monotonic()
        # The mean of the last twenty steps or so; the first one, which warms up, is soon forgotten.
        weight = 0.05 if self._step_seconds else 1.0
        self._step_seconds += weight * (now - self._step_began - self._step_seconds)
        throughput = images / max(self._step_seconds, 1e-9)
        self._throughput = f"{throughput:,.{0 if throughput >= 10 else 1}f} images/s"
        self._step_began = now
        self._bar.update(self._task, completed=step, metrics=self._metrics(), visible=True)
        if self._line_is_due():
            left = (self._steps - step) * self._step_seconds
            self.print(f"step {step:,}/{self._steps:,}  {self._metrics()}  {format_seconds(left)} left")

    def show_loss(self, loss: float) -> None:
        """Show the loss of a logged step."""
        self._loss = f"loss {loss:.4f}"

    @contextmanager
    def evaluating(self, images: int, phase: str = "evaluating") -> Iterator[Callable[[int], None]]:
        """Show a bar of embedded images within this context; yields what advances it by a number of them."""
        task = self._bar.add_task(phase, total=images, unit="images", metrics="")
        done, began = 0, time.monotonic()

        def advance(count: int) -> None:
            nonlocal done
            self._bar.advance(task, count)
            done += count
            if self._line_is_due():
                left = (images - done) * (time.monotonic() - began) / max(done, 1)
                self.print(f"{phase}: {done:,}/{images:,} images  {format_seconds(left)} left")

        try:
            yield advance
        finally:
            self._bar.remove_task(task)
            self._step_began = self._printed = time.monotonic()  # an evaluation is no part of a step

    def show_evaluation(self, epoch: int, metrics: dict[str, float]) -> None:
        """Print the metrics of an evaluation."""
        self._precision = f"P@1 {metrics['P@1']:.1f}"
        if not self._bar.disable:
            when = f"epoch {epoch:>3}" if epoch else "untrained"
            values = [f"{name} {metrics[name]:5.1f}" for name in SHOWN if name in metrics]
            self._bar.console.print(f"{when:>9}  " + "  ".join(values))

    def print(self, text: str) -> None:
        """Print a line above the bar."""
        if not self._bar.disable:
            self._bar.console.print(escape(text), highlight=False, markup=False, soft_wrap=True)

    def _line_is_due(self) -> bool:
        """Return whether to print a line in place of the bar."""
        now = time.monotonic()
        due = not self._bar.console.is_terminal and now - self._printed > LINE_EVERY
        self._printed = now if due else self._printed
        return due

    def _metrics(self) -> str:
        return "  ".join(part for part in (self._loss, self._precision, self._throughput) if part)


def format_seconds(seconds: float) -> str:
    """Round a duration to what a person wants to know.

    >>> [format_seconds(seconds) for seconds in (3, 75, 600, 9000)]
    ['3 s', '1.2 min', '10 min', '2.5 h']
    """
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= size * 0.995:
            amount = seconds / size
            return f"{amount:.0f} {unit}" if amount >= 9.95 else f"{amount:.2g} {unit}"
    return f"{seconds:.0f} s"
