"""The main loop of a worker process. Imports almost nothing: each call brings the modules it needs."""

import os
import pickle
import resource
import signal
import sys

SECONDS = 10  # of processor time for one file
MAX_MEMORY = (
    2**31
)  # of a worker: twice what the largest image takes, in case a decoder takes more than it should

refused: dict[str, str] = {}  # files that must not be decoded, because they killed a worker, and the reasons
_current: int | None = None  # in a worker, the descriptor of the file that holds the path being read


def serve(current: int) -> None:
    """Answer calls from standard input on standard output, until the parent closes its end or dies.

    A call is a pickled `(function, arguments, refused)`. The answer is `(True, result)` or
    `(False, exception)`.

    Args:
        current: Descriptor of a file for the path that is being read, so that the parent knows what killed
            this process.

    >>> from firstpage.data.workers import Workers
    >>> with Workers(1) as workers:
    ...     workers.submit(print, "does no harm").result()
    ...     workers.submit(max, 3, 5).result()
    5
    """
    global _current
    _current = current
    _limit_memory()
    # From now on glibc keeps up to 32 MiB of freed memory: otherwise it returns that of every image to the
    # system, and asks for it again, page by page, for the next one.
    bytearray(2**24)
    calls, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # so that nothing a library prints can get between the answers
    while True:
        try:
            function, arguments, lethal = pickle.load(calls)
        except EOFError:
            return
        refused.clear()
        refused.update(lethal)
        try:
            answer = True, function(*arguments)
        except Exception as error:
            answer = False, error
        try:
            pickle.dump(answer, answers)
            answers.flush()
        except BrokenPipeError:
            return


def begin(path: str) -> None:
    """Note which file is being read; in a worker, SIGPROF kills the process if that takes too long.

    >>> begin("a.jpg")  # does nothing in other processes
    """
    if _current is not None:
        os.pwrite(_current, os.fsencode(path) + b"\0", 0)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)


def end() -> None:
    """Note that the file was read.

    >>> end()
    """
    if _current is not None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        os.pwrite(_current, b"\0", 0)


def _limit_memory() -> None:
    """Make allocations beyond the limit a MemoryError; threads of decoders have 8 MiB of stack each."""
    limit = MAX_MEMORY + 2**24 * (os.cpu_count() or 1)
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (limit if hard < 0 else min(limit, hard), hard))
