"""What a memory adds to a training step: the whole step with it and without.

    python benchmarks/memory.py                         # ResNet-50, 128 images, 16,384 × 512, top-k precision
    python benchmarks/memory.py --compile --loss ep triplet-semihard rll margin

Times are medians of a step as the device sees it: the network forward and backward, the loss, the optimizer,
and keeping the batch.
"""

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable, Iterator

import torch

from firstpage import losses
from firstpage.models import Embedder
from firstpage.training.memory import Memory


def step_of(options: argparse.Namespace, name: str, device: str, size: int) -> Callable[[], None]:
    """A training step over made-up images, with a full memory of `size`, or none where it is 0."""
    model = Embedder.create(
        backbone=options.backbone, dim=options.dim, crop=options.crop, freeze_batch_norm=True
    )
    model.to(device, memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    images = torch.randn(options.batch, 3, options.crop, options.crop, device=device)
    images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.arange(options.batch, device=device) // 4
    ids = torch.arange(options.batch, device=device)
    criterion = losses.create(name).to(device)
    memory = Memory(max(1, size), options.dim).to(device)
    if size:  # full, of images of a thousand classes
        memory.push(
            torch.randn(size, options.dim, device=device),
            torch.randint(1000, (size,), device=device),
            torch.arange(size, device=device) + options.batch,
        )
    embed = torch.compile(model.raw) if options.compile else model.raw
    measure = torch.compile(criterion) if options.compile else criterion
    learned = [p for p in (*model.parameters(), *criterion.parameters()) if p.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=1e-5, fused=device == "cuda")

    def step() -> None:
        with torch.autocast(device, torch.bfloat16):
            (embeddings,) = embed(images)
        more = memory.candidates(embeddings, labels, ids) if size else {"image_ids": ids}
        optimizer.zero_grad(set_to_none=True)
        measure(embeddings, labels, **more).backward()
        optimizer.step()
        if size:
            memory.push(embeddings, labels, ids)

    return step


@contextlib.contextmanager
def timed(device: str, into: list[float]) -> Iterator[None]:
    """Append the milliseconds that the device spent."""
    if device == "cuda":
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        yield
        end.record()
        end.synchronize()
        into.append(begin.elapsed_time(end))
    else:
        start = time.perf_counter()
        yield
        into.append(1000 * (time.perf_counter() - start))


def main() -> None:
    """Print a row for each loss."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backbone", default="resnet50")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--crop", type=int, default=227)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--size", type=int, default=16_384)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--loss", nargs="+", default=["topk"])
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for name in options.loss:
        spent: dict[int, list[float]] = {0: [], options.size: []}
        torch.compiler.reset()
        steps = {size: step_of(options, name, device, size) for size in spent}
        for turn in range(10 + options.steps):  # by turns: neighbors and clocks disturb both alike
            for size, step in steps.items():
                with timed(device, spent[size] if turn >= 10 else []):
                    step()
        without, with_memory = (statistics.median(times) for times in spent.values())
        print(
            f"{name:18} without {without:7.2f} ms  with {options.size:,} × {options.dim} "
            f"{with_memory:7.2f} ms  {with_memory / without - 1:+6.1%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
