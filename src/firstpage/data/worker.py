"""The main loop of a worker process. Imports almost nothing: each call brings the modules it needs."""

import os
import pickle
import sys


def serve() -> None:
    """Answer calls from standard input on standard output, until the parent closes its end or dies.

    A call is a pickled `(function, arguments)`; the answer is `(True, result)` or `(False, exception)`.

    >>> from firstpage.data.workers import Workers
    >>> with Workers(1) as workers:
    ...     workers.submit(print, "does no harm").result()
    ...     workers.submit(max, 3, 5).result()
    5
    """
    calls, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # so that nothing a library prints can get between the answers
    while True:
        try:
            function, arguments = pickle.load(calls)
        except EOFError:
            return
        try:
            answer = True, function(*arguments)
        except Exception as error:
            answer = False, error
        try:
            pickle.dump(answer, answers)
            answers.flush()
        except BrokenPipeError:
            return
