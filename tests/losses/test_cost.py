"""What a step may cost: no wait for the device, no tensor larger than O(N²)."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from firstpage import losses
from support.batches import sized

IMAGES, DIMENSIONS = 4096, 512


class Largest(TorchDispatchMode):
    """Remembers the largest tensor any operation returned."""

    size = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else (result,):
            if isinstance(value, torch.Tensor):
                self.size = max(self.size, value.untyped_storage().nbytes())
        return result


@pytest.mark.parametrize("name", losses.names())
def test_four_thousand_images_without_waiting_or_cubes(name):
    """On the meta device tensors have shapes but no values: reading one, or needing one for a shape, fails.

    So this shows that forward and backward never wait for a device, and the size of what they make.
    (The facility search of struct-clust and the counts of smooth ranks are opaque operations here: the
    docstring of the first says what it waits for, test_later_losses how large the blocks of the second are.)
    """
    # 4,000 proxies at most, so that a table of images and proxies is no larger than one of images.
    classes = IMAGES // 16 if name == "soft-triple" else IMAGES // 4
    # Fewer dimensions where a table of each has to be made in blocks: the blocks are as large.
    dimensions = 32 if name == "pddm" else DIMENSIONS
    loss = losses.create(name, **sized(name, classes, dimensions)).to("meta")
    embeddings = torch.empty(IMAGES, dimensions, device="meta", requires_grad=True)
    labels = torch.empty(IMAGES, dtype=torch.long, device="meta")
    with Largest() as largest:
        loss(embeddings, labels).backward()
    assert embeddings.grad.shape == embeddings.shape
    assert largest.size <= 8 * IMAGES * (IMAGES + 1)  # one [N, N] table of int64, or of float64 sums
