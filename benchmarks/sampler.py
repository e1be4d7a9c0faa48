"""How long the plan of one epoch takes: Online Products' train half, and a larger set.

Run: PYTHONPATH=src python benchmarks/sampler.py
"""

import time

import numpy as np

from firstpage.data.sampler import GroupSampler


def labels(classes: int, images: int, fewest: int, most: int) -> np.ndarray:
    """Labels of `images` images whose classes have `fewest` to `most` of them."""
    random = np.random.default_rng(0)
    counts = np.full(classes, fewest)
    while counts.sum() < images:
        room = np.flatnonzero(counts < most)
        counts[random.permutation(room)[: images - counts.sum()]] += 1
    return np.repeat(np.arange(classes), counts)


def main() -> None:
    """Print a line for each set."""
    for name, classes, images, fewest, most, batch_size, images_per_class in (
        ("online products, 68 x 11", 11_318, 59_551, 2, 12, 68, 11),
        ("online products, 128 x 4", 11_318, 59_551, 2, 12, 128, 4),
        ("cub, 64 x 11", 100, 5_864, 41, 60, 64, 11),
        ("10 classes of 6,000, 128 x 16", 10, 60_000, 6_000, 6_000, 128, 16),
        ("hotels-50k, 128 x 4", 50_000, 1_027_871, 1, 1_000, 128, 4),
    ):
        sampler = GroupSampler(labels(classes, images, fewest, most), batch_size, images_per_class)
        begin = time.perf_counter()
        rows = sampler.plan(1)
        seconds = time.perf_counter() - begin
        print(f"{name:32} {len(sampler):6,} batches {len(rows):10,} rows planned in {seconds:.3f} s")


if __name__ == "__main__":
    main()
