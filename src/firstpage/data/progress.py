"""The progress bar of work that is counted in images."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def progress_bar(label: str, total: int, show: bool) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on standard error, and yield a function that advances it by a number of images.

    >>> with progress_bar("decoding", 2, show=False) as advance:
    ...     advance(2)
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not show or not total) as progress:
        task = progress.add_task(label, total=total)
        yield lambda count: progress.update(task, advance=count)
