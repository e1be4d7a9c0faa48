"""Stored pixels that were never files, and their catalog."""

from pathlib import Path

import numpy as np
import torch

from firstpage.data import Catalog


class Noise:
    """Random pixels, always the same, in place of a store."""

    def __init__(self, images):
        self.images, self.ok = images, np.ones(images, bool)

    def __len__(self):
        return self.images

    def batch(self, rows, device=None):
        generator = torch.Generator().manual_seed(1)
        pixels = torch.randint(256, (self.images, 36, 36, 3), generator=generator, dtype=torch.uint8)
        return pixels[torch.as_tensor(np.asarray(rows))]


def noise_catalog(images, per_class, train):
    """Classes of `per_class` images; the first `train` images are trained on, the others tested."""
    return Catalog(
        "noise",
        Path(),
        [str(row) for row in range(images)],
        np.arange(images) // per_class,
        [str(label) for label in range(images // per_class)],
        {"train": np.arange(train), "test": np.arange(train, images)},
    )
