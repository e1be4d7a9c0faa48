"""Gradient caching: a batch of any size in the memory of a chunk, with the gradient of the whole batch."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from firstpage.errors import UserError
from firstpage.models.backbones.batch_norm import keep_statistics
from firstpage.training.seeding import seeded

Levels = tuple[Tensor, ...]  # the embeddings [n, D] of each head


def chunk_slices(rows: slice, chunk: int = 0) -> list[slice]:
    """Cut a slice of a batch into chunks, at least one.

    A rank without a row embeds an empty batch all the same: its parameters get gradients of 0, like the
    others'.

    >>> chunk_slices(slice(0, 5), 2), chunk_slices(slice(3, 3))
    ([slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)], [slice(3, 3, None)])
    """
    if chunk < 0:
        raise UserError(f"batch.chunk={chunk}: must not be negative; 0 embeds the whole batch at once")
    count = rows.stop - rows.start
    size = chunk or max(1, count)
    starts = range(rows.start, rows.start + max(1, count), size)
    return [slice(start, min(rows.stop, start + size)) for start in starts]


def backward(
    model: nn.Module,
    embed: Callable[[slice], Levels],
    loss: Callable[[Levels], Tensor],
    shares: Sequence[slice],
    chunk: int = 0,
    *,
    key: tuple[int | str, ...] = (),
) -> Tensor:
    """Backpropagate the loss of a batch of which only `chunk` images are in the network at a time.

    From: Gao et al., Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup, 2021. The
    images are embedded chunk by chunk without a graph; the loss over all of them gives the gradient of each
    embedding; then each chunk is embedded again, with a graph, and its rows of that gradient are
    backpropagated to the weights. By the chain rule the gradients are those of the whole batch, for any loss.
    It costs one more forward pass: about a third more time. With one chunk it is the plain step.

    Both passes of a chunk draw the same random numbers (dropout), seeded by `key` and the chunk's position.
    Batch norms in training mode count every image once, but normalize each chunk by itself, as smaller
    batches would. So only with frozen batch norms (`model.freeze_batch_norm`), or networks without them, is
    the result exactly that of the whole batch.

    Args:
        model: The network, for its batch norms and its device.
        embed: Returns the levels of a slice of the batch. It loads and augments just those images, and enters
            autocast itself: the casts that autocast caches without a graph must not outlive a call.
        loss: Returns the loss of the levels of all images. It is called once.
        shares: Consecutive slices of the batch: the share of this rank, or those of several ranks.
        chunk: Images at a time; 0 for all of a share.
        key: What makes the random numbers of this step its own: `("dropout", seed, step)`.

    Returns:
        The loss, detached. Gradients have been added to the parameters of `model` and of `loss`.

    >>> from firstpage.losses import TopKPrecision
    >>> images, labels = torch.randn(64, 3), torch.arange(64) // 4
    >>> model, criterion = nn.Linear(3, 8), TopKPrecision(k=3)
    >>> gradients = []
    >>> for chunk in (0, 16):
    ...     model.zero_grad()
    ...     _ = backward(
    ...         model,
    ...         lambda rows: (model(images[rows]),),
    ...         lambda levels: criterion(levels[0], labels),
    ...         [slice(0, 64)],
    ...         chunk,
    ...     )
    ...     gradients.append(model.weight.grad)
    >>> torch.allclose(*gradients, atol=1e-6)
    True
    """
    chunks = [(share.start, rows) for share in shares for rows in chunk_slices(share, chunk)]
    device = next(model.parameters()).device

    def embed_seeded(share: int, rows: slice) -> Levels:
        with seeded(device, *key, share, rows.start - share):
            return embed(rows)

    if len(chunks) == 1:
        value = loss(embed_seeded(*chunks[0]))
        value.backward()  # type: ignore[no-untyped-call]
        return value.detach()

    with torch.no_grad(), keep_statistics(model):
        pieces = [embed_seeded(*piece) for piece in chunks]
    levels = tuple(torch.cat(parts).requires_grad_() for parts in zip(*pieces, strict=True))
    value = loss(levels)
    value.backward()  # type: ignore[no-untyped-call]
    gradients = [level.grad if level.grad is not None else torch.zeros_like(level) for level in levels]
    sizes = [rows.stop - rows.start for _, rows in chunks]
    for piece, *parts in zip(chunks, *(torch.split(gradient, sizes) for gradient in gradients), strict=True):
        torch.autograd.backward(embed_seeded(*piece), parts)
    return value.detach()
