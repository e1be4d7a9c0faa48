"""Gradient caching: memory and time of a huge batch in chunks, beside a plain step of one chunk's size.

    python benchmarks/caching.py                    # ResNet-50: 4,096 images in chunks of 128, and 128 alone
    python benchmarks/caching.py --compile --loss topk npair-angular

Images are cropped, flipped and normalized by the chunk from stored pixels, as in training. Memory is the most
that was allocated during a step, less what the weights, the optimizer and the stored pixels take anyhow.
"""

import argparse
import time

import torch

from firstpage import losses
from firstpage.data.augment import Augment
from firstpage.models import Embedder
from firstpage.training.gradient_caching import Levels, backward


def measured(options: argparse.Namespace, name: str, device: str, rows: int) -> tuple[float, float]:
    """GiB that steps of `rows` images need beside the model, and images a second."""
    torch.compiler.reset()
    model = Embedder.create(
        backbone=options.backbone, dim=options.dim, crop=options.crop, freeze_batch_norm=True
    )
    model.to(device, memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    criterion = losses.create(name).to(device)
    embed = torch.compile(model.raw) if options.compile else model.raw
    loss = torch.compile(criterion) if options.compile else criterion
    learned = [p for p in (*model.parameters(), *criterion.parameters()) if p.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=1e-5, fused=device == "cuda")
    augment = Augment.train(options.crop, "resized")
    side = options.crop + 29
    pixels = torch.randint(256, (options.chunk, side, side, 3), dtype=torch.uint8, device=device)
    labels = torch.arange(rows, device=device) // 4

    def embedded(at: slice) -> Levels:
        images = augment(pixels[: at.stop - at.start], seed=0, step=0, first=at.start)
        with torch.autocast(device, torch.bfloat16):
            levels: Levels = embed(images)
        return levels

    before, start = 0, 0.0
    for step in range(1 + options.steps):
        optimizer.zero_grad(set_to_none=True)
        if device == "cuda" and step == 1:  # after the first, which compiles and makes the optimizer's state
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        if step == 1:
            start = time.perf_counter()
        backward(model, embedded, lambda levels: loss(levels[0], labels), rows, options.chunk)
        optimizer.step()
    if device == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.max_memory_allocated() - before
    return before / 2**30, options.steps * rows / (time.perf_counter() - start)


def main() -> None:
    """Print a row for each loss and size."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backbone", default="resnet50")
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--chunk", type=int, default=128)
    parser.add_argument("--crop", type=int, default=227)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--loss", nargs="+", default=["topk"])
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for name in options.loss:
        for rows in (options.chunk, options.rows):
            memory, pace = measured(options, name, device, rows)
            print(
                f"{name:18} {rows:6,} images, {options.chunk} at a time: "
                f"{memory:6.2f} GiB  {pace:8,.0f} images/s",
                flush=True,
            )


if __name__ == "__main__":
    main()
