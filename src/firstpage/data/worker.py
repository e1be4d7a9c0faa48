"""The body of a worker process. It imports next to nothing: what a call needs comes with the call."""

import os
import pickle
import sys


def serve() -> None:
    """Answer the calls from standard input on standard output, until the parent closes it or is gone.

    A call is a pickled (function, arguments); an answer is (True, result) or (False, exception).

    >>> from firstpage.data.workers import Workers
    >>> with Workers(1) as workers:
    ...     workers.submit(print, "does no harm").result()
    ...     workers.submit(max, 3, 5).result()
    5
    """
    calls, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not get between the answers
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
