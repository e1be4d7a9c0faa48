"""Many processes, one run: what they tell one another, and when.

Every rank has the whole model and embeds its share of each global batch. The embeddings are gathered, and
every rank computes the loss of the whole batch, so losses that look at all of it (active pairs, histograms,
clusterings) are exactly what one process would compute. Each rank takes the gradient of its own embeddings
back through its network; these gradients add up to that of the batch. The loss is computed on every rank
because that is cheap: N² numbers, beside N images through a network.

`DistributedDataParallel` would add the gradients while the backward pass still runs. It would also do so for
every chunk of a cached step, and reach only what is called through its `forward`. One sum after the step is
a millisecond for a ResNet-50 within a machine.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from firstpage.data.splits import QueryGallery
from firstpage.errors import UserError
from firstpage.evaluation import evaluate
from firstpage.models.embedder import Embedder, Pixels

__all__ = ["Ranks", "started", "sync_batch_norm"]

# A step waits this long for the others: if one of them is gone, and nobody else ends the job, it ends then.
STEP = timedelta(seconds=45)
# Work that one rank does for all (building a store) takes what it takes. A host group notices a closed
# connection at once, so a long wait hides no death.
HOST = timedelta(days=1)
GRACE = 3.0  # seconds by which the others of a rank that died let it speak first
BUCKET = 2**25  # bytes of gradient summed in one go

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """This process among all. `Ranks()` is alone: every method then does nothing, or returns what it got.

    Args:
        rank: which one it is.
        world: how many there are.
        host: the group through which the hosts talk.

    >>> ranks = Ranks()
    >>> ranks.first, ranks.share(10), ranks.gather(torch.ones(2, 1), 2).shape
    (True, slice(0, 10, None), torch.Size([2, 1]))
    """

    rank: int = 0
    world: int = 1
    host: Any = None

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes and prints.

        >>> Ranks(rank=1, world=2).first
        False
        """
        return self.rank == 0

    def share(self, rows: int) -> slice:
        """The places of a global batch that are this rank's: its slice, as `GroupSampler` cuts it.

        >>> [Ranks(rank, 3).share(10) for rank in range(3)]
        [slice(0, 3, None), slice(3, 6, None), slice(6, 10, None)]
        """
        return slice(rows * self.rank // self.world, rows * (self.rank + 1) // self.world)

    def gather(self, mine: Tensor, rows: int) -> Tensor:
        """[rows, D]: the rows of all ranks in the order of the global batch.

        Gradient flows to this rank's own rows: every rank computes the whole loss, and asks for its part of
        the gradient. Nothing is sent on the way back.

        Args:
            mine: [share, D] this rank's rows.
            rows: of the global batch; shares may be of unequal length, or empty.

        >>> Ranks().gather(torch.eye(3), 3).shape
        torch.Size([3, 3])
        """
        sizes = [len(range(*Ranks(rank, self.world).share(rows).indices(rows))) for rank in range(self.world)]
        if len(mine) != sizes[self.rank]:
            raise UserError(
                f"gather(rows={rows}): rank {self.rank} of {self.world} has {len(mine)} rows, "
                f"not {sizes[self.rank]}: take those of share({rows})"
            )
        if self.world == 1:
            return mine
        padded = mine.new_zeros(max(sizes), *mine.shape[1:])
        padded[: len(mine)] = mine.detach()
        blocks = mine.new_empty(self.world, *padded.shape)
        with _together():
            dist.all_gather(list(blocks), padded)
        parts = [block[:size] for block, size in zip(blocks, sizes, strict=True)]
        parts[self.rank] = mine
        return torch.cat(parts)

    def add_gradients(self, model: Iterable[nn.Parameter], loss: Iterable[nn.Parameter]) -> None:
        """Make the gradients those of the global batch, equal to the bit on all ranks.

        The network's are added: each rank has the part of its own images. The loss's (β, proxies) are
        averaged: each rank has all of them already, up to the order of its sums.

        Args:
            model: parameters of the network.
            loss: parameters of the losses.

        >>> Ranks().add_gradients(nn.Linear(2, 2).parameters(), [])
        """
        if self.world == 1:
            return
        gradients = [parameter.grad for parameter in model if parameter.grad is not None]
        for parameter in loss:
            if parameter.grad is not None:
                gradients.append(parameter.grad.div_(self.world))
        with _together():
            sums = []
            for bucket in _buckets(gradients):
                flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
                sums.append((bucket, flat, dist.all_reduce(flat, async_op=True)))
            for bucket, flat, done in sums:
                done.wait()
                parts = flat.split_with_sizes([gradient.numel() for gradient in bucket])
                for gradient, part in zip(bucket, parts, strict=True):
                    gradient.copy_(part.view_as(gradient))

    def agree(self, tensors: Iterable[Tensor]) -> None:
        """Give all ranks the values of the first: weights at the start, running statistics at an evaluation.

        >>> Ranks().agree(nn.BatchNorm1d(2).buffers())
        """
        if self.world > 1:
            with _together():
                for tensor in tensors:
                    dist.broadcast(tensor.detach(), src=0)

    def told(self, value: T) -> T:
        """The first rank's `value`, on all: figures by which all must decide alike.

        >>> Ranks().told({"P@1": 62.4})
        {'P@1': 62.4}
        """
        if self.world == 1:
            return value
        box = [value]
        with _together():
            dist.broadcast_object_list(box, src=0, group=self.host, device=torch.device("cpu"))
        return box[0]

    def wait(self) -> None:
        """Meet the others, however long they take: before the first step, and after work of one for all.

        >>> Ranks().wait()
        """
        if self.world > 1:
            with _together():
                dist.barrier(self.host)

    def embed(self, model: Embedder, pixels: Pixels, rows: np.ndarray, half: bool | None = None) -> Tensor:
        """[rows, dim] on every rank: the unit vectors of stored images, each rank having embedded its share.

        Args:
            model: the embedder, equal on all ranks.
            pixels: the images.
            rows: which of them, and in which order.
            half: see `Embedder.embed`.

        >>> from PIL import Image
        >>> model = Embedder.create(backbone="small", dim=4, stored=48)
        >>> Ranks().embed(model, [Image.new("RGB", (9, 9))], np.arange(1)).shape
        torch.Size([1, 4])
        """
        mine = model.embed(pixels, rows=rows[self.share(len(rows))], progress=False, half=half)
        return self.gather(mine.to(model.device), len(rows))

    def evaluate(
        self,
        model: Embedder,
        pixels: Pixels,
        labels: np.ndarray,
        test: QueryGallery,
        half: bool | None = None,
    ) -> dict[str, float]:
        """Return the metrics of a retrieval test by name; each rank embeds and searches its share.

        Args:
            model: the embedder, equal on all ranks.
            pixels: the images of the catalog.
            labels: [N] their classes.
            test: the rows that are queries, and those of the gallery.
            half: see `Embedder.embed`.

        >>> from PIL import Image
        >>> model = Embedder.create(backbone="small", dim=4, stored=48)
        >>> images = [Image.new("RGB", (9, 9), color) for color in ("red", "red", "blue")]
        >>> Ranks().evaluate(model, images, np.array([0, 0, 1]), QueryGallery(np.arange(3)))["P@1"]
        100.0
        """
        sides = []
        for rows in (test.queries, test.gallery):
            if rows is not None:
                vectors = self.embed(model, pixels, rows, half)
                sides += [vectors, torch.from_numpy(labels[rows]).to(model.device)]
        return self.told(evaluate(*sides, shared=self.world > 1).metrics())


@contextmanager
def started(device: torch.device | None = None) -> Iterator[Ranks]:
    """The ranks of a job that `torchrun` started; without it, a process that is alone.

    On GPUs each process takes the one of its local rank and makes it the current device. An error on a rank
    is printed with the rank's number and handed to torchrun, which ends the others; if torchrun itself is
    killed, all end. The ranks stay connected until the process ends, so one job may train many models.

    Args:
        device: where the ranks compute; GPUs where there are any if left out.

    Raises:
        UserError: there are fewer GPUs than processes.

    >>> with started() as ranks:
    ...     ranks.world
    1
    """
    world = int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1
    if world == 1:
        yield Ranks()
        return
    on_gpu = torch.cuda.is_available() if device is None else device.type == "cuda"
    with _own_error(int(os.environ["RANK"]), world):
        yield _joined(on_gpu)


@cache
def _joined(on_gpu: bool) -> Ranks:
    if on_gpu:
        local, there = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if local >= there:
            raise UserError(
                f"LOCAL_RANK={local}: this machine has {there} GPUs: "
                f"torchrun --nproc_per_node {there}, or device='cpu'"
            )
        torch.cuda.set_device(local)
    if not dist.is_initialized():
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            timeout=STEP,
            device_id=torch.device("cuda", torch.cuda.current_device()) if on_gpu else None,
        )
        atexit.register(dist.destroy_process_group)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    return Ranks(dist.get_rank(), dist.get_world_size(), dist.new_group(backend="gloo", timeout=HOST))


def _end_with(parent: int) -> None:
    """End this process when the one that started it is gone: nobody would end it when another rank dies."""
    while os.getppid() == parent:
        time.sleep(0.5)
    print("torchrun is gone: ending", file=sys.stderr, flush=True)
    os._exit(1)


def sync_batch_norm(model: nn.Module) -> None:
    """Let batch norms that learn take the statistics of the global batch; frozen ones stay as they are.

    Call it before the optimizer is made and before `torch.compile`. Exact only where every rank has images.

    Raises:
        UserError: the model is not on a GPU, where torch has no such layer.

    >>> sync_batch_norm(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    Traceback (most recent call last):
    firstpage.errors.UserError: train.sync_batch_norm=true: torch has it on GPUs only, the model is ...
    """
    kind = next(model.parameters()).device.type
    if kind != "cuda":
        raise UserError(
            f"train.sync_batch_norm=true: torch has it on GPUs only, the model is on {kind}: leave it out"
        )
    model.train()  # which a frozen layer does not follow
    for module in list(model.modules()):
        for name, layer in module.named_children():
            if isinstance(layer, _BatchNorm) and layer.training:
                shared = nn.SyncBatchNorm.convert_sync_batchnorm(layer)  # type: ignore[no-untyped-call]
                setattr(module, name, shared)


def _buckets(gradients: list[Tensor]) -> Iterator[list[Tensor]]:
    """The gradients in order, cut where the kind of number changes or a bucket is full."""
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
def _together() -> Iterator[None]:
    """What all ranks do at once. If it fails, another one failed first, and its error is the one to read."""
    try:
        yield
    except RuntimeError as error:
        time.sleep(GRACE)  # torchrun ends this process meanwhile, without a word of its own
        reason = str(error).split("\n")[0]
        raise RuntimeError(f"another rank is gone: its own error says why ({reason})") from error


@contextmanager
def _own_error(rank: int, world: int) -> Iterator[None]:
    """Print a rank's error under its own number, and leave it for torchrun's summary."""
    from torch.distributed.elastic.multiprocessing.errors import get_error_handler

    handler = get_error_handler()
    handler.initialize()
    try:
        yield
    except Exception as error:
        atexit.unregister(dist.destroy_process_group)  # with a rank gone, it would wait
        print(f"rank {rank} of {world}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        handler.record_exception(error)
        raise
