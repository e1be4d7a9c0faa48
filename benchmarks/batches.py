"""How fast batches leave the pixel store, from its file and from the device, and whether they are right.

On a CUDA device every batch is asked for while the device is kept busy, so that copies are still in flight
when the next batch is staged: were pinned memory used again too early, the comparison at the end would fail.

    python benchmarks/batches.py [--device cuda] [--images 4000] [--batch 128]
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from firstpage.data.catalog import Catalog
from firstpage.data.jpeg_store import JpegStore
from firstpage.data.store import PixelStore
from firstpage.data.stream import Stream
from firstpage.models.embedder import Pixels


def measure(source: Pixels, plan: list[np.ndarray], device: torch.device) -> list[torch.Tensor]:
    """Ask for the batches of a plan, print how many images a second came, and return them."""
    begin = time.perf_counter()
    batches = []
    for pixels in source.batches(plan, device):
        if device.type == "cuda":
            torch.cuda._sleep(2_000_000)  # cycles, about a millisecond: the copy queues up behind it
        batches.append(pixels.pixels)
    asked = time.perf_counter() - begin
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    count = sum(map(len, plan))
    done = time.perf_counter() - begin
    print(f"    asked for at {count / asked:9,.0f} images/s, there at {count / done:9,.0f} images/s")
    return batches


def main() -> int:
    """Measure all ways and compare what they give, but for JPEGs, which are not exact."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--batches", type=int, default=50)
    options = parser.parse_args()
    device, random = torch.device(options.device), np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as scratch:
        names = [f"{index}.jpg" for index in range(256)]
        for name in names:
            Image.fromarray(random.integers(0, 255, (16, 16, 3), dtype=np.uint8)).resize((400, 300)).save(
                Path(scratch, name)
            )
        paths = [names[index % 256] for index in range(options.images)]
        catalog = Catalog("benchmark", Path(scratch), paths, np.zeros(len(paths), np.int64), ["all"], {})
        store = PixelStore.build(catalog, Path(scratch, "store"))
        plan = [random.permutation(options.images)[: options.batch] for _ in range(options.batches)]
        print(f"{options.batches} batches of {options.batch} on {device}")
        print("file:")
        from_file = measure(store, plan, device)
        print("JPEGs:")
        with JpegStore.build(catalog, Path(scratch, "store")) as jpegs:
            measure(jpegs, plan, device)
        print("stream:")
        with Stream(catalog) as stream:
            streamed = measure(stream, plan, device)
        begin = time.perf_counter()
        store.to(device)
        print(f"device: (moved there in {time.perf_counter() - begin:.2f} s)")
        resident = measure(store, plan, device)
        wrong = sum(
            not (np.array_equal(a.cpu(), store.pixels[rows]) and torch.equal(a, b) and torch.equal(a, c))
            for rows, a, b, c in zip(plan, from_file, streamed, resident, strict=True)
        )
    print(f"wrong batches: {wrong}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
