"""How fast the pixel store is built, beside what Pillow alone does on the same cores in the same run.

Pillow alone: as many processes as cores, started before the clock, each opening, decoding and resizing its
share; no checks, no fingerprints, nothing written. The store: `PixelStore.build` from the call to the store
finished on disk, the start of its workers included. Rounds alternate, and the median of their ratios counts:
a busy neighbour disturbs both alike.

    python benchmarks/decode.py [--images 6000] [--rounds 5] [--folder DIR]    (exit status 1 below 90 %)
"""

import argparse
import multiprocessing
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from firstpage.data.catalog import Catalog
from firstpage.data.store import PixelStore
from firstpage.data.workers import usable_cores

SIZE = 256
FLOOR = 0.9


def alone(paths: list[str]) -> int:
    """Decode and resize with Pillow and nothing else."""
    for path in paths:
        with Image.open(path) as image:
            rgb = image if image.mode == "RGB" else image.convert("RGB")
            np.asarray(rgb.resize((SIZE, SIZE), Image.Resampling.BILINEAR))
    return len(paths)


def photographs(folder: Path, count: int) -> list[str]:
    """Pictures of 500 × 375 pixels and 80 kB, as the papers' sets have: smooth shapes under a fine grain."""
    random = np.random.default_rng(0)
    grain = random.normal(0, 9, (375, 500, 1))
    names = [f"{index:06d}.jpg" for index in range(count)]
    for index, name in enumerate(names):
        coarse = Image.fromarray(random.integers(0, 255, (12, 16, 3), dtype=np.uint8))
        shapes = np.asarray(coarse.resize((500, 375), Image.Resampling.BICUBIC), dtype=np.float32)
        picture = np.clip(shapes + np.roll(grain, 7 * index, axis=(0, 1)), 0, 255).astype(np.uint8)
        Image.fromarray(picture).save(folder / name, quality=90)
    return names


def main() -> int:
    """Measure, print, and say by the exit status whether the floor holds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=6000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="a folder of JPEGs to use instead of made ones")
    options = parser.parse_args()
    cores = usable_cores()
    with tempfile.TemporaryDirectory() as scratch, multiprocessing.get_context("spawn").Pool(cores) as pool:
        if options.folder is None:
            root = Path(scratch, "images")
            root.mkdir()
            names = photographs(root, options.images)
        else:
            root = options.folder
            names = sorted(str(path.relative_to(root)) for path in root.rglob("*.jpg"))[: options.images]
        paths = [str(root / name) for name in names]
        catalog = Catalog("benchmark", root, names, np.zeros(len(names), np.int64), ["all"], {})
        weight = sum(Path(path).stat().st_size for path in paths) / len(paths) / 1e3
        print(f"{len(paths)} images of {weight:.0f} kB on average, to {SIZE} × {SIZE}, {cores} cores")
        shares = [paths[first : first + 64] for first in range(0, len(paths), 64)]
        pool.map(alone, shares, chunksize=1)
        ratios = []
        for _ in range(options.rounds):
            begin = time.perf_counter()
            pool.map(alone, shares, chunksize=1)
            middle = time.perf_counter()
            PixelStore.build(catalog, Path(scratch, "store"), size=SIZE, strict=True, progress=False)
            end = time.perf_counter()
            shutil.rmtree(Path(scratch, "store"))
            ratios.append((middle - begin) / (end - middle))
            rates = [len(paths) / seconds for seconds in (middle - begin, end - middle)]
            print(f"Pillow alone {rates[0]:6.0f}   store {rates[1]:6.0f} images/s   {ratios[-1]:6.1%}")
    ratio = statistics.median(ratios)
    print(f"median {ratio:.1%}, at least {FLOOR:.0%} wanted")
    return int(ratio < FLOOR)


if __name__ == "__main__":
    sys.exit(main())
