"""Joining the job that `torchrun` started, and leaving it."""

import atexit
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from firstpage._text import escape
from firstpage.errors import UserError
from firstpage.training.ranks import Ranks

# A step waits this long for the others: if one of them is gone, and nobody else ends the job, it ends then.
STEP = timedelta(seconds=45)
# Work that one rank does for all (building a store) takes what it takes. A host group notices a closed
# connection at once, so a long wait hides no death.
HOST = timedelta(days=1)


@contextmanager
def join_ranks(device: torch.device | None = None) -> Iterator[Ranks]:
    """Join the ranks of a job that `torchrun` started; without torchrun, yield a single process.

    On GPUs each process takes the one of its local rank and makes it the current device. An error on a rank
    is printed with the rank's number and passed to torchrun, which ends the others; if torchrun itself is
    killed, all end. The ranks stay connected until the process ends, so one job may train many models.

    Args:
        device: Where the ranks compute. Defaults to GPUs if available.

    Raises:
        UserError: There are fewer GPUs than processes.

    >>> with join_ranks() as ranks:
    ...     ranks.world_size
    1
    """
    world = int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1
    if world == 1:
        yield Ranks()
        return
    on_gpu = torch.cuda.is_available() if device is None else device.type == "cuda"
    with _report_error(int(os.environ["RANK"]), world):
        yield _join(on_gpu)


@cache
def _join(on_gpu: bool) -> Ranks:
    if on_gpu:
        local, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if local >= count:
            raise UserError(
                f"LOCAL_RANK={local}: this machine has {count} GPUs: "
                f"use torchrun --nproc_per_node {count}, or device='cpu'"
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
        threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    return Ranks(dist.get_rank(), dist.get_world_size(), dist.new_group(backend="gloo", timeout=HOST))


def _end_with_parent(parent: int) -> None:
    """End this process when its parent is gone: nobody else would when another rank dies."""
    while os.getppid() == parent:
        time.sleep(0.5)
    print("torchrun is gone: ending this rank", file=sys.stderr, flush=True)
    os._exit(1)


def sync_batch_norm(model: nn.Module) -> None:
    """Make trained batch norms use the statistics of the global batch; frozen ones stay as they are.

    Call it before the optimizer is created and before `torch.compile`. Exact only if every rank has images.

    Raises:
        UserError: The model is not on a GPU; torch has no such layer elsewhere.

    >>> sync_batch_norm(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    Traceback (most recent call last):
    firstpage.errors.UserError: train.sync_batch_norm=true: torch supports it on GPUs ...
    """
    kind = next(model.parameters()).device.type
    if kind != "cuda":
        raise UserError(
            f"train.sync_batch_norm=true: torch supports it on GPUs only, the model is on {kind}: remove it"
        )
    model.train()  # a frozen layer stays in evaluation mode
    for module in list(model.modules()):
        for name, layer in module.named_children():
            if isinstance(layer, _BatchNorm) and layer.training:
                shared = nn.SyncBatchNorm.convert_sync_batchnorm(layer)  # type: ignore[no-untyped-call]
                setattr(module, name, shared)


@contextmanager
def _report_error(rank: int, world: int) -> Iterator[None]:
    """Print an error with the number of its rank, and record it for torchrun's summary."""
    from torch.distributed.elastic.multiprocessing.errors import get_error_handler

    handler = get_error_handler()
    handler.initialize()
    try:
        yield
    except Exception as error:
        atexit.unregister(dist.destroy_process_group)  # with a rank gone, it would wait
        text = escape(f"rank {rank} of {world}: {type(error).__name__}: {error}")
        print(text, file=sys.stderr, flush=True)
        handler.record_exception(error)
        raise
