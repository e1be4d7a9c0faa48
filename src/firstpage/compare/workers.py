"""Who trains the cells: this process, a process for each GPU, or an actor for each GPU of a Ray cluster.

This process hands out the cells, one at a time to each worker. A worker that is killed costs the cell it was
at, which another one resumes from its checkpoint. If this process is killed, its workers write a checkpoint
and end.
"""

import multiprocessing
import os
import signal
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection, wait
from typing import Any, Self

import torch

from firstpage.compare.cell_trainer import CellTrainer
from firstpage.compare.cells import Cell
from firstpage.data.catalog import Catalog
from firstpage.errors import UserError, one_line
from firstpage.training.stopping import Stopped, StopSignals

RETRIES = 2  # times that a cell is handed out again if its worker dies
START = "spawn"  # a process that was forked cannot use a GPU
Measured = dict[str, Any]


class Crew(ABC):
    """Trains cells, as many at a time as there are workers.

    Attributes:
        running: The names of the cells that are being trained, and when each was begun.
    """

    def __init__(self) -> None:
        self.running: dict[str, float] = {}

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(self, *_: object) -> None:
        """Stop the workers."""

    @abstractmethod
    def decode(self, cells: Sequence[Cell], end: float | None) -> None:
        """Decode the images once, and not in every worker; until the time is over."""

    @abstractmethod
    def train(self, cells: Sequence[Cell], end: float | None) -> Iterator[tuple[Cell, Measured | None]]:
        """Yield what each cell has measured, or why it has failed; None if the time is over (`end`)."""


class OneProcess(Crew):
    """Trains cells in this process.

    Args:
        catalog: The data.
        folder: Of the results.
        options: Of a `CellTrainer`.

    >>> import numpy as np
    >>> from pathlib import Path
    >>> catalog = Catalog("x", Path(), ["a.jpg"], np.zeros(1, int), ["a"], {})
    >>> with OneProcess(catalog, "results", device="cpu") as crew:
    ...     list(crew.train([], None))
    []
    """

    def __init__(self, catalog: Catalog, folder: str | os.PathLike[str], **options: Any) -> None:  # noqa: ANN401
        super().__init__()
        self._trainer = CellTrainer(catalog, folder, **options)

    def __exit__(self, *_: object) -> None:
        self._trainer.close()

    def decode(self, cells: Sequence[Cell], end: float | None) -> None:
        """See `Crew`."""
        self._trainer.decode(cells, None if end is None else end - time.monotonic())

    def train(self, cells: Sequence[Cell], end: float | None) -> Iterator[tuple[Cell, Measured | None]]:
        """See `Crew`."""
        for cell in cells:
            self.running = {cell.name: time.monotonic()}
            measured = self._trainer.train(cell, None if end is None else end - time.monotonic())
            self.running = {}
            yield cell, measured
            if measured is None:
                return


class WorkerDiedError(Exception):
    """A worker has ended in the middle of a cell.

    >>> str(WorkerDiedError("exit code -9"))
    'exit code -9'
    """


class Workers(Crew):
    """Workers that are handed cells: what processes and actors share."""

    def __init__(self, count: int, catalog: Catalog, folder: str | os.PathLike[str], options: Any) -> None:  # noqa: ANN401
        super().__init__()
        self._trainer = CellTrainer(catalog, folder, **options | {"device": "cpu"})  # decodes; trains nothing
        self._count = count
        self._idle: list[Any] = []
        self._busy: dict[Any, tuple[Any, Cell]] = {}  # by what is waited for

    @abstractmethod
    def _start(self, numbers: Sequence[int]) -> list[Any]:
        """Start workers with these numbers."""

    @abstractmethod
    def _send(self, worker: Any, cell: Cell, seconds: float | None) -> Any:  # noqa: ANN401
        """Hand a cell to a worker, and return what is to be waited for."""

    @abstractmethod
    def _wait(self, pending: list[Any]) -> Any:  # noqa: ANN401
        """Return the first of what is waited for that is there."""

    @abstractmethod
    def _receive(self, ready: Any, worker: Any) -> Measured | None:  # noqa: ANN401
        """Return what a worker has measured; raise `WorkerDiedError` if it has ended."""

    def decode(self, cells: Sequence[Cell], end: float | None) -> None:
        """See `Crew`."""
        self._trainer.decode(cells, None if end is None else end - time.monotonic())

    def train(self, cells: Sequence[Cell], end: float | None) -> Iterator[tuple[Cell, Measured | None]]:
        """See `Crew`."""
        waiting, deaths = deque(cells), Counter[str]()
        if waiting and (end is None or time.monotonic() < end):
            self._idle += self._start(range(len(self._idle), min(self._count, len(waiting))))
        while waiting or self._busy:
            while waiting and (self._idle or not self._busy):
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    yield waiting.popleft(), None
                    waiting.clear()
                    break
                cell, worker = waiting.popleft(), self._idle.pop(0)
                self._busy[self._send(worker, cell, left)] = worker, cell
                self.running[cell.name] = time.monotonic()
            if not self._busy:
                return
            ready = self._wait(list(self._busy))
            worker, cell = self._busy.pop(ready)
            self.running.pop(cell.name, None)
            try:
                measured = self._receive(ready, worker)
            except WorkerDiedError as error:
                self._idle += self._start([self._remove(worker)])
                deaths[cell.name] += 1
                if deaths[cell.name] <= RETRIES:
                    waiting.appendleft(cell)
                    continue
                reason = f"its worker has died {deaths[cell.name]} times ({error})"
                measured = {"metrics": {}, "error": reason, "device": "of a worker"}
                self._trainer.write(cell, measured)
            else:
                self._idle.append(worker)
            if measured is None:  # the time is over; the others end, too
                waiting.clear()
            yield cell, measured

    def _remove(self, worker: Any) -> int:  # noqa: ANN401
        """Forget a worker that has died, and return its number."""
        return 0


class Processes(Workers):
    """Worker processes on this machine, each with a device of its own.

    Args:
        devices: The device of each.
        catalog: The data.
        folder: Of the results.
        options: Of a `CellTrainer`.

    >>> import numpy as np
    >>> from pathlib import Path
    >>> catalog = Catalog("x", Path(), ["a.jpg"], np.zeros(1, int), ["a"], {})
    >>> with Processes(["cuda:0", "cuda:1"], catalog, "results") as crew:
    ...     list(crew.train([], None))
    []
    """

    def __init__(
        self,
        devices: Sequence[str],
        catalog: Catalog,
        folder: str | os.PathLike[str],
        **options: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(len(devices), catalog, folder, options)
        self._devices, self._options = (
            devices,
            options | {"catalog": catalog, "folder": folder, "progress": False},
        )
        self._processes: dict[Connection, tuple[Any, int]] = {}
        self._signals = ExitStack()

    def __enter__(self) -> Self:
        stop = self._signals.enter_context(StopSignals())
        self._signals.enter_context(stop.at_once("stopped: run it again to go on"))
        return self

    def __exit__(self, *_: object) -> None:
        for process, _number in self._processes.values():
            process.terminate()  # a training writes a checkpoint first
        for process, _number in self._processes.values():
            process.join()
        self._signals.close()
        self._trainer.close()

    def _start(self, numbers: Sequence[int]) -> list[Connection]:
        context = multiprocessing.get_context(START)
        threads = max(1, torch.get_num_threads() // self._count)
        started = []
        for number in numbers:
            ours, theirs = context.Pipe()
            options = self._options | {"device": self._devices[number]}
            process = context.Process(target=_work, args=(theirs, options, threads))  # type: ignore[attr-defined]
            process.start()
            theirs.close()
            self._processes[ours] = process, number
            started.append(ours)
        try:
            for ours in started:
                ours.recv()  # it is ready
        except EOFError:
            raise UserError(
                "--workers: a worker does not start: see the error above, or use --workers 1"
            ) from None
        return started

    def _send(self, worker: Connection, cell: Cell, seconds: float | None) -> Connection:
        with suppress(OSError):  # one that has died is found so
            worker.send((cell, seconds))
        return worker

    def _wait(self, pending: list[Any]) -> Any:  # noqa: ANN401
        return wait(pending)[0]

    def _receive(self, ready: Any, worker: Connection) -> Measured | None:  # noqa: ANN401
        try:
            answer = worker.recv()
        except (EOFError, OSError):
            process, _ = self._processes[worker]
            process.join()
            raise WorkerDiedError(f"exit code {process.exitcode}") from None
        if isinstance(answer, str):
            raise UserError(f"a worker has failed ({answer}): finished cells are kept; run it again to go on")
        measured: Measured | None = answer
        return measured

    def _remove(self, worker: Connection) -> int:
        _, number = self._processes.pop(worker)
        worker.close()
        return number


def _work(connection: Connection, options: dict[str, Any], threads: int) -> None:
    """Train what is handed to this process, until there is no more."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a process that was forked has its parent's
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    with CellTrainer(**options) as trainer, suppress(EOFError, OSError, Stopped, KeyboardInterrupt):
        connection.send("ready")
        while True:
            cell, seconds = connection.recv()
            try:
                measured = trainer.train(cell, seconds)
            except Exception as error:
                traceback.print_exc()
                connection.send(one_line(error) or type(error).__name__)
            else:
                connection.send(measured)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)  # a training writes a checkpoint first
