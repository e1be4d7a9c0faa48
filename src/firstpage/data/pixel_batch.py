"""Batches of stored pixels, and their way to a device."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class PixelBatch:
    """Images of different sizes, each in the upper left corner of a canvas.

    An image that is taller than the canvas lies on its side: rows and columns are exchanged. `Augment` takes
    such a batch; `image` returns one image of it as it should be looked at.

    Attributes:
        pixels: uint8 [B, height, width, 3], the canvases. What an image does not cover is zero.
        sizes: int32 [B, 2], height and width of each image.
        least: A height and width that every image has.

    >>> batch = PixelBatch(torch.zeros(2, 4, 6, 3, dtype=torch.uint8), torch.tensor([[4, 5], [6, 4]]), (4, 4))
    >>> len(batch), batch.image(0).shape, batch.image(1).shape
    (2, torch.Size([4, 5, 3]), torch.Size([6, 4, 3]))
    """

    pixels: Tensor
    sizes: Tensor
    least: tuple[int, int]

    def __len__(self) -> int:
        return len(self.pixels)

    def to(self, device: str | torch.device) -> Self:
        """Return the batch on another device.

        >>> batch = PixelBatch(torch.zeros(2, 4, 4, 3, dtype=torch.uint8), torch.full((2, 2), 4), (4, 4))
        >>> batch.to("cpu").pixels.device
        device(type='cpu')
        """
        pixels, sizes = (part.to(device, non_blocking=True) for part in (self.pixels, self.sizes))
        return type(self)(pixels, sizes, self.least)

    def image(self, number: int) -> Tensor:
        """Return an image: uint8 [height, width, 3]."""
        height, width = self.sizes[number].tolist()
        if height > self.pixels.shape[1]:
            return self.pixels[number, :width, :height].transpose(0, 1)
        return self.pixels[number, :height, :width]


def pinned_buffer(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return host memory to fill and then `send` to a device: pinned if that is a CUDA device.

    >>> pinned_buffer((2, 3), torch.uint8, torch.device("cpu")).is_pinned()
    False
    """
    return torch.empty(shape, dtype=dtype, pin_memory=device.type == "cuda")


def send(host: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor from the host to `device`, asynchronously if that is a CUDA device.

    The caller must not write to `host` again, but get a new `pinned_buffer` for the next copy. Torch's
    allocator of pinned memory records the copy on the stream and reuses the block only when it is done, so
    that nothing in flight is overwritten, and a series of batches uses the same few blocks.

    >>> send(torch.ones(2), torch.device("cpu"))
    tensor([1., 1.])
    """
    return host.to(device, non_blocking=device.type == "cuda")


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor from the host to `device` through pinned memory, without waiting.

    >>> to_device(torch.tensor([3, 1]), torch.device("cpu"))
    tensor([3, 1])
    """
    return send(pinned_buffer(tuple(values.shape), values.dtype, device).copy_(values), device)
