"""Worker processes for decoding: lightweight, safe to start from any script, and never orphaned.

`concurrent.futures.ProcessPoolExecutor` will not do: its workers run the caller's script again (so that every
script needs a `__main__` guard), import torch (two seconds and 200 MB each) and outlive a killed parent.
"""

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any, TypeVar, cast

from firstpage.data.decode import NO_MEMORY
from firstpage.data.worker import SECONDS
from firstpage.errors import UserError

T = TypeVar("T")

KILLED_BY = {  # what a file is told to have done if a worker ended this way while reading it
    signal.SIGKILL: NO_MEMORY,  # so the system ends a process when memory runs out
    signal.SIGPROF: f"takes more than {SECONDS} s to decode",
}

# Registers the parent packages without running their __init__: a worker needs no torch.
BOOT = """
import sys, types
package, data, current, *sys.path = sys.argv[1:]
for name, folder in (("firstpage", package), ("firstpage.data", data)):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [folder]
from firstpage.data.worker import serve
serve(int(current))
"""


class Workers(AbstractContextManager["Workers"]):
    """A pool of worker processes, each a fresh interpreter that runs one function call at a time.

    Functions and arguments must be picklable, and functions defined in a module, not in a script.

    A call whose worker is killed runs again in another one: the process may have been killed by chance. The
    file that `open_regular` was reading when a worker died the second time is then refused, so that only this
    file is unreadable: it makes its decoder crash, or takes too much memory or time. If no file is to blame,
    the call raises an error instead of waiting forever.

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
        self._lock = threading.Lock()
        self._closed = False
        self._processes = {_Process() for _ in range(self.count)}
        self._idle: SimpleQueue[_Process] = SimpleQueue()
        for process in self._processes:
            self._idle.put(process)
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
        with self._lock:
            self._closed = True
        for process in self._processes:
            process.kill()
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
        for process in self._processes:
            process.stop()
        self._processes.clear()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, function: Callable[..., T], arguments: tuple[Any, ...]) -> T:
        refused: dict[str, str] = {}
        suspects: set[str] = set()
        while True:
            process = self._idle.get()
            try:
                done, value = process.ask((function, arguments, refused))
                break
            except (EOFError, BrokenPipeError, pickle.UnpicklingError) as error:
                code, file = process.wait(), process.current_file()
                process = self._replace(process)
                cause = signal.Signals(-code).name if code < 0 else f"exit status {code}"
                if code >= 0:
                    message = f"a decoding worker died ({cause}): its own message is above"
                    raise RuntimeError(message) from error
                if file in suspects and (not file or file in refused):
                    message = (
                        f"a decoding worker died (killed by {cause}): if memory ran out, use fewer workers"
                    )
                    raise UserError(message) from error
                if file in suspects:
                    refused[file] = KILLED_BY.get(signal.Signals(-code), f"crashes its decoder ({cause})")
                suspects.add(file)
            finally:
                self._idle.put(process)
        if not done:
            raise value
        return cast("T", value)

    def _replace(self, process: "_Process") -> "_Process":
        with self._lock:
            if self._closed:
                raise RuntimeError("the workers were stopped")
            self._processes.remove(process)
            self._processes.add(new := _Process())
        process.stop()
        return new


def usable_cores() -> int:
    """Return the number of cores this process may use; containers and `taskset` can limit it.

    >>> usable_cores() >= 1
    True
    """
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


class _Process(subprocess.Popen[bytes]):
    """A worker process."""

    stdin: IO[bytes]
    stdout: IO[bytes]

    def __init__(self) -> None:
        # The worker writes the path of the file that it is reading to this file.
        self._current = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `stop`
        data, current = Path(__file__).parent, self._current.fileno()
        super().__init__(
            [sys.executable, "-c", BOOT, str(data.parent), str(data), str(current), *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[current],
            process_group=0,  # Ctrl-C in the terminal reaches only the parent, which then stops its workers
        )

    def ask(self, call: object) -> tuple[bool, Any]:
        """Send a call and wait for its answer."""
        pickle.dump(call, self.stdin)
        self.stdin.flush()
        done, value = pickle.load(self.stdout)
        return done, value

    def current_file(self) -> str:
        """Return the file that the process was reading when it ended; "" if none."""
        self._current.seek(0)
        return os.fsdecode(self._current.read().partition(b"\0")[0])

    def stop(self) -> None:
        """Kill the process and close its files."""
        self.kill()
        self.communicate()
        self._current.close()
