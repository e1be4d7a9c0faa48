"""What the routes share: the indexes, the counts, and threads that do the work."""

import os
from collections.abc import Callable, Sequence
from typing import TypeVar

import anyio
import anyio.to_thread
from PIL import Image

from firstpage.errors import UserError
from firstpage.serve.guard import Refusal
from firstpage.serve.metrics import Metrics
from firstpage.serve.served_index import ServedIndex

Value = TypeVar("Value")
MAX_WAITING = 64  # requests that wait for a thread


class Site:
    """The indexes of a server, and the threads that search them.

    Args:
        folders: Of one index, or of two to compare.
        threads: That search at the same time. Defaults to the number of cores.

    Attributes:
        indexes: The indexes.
        metrics: Counts requests.

    Raises:
        UserError: There are none, or more than two.

    >>> Site([])
    Traceback (most recent call last):
    firstpage.errors.UserError: serve: give one index, or two to compare
    """

    def __init__(self, folders: Sequence[str | os.PathLike[str]], threads: int | None = None) -> None:
        if not 1 <= len(folders) <= 2:
            raise UserError("serve: give one index, or two to compare")
        self.indexes = [ServedIndex(folder) for folder in folders]
        if len({served.name for served in self.indexes}) < len(self.indexes):
            for served in self.indexes:  # runs/a/index and runs/b/index
                served.name = "/".join(served.folder.resolve().parts[-2:])
        # Now, so that a wrong model is told at once, and the first search is quick.
        for served in self.indexes:
            served.current().search([Image.new("RGB", (64, 64))], k=1)
            served.root()
        self.metrics = Metrics()
        self.waiting = 0
        self._threads = threads or max(2, os.cpu_count() or 2)
        self._limiter: anyio.CapacityLimiter | None = None

    def index(self, number: int) -> ServedIndex:
        """Return an index.

        Raises:
            Refusal: There is none of this number.
        """
        if not 0 <= number < len(self.indexes):
            raise Refusal(404, f"index {number}: there are {len(self.indexes)}, counted from 0")
        return self.indexes[number]

    def check_busy(self) -> None:
        """Refuse more work while much is waiting."""
        if self.waiting >= MAX_WAITING:
            raise Refusal(503, "too many requests at once; try again in a second", {"retry-after": "1"})

    async def work(self, function: Callable[[], Value]) -> Value:
        """Run a function in one of the threads, unless too many others wait for them."""
        self.check_busy()
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(self._threads)
        self.waiting += 1
        try:
            return await anyio.to_thread.run_sync(function, limiter=self._limiter)
        finally:
            self.waiting -= 1

    def gauges(self) -> dict[str, float]:
        """Return the values that go up and down."""
        sizes: dict[str, float] = {}
        for number, served in enumerate(self.indexes):
            sizes[f'firstpage_index_images{{index="{number}"}}'] = len(served.current())
        return sizes | {"firstpage_waiting_requests": self.waiting}
