"""Worker processes for decoding: lightweight, safe to start from any script, and never orphaned.

`concurrent.futures.ProcessPoolExecutor` will not do: its workers run the caller's script again (so that every
script needs a `__main__` guard), import torch (two seconds and 200 MB each) and outlive a killed parent.
"""

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar, cast

from firstpage.errors import UserError

T = TypeVar("T")

# Registers the parent packages without running their __init__: a worker needs no torch.
BOOT = """
import sys, types
package, data, *sys.path = sys.argv[1:]
for name, folder in (("firstpage", package), ("firstpage.data", data)):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [folder]
from firstpage.data.worker import serve
serve()
"""


class Workers(AbstractContextManager["Workers"]):
    """A pool of worker processes, each a fresh interpreter that runs one function call at a time.

    Functions and arguments must be picklable, and functions defined in a module, not in a script. If a worker
    dies, its call raises an error instead of waiting forever.

    Args:
        count: Number of processes. 0 runs calls in this process. Defaults to one per usable core.

    Raises:
        UserError: `count` is negative.

    >>> with Workers(0) as workers:
    ...     workers.submit(max, 3, 5).result(), sorted(workers.map(divmod, [(7, 2), (9, 4)]))
    (5, [(0, (3, 1)), (1, (2, 1))])
    """

    def __init__(self, count: int | None = None) -> None:
        if count is not None and count < 0:
            raise UserError(f"workers={count}: must be at least 0 (0 decodes in this process)")
        self.count = usable_cores() if count is None else count
        self._idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        self._processes = [_start() for _ in range(self.count)]
        for worker in self._processes:
            self._idle.put(worker)
        # One thread waits for each process, so that callers get ordinary futures.
        self._threads = ThreadPoolExecutor(self.count) if self.count else None

    def submit(self, function: Callable[..., T], *arguments: Any) -> "Future[T]":  # noqa: ANN401
        """Schedule one call and return the future of its result."""
        if self._threads is not None:
            return self._threads.submit(self._call, function, arguments)
        future: Future[T] = Future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future

    def map(self, function: Callable[..., T], tasks: Iterable[tuple[Any, ...]]) -> Iterator[tuple[int, T]]:
        """Call the function with each task's arguments; yield `(task index, result)` as calls finish."""
        if self._threads is None:
            yield from ((index, function(*task)) for index, task in enumerate(tasks))
            return
        index_of = {self.submit(function, *task): index for index, task in enumerate(tasks)}
        for future in as_completed(index_of):
            yield index_of.pop(future), future.result()

    def close(self) -> None:
        """Stop the workers, even in the middle of a call."""
        for process in self._processes:
            process.kill()
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
        for process in self._processes:
            process.communicate()
        self._processes = []

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, function: Callable[..., T], arguments: tuple[Any, ...]) -> T:
        process = self._idle.get()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            pickle.dump((function, arguments), process.stdin)
            process.stdin.flush()
            done, value = pickle.load(process.stdout)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError) as error:
            code = process.wait()
            cause = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
            remedy = "if memory ran out, use fewer workers" if code < 0 else "its own message is above"
            raise RuntimeError(f"a decoding worker died ({cause}): {remedy}") from error
        finally:
            self._idle.put(process)
        if not done:
            raise value
        return cast("T", value)


def usable_cores() -> int:
    """Return the number of cores this process may use; containers and `taskset` can limit it.

    >>> usable_cores() >= 1
    True
    """
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _start() -> "subprocess.Popen[bytes]":
    data = Path(__file__).parent
    return subprocess.Popen(
        [sys.executable, "-c", BOOT, str(data.parent), str(data), *sys.path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        process_group=0,  # Ctrl-C in the terminal reaches only the parent, which then stops its workers
    )
