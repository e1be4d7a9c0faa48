"""How close `fit` comes to the backbone alone: images a second of a bare loop and of the whole step.

    python benchmarks/training.py [--backbone resnet50] [--batch 128] [--crop 227] [--loss topk]

The bare loop repeats forward, backward and the optimizer on one batch that is there already; `fit` assembles
and augments batches from stored pixels, mines and computes the loss besides. Both in one process, on made-up
pixels.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch

from firstpage.data.catalog import Catalog
from firstpage.data.framing import Framing
from firstpage.data.pixel_batch import PixelBatch, to_device
from firstpage.models.embedder import Embedder
from firstpage.recipes import Recipe
from firstpage.training import fit
from firstpage.training.compiling import compile_network
from firstpage.training.optimizer import make_optimizer


class MadeUp:
    """Random pixels on a device, in place of a store."""

    def __init__(self, images: int, side: int, device: str) -> None:
        canvas = Framing(side).canvas
        self.pixels = torch.randint(256, (images, *canvas, 3), dtype=torch.uint8, device=device)
        self.sizes = torch.tensor([canvas, canvas[::-1], (side, side)]).repeat(images, 1)[:images].int()
        self.ok = np.ones(images, bool)
        self.least = (side, side)

    def __len__(self) -> int:
        return len(self.pixels)

    def prepare(self, rows: object) -> None:
        """Nothing to prepare."""

    def batch(self, rows: torch.Tensor, device: object = None) -> PixelBatch:
        """The pixels of some rows."""
        index = torch.as_tensor(rows)
        pixels = self.pixels.index_select(0, to_device(index, self.pixels.device))
        return PixelBatch(pixels, to_device(self.sizes[index], self.pixels.device), self.least)

    def batches(self, plan: Iterable[torch.Tensor], device: object = None) -> Iterator[PixelBatch]:
        """A batch for each list of rows."""
        return map(self.batch, plan)


def bare(recipe: Recipe, device: str, steps: int) -> float:
    """Images a second of forward, backward and optimizer."""
    model = Embedder(recipe.model).to(device)
    model.to(memory_format=torch.channels_last)
    model.train()
    optimizer = make_optimizer(recipe.optimizer, model, torch.nn.Module())
    embed = compile_network(model.raw, model.device) if recipe.train.compile else model.raw
    size = recipe.batch.size
    crop = model.preprocess.size
    images = torch.randn(size, 3, crop, crop, device=device).contiguous(memory_format=torch.channels_last)
    for step in range(steps + 15):
        if step == 15:
            _wait(device)
            start = time.perf_counter()
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            (vectors,) = embed(images)
        optimizer.zero_grad(set_to_none=True)
        vectors.float().square().mean().backward()
        optimizer.step()
    _wait(device)
    return steps * size / (time.perf_counter() - start)


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    """Print both, mode by mode."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backbone", default="resnet50")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--crop", type=int, default=227)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--images", type=int, default=6400)
    parser.add_argument("--loss", default="topk")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    pixels = MadeUp(options.images, 256, device)
    rows = np.arange(options.images)
    labels = rows // 50
    test = rows[: 50 * 4]  # a few images: the evaluation is not what is measured
    catalog = Catalog(
        "made-up",
        Path(),
        [str(row) for row in rows],
        labels,
        [str(label) for label in range(labels.max() + 1)],
        {"train": rows[200:], "test": test},
    )
    for mode in (False, True):
        recipe = Recipe.of(
            {
                "model": {"backbone": options.backbone, "crop": options.crop, "freeze_batch_norm": True},
                "loss": {"name": options.loss},
                "batch": {"size": options.batch, "images_per_class": 4},
                "schedule": {"epochs": max(1, round(options.steps * options.batch / len(rows)))},
                "train": {"compile": mode, "evaluate_every": 10**6},
            }
        )
        alone, whole = [], []
        for _ in range(options.rounds):
            torch.compiler.reset()
            alone.append(bare(recipe, device, options.steps))
            torch.compiler.reset()
            whole.append(fit(recipe, catalog, None, pixels=pixels, progress=False).images_per_second)
        share = statistics.median(whole) / statistics.median(alone)
        for title, paces in (("bare", alone), ("fit", whole)):
            print(f"compile={mode!s:6} {title:5}" + "".join(f"{pace:8,.0f}" for pace in paces), "images/s")
        print(f"compile={mode!s:6} median of fit is {share:.1%} of bare", flush=True)


if __name__ == "__main__":
    main()
