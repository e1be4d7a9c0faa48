"""Images of stripes whose classes have difficult names, and a recipe that trains on them in seconds."""

import numpy as np
from PIL import Image

from firstpage.recipes import Recipe

STRANGE = [
    "<img src=x onerror=alert(1)>",
    "\"auk\" & 'wren'",
    "חתול ארוך מאוד",
    "日本の猫",
    "AVeryLongNameWithoutAnyPlaceToBreak" * 4,
    "plain",
]


def write_stripes(root, names, images, random, start):
    """Write images of stripes, whose angle and width depend on the class, into a folder for each class."""
    rows, columns = np.mgrid[:36, :36]
    for label, name in enumerate(names, start=start):
        angle, width = label * np.pi / 18, 0.5 + 0.25 * (label % 3)
        (root / name).mkdir(parents=True)
        for number in range(images):
            wave = np.sin(width * (rows * np.sin(angle) + columns * np.cos(angle)) + random.uniform(0, 6))
            colors = random.integers(0, 256, (2, 3))
            pixels = np.where(wave[..., None] > 0, colors[0], colors[1])
            Image.fromarray(pixels.astype(np.uint8)).save(root / name / f"{number}.png")


def small_recipe(*changes):
    table = {
        "model": {"backbone": "small", "dim": 16, "stored": 36, "crop": 32, "standardize": True},
        "loss": {"name": "batch-all"},
        "batch": {"size": 24, "images_per_class": 3},
        "augment": {"crop": "random", "flip": 0.0},
        "optimizer": {"lr": 3e-3, "head": 1.0},
        "schedule": {"epochs": 2, "kind": "cosine"},
        "train": {"protocol": "paper"},
    }
    return Recipe.of(table).changed(changes)
