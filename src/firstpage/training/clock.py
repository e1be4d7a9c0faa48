"""The time a run spends in its steps."""

from __future__ import annotations

import time

import torch

__all__ = ["Clock"]


class Clock:
    """Seconds spent in steps, and the pace without the first few, which warm up.

    Args:
        device: whose work is waited for before the time is stopped.

    >>> Clock(torch.device("cpu")).pace()
    0.0
    """

    WARM_UP = 10

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds = self._warm_seconds = 0.0
        self._steps = self._images = 0
        self._since = float("nan")  # until `resume`

    def count(self, images: int) -> None:
        """A step of so many images is done."""
        self._steps += 1
        if self._steps == self.WARM_UP:
            self._wait()
            self._warm_seconds = self.spent()
        if self._steps > self.WARM_UP:
            self._images += images

    def pace(self) -> float:
        """Images a second; 0 while warming up. Until `pause` the device may be some steps behind."""
        spent = self.spent() - self._warm_seconds
        return self._images / spent if self._images and spent > 0 else 0.0

    def pause(self) -> None:
        """What follows is no step."""
        self._wait()
        self.seconds = self.spent()
        self._since = float("nan")

    def resume(self) -> None:
        """Steps follow."""
        self._since = time.perf_counter()

    def spent(self) -> float:
        """Seconds so far."""
        running = time.perf_counter() - self._since
        return self.seconds + (running if running == running else 0.0)

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
