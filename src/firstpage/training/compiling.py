"""The network, compiled for training."""

from collections.abc import Callable

import torch
from torch import Tensor

Network = Callable[[Tensor], tuple[Tensor, ...]]


def compile_network(network: Network, device: torch.device, *, cuda_graphs: bool = True) -> Network:
    """Compile a network and, on a GPU, record it as CUDA graphs.

    Launching hundreds of kernels one by one takes a host about as long as the GPU needs to run them, so a
    slow host would limit the throughput. Recorded at the first calls, they are launched together, forward and
    backward. Each batch size is recorded by itself: all batches of a run should have one size.

    Args:
        network: Maps images to the embeddings of each level.
        device: Where it runs.
        cuda_graphs: Record CUDA graphs. The outputs of a call and the gradients of its backward pass are then
            overwritten by the next call, so this is not for networks that are called several times a step.

    >>> double = compile_network(lambda images: (images * 2,), torch.device("cpu"))
    >>> with torch.compiler.set_stance("force_eager"):  # skip the slow compilation in this example
    ...     double(torch.ones(2))
    (tensor([2., 2.]),)
    """
    if device.type != "cuda" or not cuda_graphs:
        return torch.compile(network)
    # Not with `triton.cudagraph_skip_dynamic_graphs`: torch 2.11 then takes every kernel for a dynamic one
    # (pytorch issue 197139), and records nothing.
    # Never with dynamic shapes: a second run in the process, at another size, would not be recorded either.
    recorded = torch.compile(network, dynamic=False, options={"triton.cudagraphs": True})

    def call(images: Tensor) -> tuple[Tensor, ...]:
        # The outputs of the last call are no longer needed.
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        return recorded(images)

    return call
