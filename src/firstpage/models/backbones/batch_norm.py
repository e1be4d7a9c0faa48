"""Batch norms that do not update: frozen permanently, or while activations are recomputed."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


def freeze_batch_norm(module: nn.Module) -> None:
    """Freeze every batch norm of `module`: running statistics, scale and shift no longer change.

    They stay frozen through `.train()`, copying and pickling. On small data (CUB, Cars) this gains several
    points: the statistics of a batch are a poor estimate, and those of ImageNet are a good one.

    Args:
        module: A network, changed in place.

    >>> import torch
    >>> network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
    >>> freeze_batch_norm(network)
    >>> _ = network.train()(torch.randn(8, 3, 5, 5))
    >>> network[1].running_mean
    tensor([0., 0., 0., 0.])
    >>> [name for name, parameter in network.named_parameters() if parameter.requires_grad]
    ['0.weight', '0.bias']
    """
    for layer in module.modules():
        if isinstance(layer, _BatchNorm):
            layer.eval().requires_grad_(False)
            # `.train()` of a parent module calls this.
            layer.train = partial(_ignore_mode, layer)  # type: ignore[assignment, method-assign]


def _ignore_mode(layer: nn.Module, mode: bool = True) -> nn.Module:
    return layer


@contextmanager
def keep_statistics(module: nn.Module) -> Iterator[None]:
    """Do not update the running statistics of batch norms in this context; the outputs are the same.

    A checkpointed block runs twice for each batch, and would update them twice.

    >>> import torch
    >>> layer = nn.BatchNorm1d(2)
    >>> with keep_statistics(layer):
    ...     _ = layer(torch.randn(8, 2))
    >>> layer.running_mean, layer.num_batches_tracked
    (tensor([0., 0.]), tensor(0))
    """
    layers = [layer for layer in module.modules() if isinstance(layer, _BatchNorm)]
    before = [(layer.momentum, layer.num_batches_tracked) for layer in layers]
    for layer, (_, count) in zip(layers, before, strict=True):
        layer.momentum, layer.num_batches_tracked = 0.0, None if count is None else count.clone()
    try:
        yield
    finally:
        for layer, (momentum, count) in zip(layers, before, strict=True):
            layer.momentum, layer.num_batches_tracked = momentum, count
