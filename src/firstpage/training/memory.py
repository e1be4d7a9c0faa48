"""Cross-batch memory: embeddings of the batches before, as further candidates for every loss."""

import torch
from torch import Tensor, nn

from firstpage.errors import UserError
from firstpage.losses import Combined, NPair, ProxyLoss
from firstpage.losses.base import Loss


class Memory(nn.Module):
    """A ring buffer of the last `size` embeddings, which are candidates of every query once it is full.

    From: Wang et al., Cross-Batch Memory for Embedding Learning, CVPR 2020. Late in training embeddings
    drift slowly, so those of the last batches are nearly what the network would make of the images now: a
    query meets thousands of candidates for the price of one matrix product. They are constants; gradient
    flows to the batch, as query and as candidate. (The authors add a loss over the memory to that over the
    batch, and the memory holds the batch already; here the two are one list of candidates, so that a first
    page is one page.)

    It is not used before it is full, so there are no empty slots that a loss could take for images, and
    shapes change once in a run. The buffer is allocated at the start, on the device; filling and reading it
    never wait for the device. Embeddings are kept as the network returned them, not normalized.

    An image is never its own candidate, neither from the batch nor from the memory: its id tells. For other
    queries an image that is in the batch and in the memory counts twice, once as it is and once as it was, as
    with the authors; a buffer no larger than an epoch keeps that rare.

    Args:
        size: Number of embeddings.
        dim: Dimensions of an embedding.
        start: Batches to wait for before it is used, while embeddings still change fast. It always waits
            until it is full. The authors wait for 1,000.

    >>> from firstpage.losses import TopKPrecision
    >>> memory, loss = Memory(size=4, dim=2), TopKPrecision(k=1)
    >>> labels, ids = torch.tensor([0, 0, 1, 1]), torch.arange(4)
    >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6], [0.0, 1.0]])
    >>> loss(embeddings, labels, **memory.candidates(embeddings, labels, ids))
    tensor(0.3800)
    >>> memory.push(embeddings, labels, ids)
    >>> memory.candidates(embeddings, labels, ids)["candidates"].shape
    torch.Size([8, 2])
    """

    embeddings: Tensor
    labels: Tensor
    ids: Tensor

    def __init__(self, size: int, dim: int, start: int = 0) -> None:
        super().__init__()
        if size < 1 or dim < 1 or start < 0:
            given = f"Memory(size={size}, dim={dim}, start={start})"
            raise UserError(f"{given}: size and dim must be positive, start not negative")
        self.size, self.start = size, start
        self.images = self.batches = 0  # pushed so far; on the host, so that asking costs nothing
        self.register_buffer("embeddings", torch.zeros(size, dim))
        self.register_buffer("labels", torch.zeros(size, dtype=torch.long))
        self.register_buffer("ids", torch.zeros(size, dtype=torch.long))

    @property
    def used(self) -> bool:
        """Return whether it is full, and the wait is over.

        >>> Memory(size=4, dim=2).used
        False
        """
        return self.images >= self.size and self.batches >= self.start

    def candidates(self, embeddings: Tensor, labels: Tensor, ids: Tensor) -> dict[str, Tensor]:
        """Return the further arguments of a loss: as candidates, first the batch and then the memory.

        Args:
            embeddings: [B, D] The global batch, with gradients.
            labels: [B] Their classes.
            ids: [B] Their images.

        >>> memory = Memory(size=4, dim=2)
        >>> list(memory.candidates(torch.eye(2), torch.arange(2), torch.arange(2)))
        ['image_ids']
        """
        if not self.used:
            return {"image_ids": ids}
        return {
            "candidates": torch.cat([embeddings, self.embeddings]),  # half precision becomes the memory's
            "candidate_labels": torch.cat([labels.long(), self.labels]),
            "image_ids": ids,
            "candidate_ids": torch.cat([ids.long(), self.ids]),
        }

    @torch.no_grad()
    def push(self, embeddings: Tensor, labels: Tensor, ids: Tensor, *, unless: Tensor | None = None) -> None:
        """Replace the oldest embeddings by those of a batch. Call it after the loss of that batch.

        Args:
            embeddings: [B, D] The batch.
            labels: [B] Their classes.
            ids: [B] Their images.
            unless: A flag on the device. If it is not 0, nothing is replaced (though it is counted).

        >>> memory = Memory(size=3, dim=1)
        >>> for value in (1.0, 2.0):
        ...     memory.push(torch.full((2, 1), value), torch.zeros(2).long(), torch.arange(2))
        >>> memory.embeddings.flatten()
        tensor([2., 1., 2.])
        """
        newest = slice(max(0, len(embeddings) - self.size), None)  # of a batch larger than the ring
        after = self.images + len(embeddings)
        first = after - len(embeddings[newest])
        slots = torch.arange(first, after, device=self.ids.device) % self.size
        for ring, new in ((self.embeddings, embeddings), (self.labels, labels), (self.ids, ids)):
            rows = new[newest].detach().to(ring.dtype)
            if unless is not None:
                rows = torch.where(unless != 0, ring[slots], rows)
            ring.index_copy_(0, slots, rows)
        self.images, self.batches = after, self.batches + 1

    def get_extra_state(self) -> Tensor:
        """Return the two counts, for `state_dict`."""
        return torch.tensor([self.images, self.batches])

    def set_extra_state(self, state: Tensor) -> None:
        """Restore the two counts, from `load_state_dict`."""
        self.images, self.batches = (int(count) for count in state)


def check_memory(loss: nn.Module, size: int, images: int) -> None:
    """Raise an error if the loss would not use a memory, or if it would hold images twice.

    Losses over proxies compare with those. N-pair takes one pair of each class, from the batch. Losses that
    are not subclasses of `Loss` take no candidates.

    Args:
        loss: The loss.
        size: Number of embeddings in the memory.
        images: Number of training images.

    >>> from firstpage.losses import ProxyNCA
    >>> check_memory(ProxyNCA(classes=3, dim=4), 1024, 60_000)
    Traceback (most recent call last):
    firstpage.errors.UserError: memory.size=1024: ProxyNCA does not use it: remove ...
    """
    parts = list(loss.parts) if isinstance(loss, Combined) else [loss]
    if all(isinstance(part, NPair | ProxyLoss) or not isinstance(part, Loss) for part in parts):
        raise UserError(
            f"memory.size={size}: {type(parts[0]).__name__} does not use it: "
            "remove the memory, or use another loss"
        )
    if size > images:
        raise UserError(
            f"memory.size={size}: there are {images} training images, so it would hold some twice: "
            f"use at most {images}"
        )
