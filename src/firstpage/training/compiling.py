"""The compiled network, launched as one piece."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["compiled"]

Embed = Callable[[Tensor], tuple[Tensor, ...]]


def compiled(embed: Embed, device: torch.device, *, replay: bool = True) -> Embed:
    """A network compiled for training.

    On a GPU its kernels are recorded at the first calls and then launched together, forward and backward
    (CUDA graphs): launching hundreds of them one by one takes a host about as long as the GPU needs to run
    them, so a slow host would set the pace. Batches of another size than the first are launched one by one.

    Args:
        embed: the network: images to the vectors of each level.
        device: where it runs.
        replay: record. Then what a call returned, and the gradients of its backward pass, are overwritten
            by the next call; so not for networks that are called several times a step.

    >>> double = compiled(lambda images: (images * 2,), torch.device("cpu"))
    >>> with torch.compiler.set_stance("force_eager"):  # or the compiler takes its time
    ...     double(torch.ones(2))
    (tensor([2., 2.]),)
    """
    if device.type != "cuda" or not replay:
        return torch.compile(embed)
    recorded = torch.compile(
        embed, options={"triton.cudagraphs": True, "triton.cudagraph_skip_dynamic_graphs": True}
    )

    def call(images: Tensor) -> tuple[Tensor, ...]:
        # Nobody looks at the last call's vectors any more.
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        return recorded(images)

    return call
