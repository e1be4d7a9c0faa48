"""Ctrl-C and SIGTERM: a run ends after its step, or within an evaluation, with a checkpoint."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Self


class Stopped(KeyboardInterrupt):
    """A run received Ctrl-C or SIGTERM, has written a checkpoint and can be resumed.

    Attributes:
        signal: The number of the signal.

    >>> str(Stopped("after step 3", 15)), Stopped("", 15).signal
    ('after step 3', 15)
    """

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.signal = number


class StopSignals:
    """A context that notes Ctrl-C and SIGTERM, for the training loop to stop at a good moment.

    Within `at_once`, where nothing would be lost, that moment is now. A second signal, a second later or
    more, ends the process anywhere. In threads other than the main one the signals keep their handlers.

    Args:
        enabled: Whether to handle signals at all.
        notify: Called with a line for the user when a signal has to wait.

    >>> with StopSignals() as stop:
    ...     signal.raise_signal(signal.SIGTERM)
    >>> try:
    ...     stop.raise_if_received("stopped after step 3")
    ... except Stopped as error:
    ...     error.signal
    15
    """

    SECOND_SIGNAL = 1.0  # seconds after which a further signal is not the same one, sent on by a parent

    def __init__(self, enabled: bool = True, notify: Callable[[str], None] | None = None) -> None:
        self.enabled = enabled and threading.current_thread() is threading.main_thread()
        self.received = 0  # the number of the signal
        self._notify = notify
        self._at_once: str | None = None  # the message to stop with
        self._time = 0.0
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if self.enabled:
            numbers = (signal.SIGINT, signal.SIGTERM)
            self._handlers = {number: signal.signal(number, self._receive) for number in numbers}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _receive(self, number: int, _: object) -> None:
        if not self.received:
            self.received, self._time = number, time.monotonic()
            if self._at_once is not None:
                self.raise_if_received(self._at_once)
            if self._notify is not None:
                with suppress(RuntimeError):  # it may have come while a line was being printed
                    self._notify("stopping after this step; Ctrl-C again stops at once, without its result")
        elif time.monotonic() - self._time >= self.SECOND_SIGNAL:
            self.__exit__(None, None, None)
            signal.raise_signal(number)

    def raise_if_received(self, message: str) -> None:
        """Raise `Stopped` with that message if a signal was received."""
        if self.received:
            raise Stopped(message, self.received)

    @contextmanager
    def at_once(self, message: str) -> Iterator[None]:
        """Within this context, which must change nothing that is kept, a signal raises `Stopped` at once.

        One that was received before raises it on entry.

        >>> with suppress(Stopped), StopSignals() as stop, stop.at_once("stopped after step 3"):
        ...     signal.raise_signal(signal.SIGINT)
        ...     print("not printed")
        """
        self.raise_if_received(message)
        self._at_once = message
        try:
            yield
        finally:
            self._at_once = None


@contextmanager
def saving_if_stopped(save: Callable[[], None]) -> Iterator[None]:
    """Within this context, `save` is called when `Stopped` is raised.

    >>> with suppress(Stopped), saving_if_stopped(lambda: print("saved")):
    ...     raise Stopped("stopped after step 3", 15)
    saved
    """
    try:
        yield
    except Stopped:
        save()
        raise
