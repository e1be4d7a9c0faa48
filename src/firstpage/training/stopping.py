"""Ctrl-C and SIGTERM: a run ends after its step, with a checkpoint."""

import signal
import threading
import time
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

    A second signal, a second later or more, ends the process at once. In threads other than the main one the
    signals keep their handlers.

    Args:
        enabled: Whether to handle signals at all.

    >>> with StopSignals() as stop:
    ...     signal.raise_signal(signal.SIGTERM)
    >>> try:
    ...     stop.raise_if_received("stopped after step 3")
    ... except Stopped as error:
    ...     error.signal
    15
    """

    SECOND_SIGNAL = 1.0  # seconds after which a further signal is not the same one, sent on by a parent

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled and threading.current_thread() is threading.main_thread()
        self.received = 0  # the number of the signal
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
        elif time.monotonic() - self._time >= self.SECOND_SIGNAL:
            self.__exit__(None, None, None)
            signal.raise_signal(number)

    def raise_if_received(self, message: str) -> None:
        """Raise `Stopped` with that message if a signal was received."""
        if self.received:
            raise Stopped(message, self.received)
