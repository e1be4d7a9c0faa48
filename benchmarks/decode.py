"""How fast the pixel store is built, beside what the decoder alone does on the same cores in the same run.

- decoder alone: `firstpage.data`'s decoding and resizing to bytes, in as many processes as cores, started
  before the clock; no fingerprints, no journal, nothing written.
- Pillow alone: the same with plain Pillow, without a check of any kind.
- store: `PixelStore.build`, from the call to the finished store on disk, the start of its workers included.

The three take turns, and the median of the rounds' ratios counts: a busy neighbor disturbs all alike.

    python benchmarks/decode.py [--images 4000] [--rounds 5] [--folder DIR]    (exit status 1 below 90 %)
"""

import argparse
import multiprocessing
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from firstpage.data.catalog import Catalog
from firstpage.data.decode import open_regular
from firstpage.data.framing import Framing
from firstpage.data.store import PixelStore
from firstpage.data.workers import usable_cores

SIZE = 256
FLOOR = 0.9


def decoder_alone(paths: list[str]) -> None:
    """Decode and resize as the store does, and forget the pixels."""
    framing = Framing(SIZE)
    for path in paths:
        with open_regular(path) as file:
            framing.read(file).tobytes()


def pillow_alone(paths: list[str]) -> None:
    """Decode and resize with Pillow and nothing else."""
    for path in paths:
        with Image.open(path) as image:
            rgb = image if image.mode == "RGB" else image.convert("RGB")
            scale = SIZE / min(rgb.size)
            size = round(rgb.width * scale), round(rgb.height * scale)  # the size that the store has
            rgb.resize(size, Image.Resampling.BILINEAR).tobytes()


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


def seconds(work: Callable[[], object]) -> float:
    """How long it takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def main() -> int:
    """Measure, print, and say by the exit status whether the floor holds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=4000)
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
        catalog = Catalog("benchmark", root, names, np.zeros(len(names), np.int64), ["all"], {})
        weight = sum((root / name).stat().st_size for name in names) / len(names) / 1e3
        print(
            f"{len(names)} images of {weight:.0f} kB on average, to a shorter side of {SIZE}, {cores} cores"
        )
        paths = [str(root / name) for name in names]
        shares = [paths[first : first + 64] for first in range(0, len(paths), 64)]
        ways: dict[str, Callable[[], object]] = {
            "decoder alone": lambda: pool.map(decoder_alone, shares, chunksize=1),
            "Pillow alone": lambda: pool.map(pillow_alone, shares, chunksize=1),
            "store": lambda: PixelStore.build(catalog, Path(scratch, "store"), strict=True, progress=False),
        }
        pool.map(decoder_alone, shares, chunksize=1)
        ratios: dict[str, list[float]] = {"decoder alone": [], "Pillow alone": []}
        for _ in range(options.rounds):
            took = {name: seconds(work) for name, work in ways.items()}
            shutil.rmtree(Path(scratch, "store"))
            for name, measured in ratios.items():
                measured.append(took[name] / took["store"])
            print("   ".join(f"{name} {len(names) / took[name]:4.0f}" for name in ways), "  images/s")
    for name, measured in ratios.items():
        each = ", ".join(f"{ratio:.0%}" for ratio in measured)
        print(f"store / {name}: median {statistics.median(measured):.1%}   ({each})")
    return int(statistics.median(ratios["decoder alone"]) < FLOOR)


if __name__ == "__main__":
    sys.exit(main())
