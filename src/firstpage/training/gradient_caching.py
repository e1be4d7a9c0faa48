"""Gradient caching: a batch of any size in the memory of a chunk, with the gradient of the whole batch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from firstpage.errors import UserError
from firstpage.models.backbones.batch_norm import keep_statistics
from firstpage.training.seeding import draws

__all__ = ["backward", "places"]

Levels = tuple[Tensor, ...]


def places(rows: int, chunk: int = 0) -> list[slice]:
    """The chunks of `rows` images, at least one.

    A rank without a row embeds no images all the same: its parameters get gradients of 0, like the others'.

    >>> places(5, 2), places(0)
    ([slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)], [slice(0, 0, None)])
    """
    if chunk < 0:
        raise UserError(f"batch.chunk={chunk}: must not be negative; 0 embeds the whole batch at once")
    size = chunk or max(1, rows)
    return [slice(begin, min(rows, begin + size)) for begin in range(0, max(1, rows), size)]


def backward(
    model: nn.Module,
    embed: Callable[[slice], Levels],
    loss: Callable[[Levels], Tensor],
    rows: int,
    chunk: int = 0,
    *,
    key: tuple[int | str, ...] = (),
) -> Tensor:
    """Backpropagate the loss of `rows` images, of which only `chunk` are in the network at a time.

    From: Gao et al., Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup, 2021. Chunk by
    chunk the images are embedded without a graph; the loss over all of them gives the gradient of each
    embedding; then each chunk is embedded again, with a graph, and takes its rows of that gradient back to
    the weights. The chain rule is all there is to it, so the gradients are those of the whole batch, for any
    loss. It costs one more forward pass: about a third more time. With one chunk it is the plain step.

    Both passes of a chunk draw the same numbers (dropout), made from `key` and the chunk's place. Batch norms
    that learn count every image once; but they normalize each chunk by itself, as smaller batches would, so
    only with frozen batch norms (`model.freeze_batch_norm`), or networks without, is the result that of the
    whole batch.

    Args:
        model: the network, for its batch norms and its device.
        embed: the levels [n, D] of the images at some places of the batch. It loads and augments just those,
            and enters autocast itself: the casts that autocast keeps without a graph must not outlive a call.
        loss: the loss of the levels of all images; it is called once.
        rows: images of the batch, on this rank.
        chunk: images at a time; 0 for all at once.
        key: what makes the draws of this step and rank its own: `("dropout", seed, step, first row)`.

    Returns:
        The loss, detached. Gradients have been added to the parameters of `model` and of `loss`.

    >>> from firstpage.losses import TopKPrecision
    >>> images, labels = torch.randn(64, 3), torch.arange(64) // 4
    >>> model, criterion = nn.Linear(3, 8), TopKPrecision(k=3)
    >>> gradients = []
    >>> for chunk in (0, 16):
    ...     model.zero_grad()
    ...     _ = backward(
    ...         model, lambda at: (model(images[at]),), lambda levels: criterion(levels[0], labels), 64, chunk
    ...     )
    ...     gradients.append(model.weight.grad)
    >>> torch.allclose(*gradients, atol=1e-6)
    True
    """
    chunks = places(rows, chunk)
    device = next(model.parameters()).device

    def replayed(place: slice) -> Levels:
        with draws(device, *key, place.start):
            return embed(place)

    if len(chunks) == 1:
        value = loss(replayed(chunks[0]))
        value.backward()  # type: ignore[no-untyped-call]
        return value.detach()

    with torch.no_grad(), keep_statistics(model):
        pieces = [replayed(place) for place in chunks]
    levels = tuple(torch.cat(parts).requires_grad_() for parts in zip(*pieces, strict=True))
    value = loss(levels)
    value.backward()  # type: ignore[no-untyped-call]
    gradients = [level.grad if level.grad is not None else torch.zeros_like(level) for level in levels]
    for place in chunks:
        torch.autograd.backward(replayed(place), [gradient[place] for gradient in gradients])
    return value.detach()
