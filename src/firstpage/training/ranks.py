"""The processes of a distributed run: what they exchange, and when.

Every rank has the whole model and embeds its share of each global batch. The embeddings are gathered, and
every rank computes the loss of the whole batch, so losses that look at all of it (active pairs, histograms,
clusterings) are exactly what one process would compute. Each rank backpropagates the gradient of its own
embeddings through its network; these gradients add up to that of the batch. The loss is computed on every
rank because that is cheap: N² numbers, beside N images through a network.

`DistributedDataParallel` would add the gradients while the backward pass still runs. It would also do so for
every chunk of a cached step, and only for what is called through its `forward`. One sum after the step takes
a millisecond for a ResNet-50 within a machine.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from firstpage.data.splits import QueryGallery
from firstpage.errors import UserError
from firstpage.evaluation import evaluate
from firstpage.models.embedder import Embedder, Pixels

GRACE = 10.0  # seconds by which the other ranks let one that failed print its error first
BUCKET = 2**25  # bytes of gradient summed in one go
KS = (1, 2, 3, 4, 5, 8, 10, 16, 20, 100, 1000)  # of P@k and R@k: those of all tables of the papers

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """This process among all of a run.

    `Ranks()` is a single process: its methods do nothing, or return what they are given.

    Args:
        rank: The number of this process.
        world_size: The number of processes.
        cpu_group: The process group through which the hosts exchange Python objects.

    >>> ranks = Ranks()
    >>> ranks.is_first, ranks.share(10), ranks.gather(torch.ones(2, 1), 2).shape
    (True, slice(0, 10, None), torch.Size([2, 1]))
    """

    rank: int = 0
    world_size: int = 1
    cpu_group: Any = None

    @property
    def is_first(self) -> bool:
        """Return whether this is the rank that writes and prints.

        >>> Ranks(rank=1, world_size=2).is_first
        False
        """
        return self.rank == 0

    def share(self, rows: int) -> slice:
        """Return this rank's slice of a global batch, as `GroupSampler` cuts it.

        >>> [Ranks(rank, 3).share(10) for rank in range(3)]
        [slice(0, 3, None), slice(3, 6, None), slice(6, 10, None)]
        """
        return slice(rows * self.rank // self.world_size, rows * (self.rank + 1) // self.world_size)

    def gather(self, mine: Tensor, rows: int) -> Tensor:
        """Return the rows of all ranks [rows, D], in the order of the global batch.

        Gradients flow to this rank's own rows only: every rank computes the whole loss, and needs just its
        part of the gradient. Nothing is sent in the backward pass.

        Args:
            mine: [share, D] This rank's rows.
            rows: Rows of the global batch. Shares may be of unequal length, or empty.

        >>> Ranks().gather(torch.eye(3), 3).shape
        torch.Size([3, 3])
        """
        shares = [Ranks(rank, self.world_size).share(rows) for rank in range(self.world_size)]
        sizes = [share.stop - share.start for share in shares]
        if len(mine) != sizes[self.rank]:
            raise UserError(
                f"gather(rows={rows}): rank {self.rank} of {self.world_size} has {len(mine)} rows, "
                f"not {sizes[self.rank]}: take those of share({rows})"
            )
        if self.world_size == 1:
            return mine
        padded = mine.new_zeros(max(sizes), *mine.shape[1:])
        padded[: len(mine)] = mine.detach()
        blocks = mine.new_empty(self.world_size, *padded.shape)
        with _collective():
            dist.all_gather(list(blocks), padded)
        parts = [block[:size] for block, size in zip(blocks, sizes, strict=True)]
        parts[self.rank] = mine
        return torch.cat(parts)

    def all_reduce_gradients(self, model: Iterable[nn.Parameter], loss: Iterable[nn.Parameter]) -> None:
        """Turn the gradients into those of the global batch, bit for bit equal on all ranks.

        Those of the network are added: each rank has the part of its own images. Those of the loss (β,
        proxies) are averaged: each rank has all of them already, up to the order of its sums.

        Args:
            model: Parameters of the network.
            loss: Parameters of the losses.

        >>> Ranks().all_reduce_gradients(nn.Linear(2, 2).parameters(), [])
        """
        if self.world_size == 1:
            return
        gradients = [parameter.grad for parameter in model if parameter.grad is not None]
        for parameter in loss:
            if parameter.grad is not None:
                gradients.append(parameter.grad.div_(self.world_size))
        with _collective():
            sums = []
            for bucket in _buckets(gradients):
                flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
                sums.append((bucket, flat, dist.all_reduce(flat, async_op=True)))
            for bucket, flat, done in sums:
                done.wait()
                parts = flat.split_with_sizes([gradient.numel() for gradient in bucket])
                for gradient, part in zip(bucket, parts, strict=True):
                    gradient.copy_(part.view_as(gradient))

    def broadcast_tensors(self, tensors: Iterable[Tensor]) -> None:
        """Copy the first rank's values to all, in place: weights, or running statistics.

        >>> Ranks().broadcast_tensors(nn.BatchNorm1d(2).buffers())
        """
        if self.world_size > 1:
            with _collective():
                for tensor in tensors:
                    dist.broadcast(tensor.detach(), src=0)

    def broadcast(self, value: T) -> T:
        """Return the first rank's value on all ranks, for decisions that all must take alike.

        >>> Ranks().broadcast({"P@1": 62.4})
        {'P@1': 62.4}
        """
        if self.world_size == 1:
            return value
        box = [value]
        with _collective():
            dist.broadcast_object_list(box, src=0, group=self.cpu_group, device=torch.device("cpu"))
        return box[0]

    def barrier(self) -> None:
        """Wait for all ranks, however long they take.

        >>> Ranks().barrier()
        """
        if self.world_size > 1:
            with _collective():
                dist.barrier(self.cpu_group)

    def embed(
        self,
        model: Embedder,
        pixels: Pixels,
        rows: np.ndarray,
        half: bool | None = None,
        advance: Callable[[int], None] | None = None,
    ) -> Tensor:
        """Return the unit vectors [rows, dim] of stored images on every rank; each embeds its share.

        Args:
            model: The embedder, equal on all ranks.
            pixels: The images.
            rows: Which of them, and in which order.
            half: See `Embedder.embed`.
            advance: Called with the number of images that each batch of this rank has embedded.

        >>> from PIL import Image
        >>> model = Embedder.create(backbone="small", dim=4, stored=48)
        >>> Ranks().embed(model, [Image.new("RGB", (9, 9))], np.arange(1)).shape
        torch.Size([1, 4])
        """
        share = rows[self.share(len(rows))]
        mine = model.embed(pixels, rows=share, progress=advance or False, half=half)
        return self.gather(mine.to(model.device), len(rows))

    def evaluate(
        self,
        model: Embedder,
        pixels: Pixels,
        labels: np.ndarray,
        test: QueryGallery,
        half: bool | None = None,
        advance: Callable[[int], None] | None = None,
    ) -> dict[str, float]:
        """Return the metrics of a retrieval test by name; each rank embeds and searches its share.

        Args:
            model: The embedder, equal on all ranks.
            pixels: The images of the catalog.
            labels: [N] Their classes.
            test: The rows of the queries, and those of the gallery.
            half: See `Embedder.embed`.
            advance: See `embed`.

        >>> from PIL import Image
        >>> model = Embedder.create(backbone="small", dim=4, stored=48)
        >>> images = [Image.new("RGB", (9, 9), color) for color in ("red", "red", "blue")]
        >>> Ranks().evaluate(model, images, np.array([0, 0, 1]), QueryGallery(np.arange(3)))["P@1"]
        100.0
        """
        sides = []
        for rows in (test.queries, test.gallery):
            if rows is not None:
                vectors = self.embed(model, pixels, rows, half, advance)
                sides += [vectors, torch.from_numpy(labels[rows]).to(model.device)]
        return self.broadcast(evaluate(*sides, ks=KS, shared=self.world_size > 1).metrics())


def _buckets(gradients: list[Tensor]) -> Iterator[list[Tensor]]:
    """Yield the gradients in buckets, cut where the dtype changes or a bucket is full."""
    bucket: list[Tensor] = []
    filled = 0
    for gradient in gradients:
        if bucket and (filled >= BUCKET or gradient.dtype != bucket[0].dtype):
            yield bucket
            bucket, filled = [], 0
        bucket.append(gradient)
        filled += gradient.nbytes
    if bucket:
        yield bucket


@contextmanager
def _collective() -> Iterator[None]:
    """Explain the failure of a collective: another rank failed first, and its error is the one to read."""
    try:
        yield
    except RuntimeError as error:
        time.sleep(GRACE)  # torchrun ends this process meanwhile, silently
        reason = str(error).split("\n")[0]
        raise RuntimeError(f"another rank is gone: see its own error ({reason})") from error
