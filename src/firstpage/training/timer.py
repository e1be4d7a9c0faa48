"""The time a run spends in its training steps."""

import time
from collections.abc import Mapping

import torch


class StepTimer:
    """Seconds spent in training steps, and images per second without the first steps, which warm up.

    Args:
        device: The device to wait for before the time is read.

    >>> StepTimer(torch.device("cpu")).images_per_second()
    0.0
    """

    WARM_UP = 10

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds = self._warm_up_seconds = 0.0
        self._steps = self._images = 0
        self._started: float | None = None

    def count(self, images: int) -> None:
        """Count a finished step with that many images."""
        self._steps += 1
        if self._steps == self.WARM_UP:
            self._synchronize()
            self._warm_up_seconds = self.elapsed()
        if self._steps > self.WARM_UP:
            self._images += images

    def images_per_second(self) -> float:
        """Return the throughput; 0 while warming up. Until `pause` the device may be some steps behind."""
        seconds = self.elapsed() - self._warm_up_seconds
        return self._images / seconds if self._images and seconds > 0 else 0.0

    def pause(self) -> None:
        """Stop the timer: what follows is not a training step."""
        self._synchronize()
        self.seconds, self._started = self.elapsed(), None

    def resume(self) -> None:
        """Start the timer again."""
        self._started = time.perf_counter()

    def elapsed(self) -> float:
        """Return the seconds spent so far."""
        return self.seconds + (0.0 if self._started is None else time.perf_counter() - self._started)

    def state_dict(self) -> dict[str, float]:
        """Return the seconds spent, for a checkpoint."""
        return {"seconds": self.elapsed()}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Continue from the seconds of a checkpoint."""
        self.seconds = state["seconds"]

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
